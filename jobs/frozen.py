"""The frozen Run as plain data: the text of config.yaml, and the Run that its values describe.

Every reader of a run needs this. It uses no OmegaConf, whose import takes longer than a short command: the file is
written here, so its values have the types of the schema, and nothing is composed or interpolated.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import yaml

from jobs.schema import Engine, Run
from jobs.secrets import strings

INTERPOLATION = re.compile(r"(\\*)\$\{")
RENAMED = {(Engine, "optimizer"): "optimizer_loop"}
"""Keys of an earlier version, by their section; the configurations of its runs are still read."""
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}


def dump_run(run: Run) -> str:
    """Return the frozen Run as YAML, enums by name; ${ in a text is escaped, so that it stays text."""

    def literal(value: Any) -> Any:
        match value:
            case Enum():
                return value.name
            case str():
                return INTERPOLATION.sub(r"\1\1\\${", value)
            case list():
                return [literal(each) for each in value]
            case dict():
                return {key: literal(each) for key, each in value.items()}
        return value

    # libyaml, if PyYAML was built with it, is ten times as fast: a sweep has hundreds of runs.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(literal(asdict(run)), Dumper=dumper, sort_keys=False, allow_unicode=True)


def run_of(values: Mapping[str, Any]) -> Run:
    """Return the Run of the values of a config.yaml; raise ValueError with the key of one that the schema refuses.

    Keys with a default may be missing: an earlier version did not have them.
    """
    return cast(Run, section_of(Run, values, ""))


def interpolation_in(values: Any) -> str | None:
    """Return the key of the first value that OmegaConf would replace, with the value; None if there is none."""
    for key, text in strings(values):
        # An even number of backslashes escapes itself, an odd one the interpolation.
        if any(len(backslashes) % 2 == 0 for backslashes in INTERPOLATION.findall(text)):
            return f"{key}={text}"
    return None


@cache
def types_of(section: type) -> dict[str, Any]:
    """Return the types of the keys of a section of the schema."""
    hints = get_type_hints(section)
    return {field.name: hints[field.name] for field in fields(section)}


def section_of(section: Any, values: Any, place: str) -> Any:
    """Return the dataclass of a section from a mapping of its keys."""
    if not isinstance(values, Mapping):
        raise refused(place, values, "a section")
    values = {RENAMED.get((section, key), key): value for key, value in values.items()}
    expected = types_of(section)
    prefix = f"{place}." if place else ""
    if unknown := [key for key in values if key not in expected]:
        raise ValueError(f"{prefix}{unknown[0]} is not a key")
    missing = [
        field.name
        for field in fields(section)
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"{prefix}{missing[0]} is missing")
    return section(**{key: value_of(expected[key], value, prefix + key) for key, value in values.items()})


def value_of(expected: Any, value: Any, place: str) -> Any:
    """Return a value as the schema has it: an enum by its member, a section as its dataclass."""
    if get_origin(expected) in (Union, types.UnionType):
        (some,) = (each for each in get_args(expected) if each is not types.NoneType)
        return None if value is None else value_of(some, value, place)
    if is_dataclass(expected):
        return section_of(expected, value, place)
    if get_origin(expected) is list:
        if not isinstance(value, list):
            raise refused(place, value, WORDS[list])
        (each_is,) = get_args(expected)
        return [value_of(each_is, each, f"{place}[{i}]") for i, each in enumerate(value)]
    if get_origin(expected) is dict:
        _, each_is = get_args(expected)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise refused(place, value, "a mapping with texts as keys")
        return {key: value_of(each_is, each, f"{place}.{key}") for key, each in value.items()}
    if issubclass(expected, Enum):
        if not isinstance(value, str) or value not in expected.__members__:
            raise refused(place, value, f"one of {', '.join(expected.__members__)}")
        return expected[value]
    if expected is str and isinstance(value, str):
        return INTERPOLATION.sub(lambda found: f"{found[1][: len(found[1]) // 2]}${{", value)
    if expected is float and type(value) is int:
        return float(value)
    if type(value) is not expected:
        raise refused(place, value, WORDS[expected])
    return value


def refused(place: str, value: Any, wanted: str) -> ValueError:
    """Return the error for a value of another type than its key has."""
    return ValueError(f"{place}={value!r} is not {wanted}")
