"""Overrides that a program gives as Python values become lines of Hydra's grammar.

Text stands for itself: it is quoted, so that "0123", "a,b" or "x = {1}" stay what they are. Only an interpolation
(${...}) in it is resolved, as on the command line and in files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard, get_origin

from hydra.core.override_parser.types import Quote, QuotedString

from jobs.errors import ConfigError
from jobs.plan.keys import GROUPS, keys

KEY = re.compile(r"\+{0,2}[\w/@.:-]+", re.ASCII)
# Hydra's grammar has no quotes for the names in a mapping.
ENTRY = re.compile(r"[\w/.+$%*@?|-]+", re.ASCII)
ACCEPTED = 'Pass text such as "nodes=2", a dictionary such as {"nodes": 2, "job": {"steps": 100}}, or a list of these.'


def override_lines(given: Iterable[object], *, multirun: bool) -> list[str]:
    """Return the overrides in texts, lists and dictionaries as lines; raise ConfigError for any other type.

    In a dictionary, dictionaries are sections. A list is a sweep with `multirun`, else a list value; for a key that
    takes a list, a sweep is a list of lists.
    """
    return [line for each in given for line in lines_of(each, multirun=multirun)]


def refuse_keywords(keywords: Mapping[str, object]) -> None:
    """Raise ConfigError for overrides that were given as keyword arguments."""
    for key, value in keywords.items():
        raise ConfigError(
            f"{key} is not a keyword argument of this function. No override is one: job.steps cannot be. "
            f'Pass {{"{key}": {value!r}}} in place of {key}={value!r}.'
        )


def lines_of(given: object, *, multirun: bool) -> Iterator[str]:
    """Yield the lines of one argument."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        yield from entries(given, "", multirun=multirun)
    elif isinstance(given, list | tuple):
        yield from override_lines(given, multirun=multirun)
    else:
        raise ConfigError(f"{given!r} is not an override. {ACCEPTED}")


def entries(section: Mapping[Any, object], above: str, *, multirun: bool) -> Iterator[str]:
    """Yield the lines of a dictionary; `above` is the section that it sets, which ends with a dot."""
    for name, value in section.items():
        if not isinstance(name, str) or not KEY.fullmatch(name):
            inside = f" in {above.removesuffix('.')}" if above else ""
            raise ConfigError(f"{name!r}{inside} is not the name of a key. {ACCEPTED}")
        key = f"{above}{name}"
        known = keys().get(key.lstrip("+"))
        kind = None if known is None else get_origin(known.kind)
        if isinstance(value, Mapping) and kind is not dict:
            yield from entries(value, f"{key}.", multirun=multirun)
        elif multirun and is_list(value) and (kind is not list or any(map(is_list, value))):
            if not value:
                raise ConfigError(f"{key}: the list of its values is empty, so the sweep has no run. Give one value.")
            yield f"{key}={','.join(written(key, each) for each in value)}"
        elif is_list(value) and kind is not list and (known is not None or key in GROUPS):
            raise ConfigError(
                f"{key} takes one value, and {value!r} are several. For a sweep over them pass multirun=True."
            )
        else:
            yield f"{key}={written(key, value)}"


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Return True for what Python has in place of a list of the configuration."""
    return isinstance(value, list | tuple | range)


def written(key: str, value: object) -> str:
    """Return a value in Hydra's grammar."""
    if value is None:
        return "null"
    # Before the numbers, since bool is an Integral.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str | Path):
        return str(QuotedString(str(value), Quote.single).with_quotes())
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if is_list(value):
        return f"[{','.join(written(key, each) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{entry_name(key, name)}:{written(key, each)}' for name, each in value.items())}}}"
    raise ConfigError(
        f"{key}: {value!r} is a {type(value).__name__}. Pass text, a number, True, False, None, a list or a dictionary."
    )


def entry_name(key: str, name: object) -> str:
    """Return the name of an entry of a mapping."""
    if not isinstance(name, str) or not ENTRY.fullmatch(name):
        raise ConfigError(f"{key}: {name!r} cannot be a name in it. Use letters, digits and /.+$%*@?|_-")
    return name
