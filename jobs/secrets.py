"""Detect passwords, tokens and keys, and keep them out of every file and message.

A configuration that contains one is refused, because config.yaml and the batch script would contain it too. In text
from other sources (command lines, error messages, tracebacks) REDACTED replaces it.

The patterns are in secret_patterns.py and secret_shapes.csv; tests/README.md compares with the package detect-secrets.
"""

from __future__ import annotations

import functools
import json
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any
from urllib.parse import quote

from jobs.schema import Run
from jobs.secret_patterns import assigned, is_harmless, names_a_secret, shapes, without_commands

REDACTED = "[redacted]"
# A shorter value also occurs in ordinary words.
SHORTEST_KNOWN = 8
# They come with text that was copied: soft hyphens, joiners, marks of direction, selectors of variants.
WIDTHLESS = re.compile("[\xad\u034f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")
LONG_WORD = re.compile(r"[\w+/=.-]{16}")


def redact(text: str, known: Sequence[str] | None = None) -> str:
    """Return the text with every secret replaced; `known` are the secrets of the environment, if already collected.

    Text with a secret also loses its signs without width, which may stand within the secret or its name.
    """
    known = known_values() if known is None else known
    bare = text if text.isascii() else WIDTHLESS.sub("", text)
    shown = without_secrets(bare, known)
    return text if shown == bare else shown


def without_secrets(text: str, known: Sequence[str]) -> str:
    """Return the text with REDACTED in place of known values, tokens, passwords of commands and values by name."""
    for value in known:
        text = text.replace(value, REDACTED)
    text = shapes().sub(REDACTED, text)
    text = without_commands(text, REDACTED)
    parts, end = [], 0
    for begin, after in assigned(text):
        parts += [text[end:begin], REDACTED]
        end = after
    return "".join([*parts, text[end:]])


def redacted(value: Any, known: list[str] | None = None) -> Any:
    """Return JSON data with every secret replaced, in keys too; `known` as for redact."""
    known = known_values() if known is None else known
    match value:
        case str():
            return redact(value, known)
        case dict():
            return {
                redact(key, known) if isinstance(key, str) else key: REDACTED
                if isinstance(item, str) and names_secret(str(key), item)
                else redacted(item, known)
                for key, item in value.items()
            }
        case list() | tuple():
            return [redacted(item, known) for item in value]
    return value


def redacted_traceback(error: BaseException) -> str:
    """Return the traceback of an error as Python prints it, without secrets.

    The text is redacted and not the exceptions in it: a secret may be in a file name, a command, a note, the key of a
    dictionary, a cause or a group.
    """
    return redact("".join(traceback.format_exception(error)))


def config_holds_no_secret(run: Run) -> str | None:
    """Return the error for a configuration that contains a secret, else None: configurations are shared."""
    return secret_in(run)


def secret_in(values: Any) -> str | None:
    """Return the error for the first secret among the values of a configuration, settled or not, else None."""
    known = tuple(known_values())
    for key, value in strings(values):
        if (shown := secret_of(key, value, known)) is not None:
            found = f" It was found in: {shown}" if shown != value else ""
            return (
                f"{key} contains a password, token or key, and would be written to config.yaml and the batch script. "
                "Remove it: Slurm's jobs inherit the environment of the shell that submits. Or keep it in a file "
                f"that only you can read, and set cluster.setup='[source ~/.secrets]'.{found}"
            )
    return None


# The points of a sweep have most values in common.
@functools.lru_cache(maxsize=4096)
def secret_of(key: str, value: str, known: tuple[str, ...]) -> str | None:
    """Return a value without its secrets if it has any, or is one by the name of its key; else None."""
    shown = redact(value, known)
    return shown if names_secret(key, value) or reads_secret(value) or shown != value else None


def names_secret(key: str, value: str) -> bool:
    """Return True if the value of this key is a secret, by the key's name."""
    return bool(value) and names_a_secret(key) and not is_harmless(value, key)


def reads_secret(value: str) -> bool:
    """Return True if an interpolation takes the value of a secret's variable: ${oc.env:HF_TOKEN}."""
    return "${oc." in value and any(names_a_secret(name) for name in re.findall(r"oc\.env:\s*([\w.-]+)", value))


def known_values() -> list[str]:
    """Return the secrets of this process's environment, as they are and as JSON, Python and URLs write them."""
    found: dict[str, None] = {}
    for key, value in os.environ.items():
        if len(value) >= SHORTEST_KNOWN and names_secret(key, value):
            found |= dict.fromkeys((value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe="")))
            # A key is printed line by line; a line without a long word, such as "clusters:", is ordinary text.
            found |= dict.fromkeys(line for line in map(str.strip, value.split("\n")) if LONG_WORD.search(line))
    # The longest first: a password may be a part of another one.
    return sorted(found, key=len, reverse=True)


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string within a value, with its dotted key."""
    match value:
        case None | bool() | int() | float() | Enum():
            return
        case str():
            yield key, value
        case dict():
            for name, item in value.items():
                yield from strings(item, f"{key}.{name}" if key else str(name))
        case list():
            for item in value:
                yield from strings(item, key)
        case _ if hasattr(value, "__dataclass_fields__"):
            yield from strings(vars(value), key)
