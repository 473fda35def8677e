"""Values of files that anyone may have written: what is not of the expected kind is absent, never repaired.

Used by everything in analysis that reads a configuration, a plan or a record.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from jobs.metrics import Metric

# Asked of every number of a log; no quantity is larger, and squares and sums of what is smaller stay finite.
LARGEST = 1e150


def number(record: Mapping[str, Any], metric: Metric) -> float | None:
    """A metric of a record; None when it is absent or no finite number."""
    return as_number(record.get(metric.name))


def as_number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if type(value) is not float and type(value) is not int:
        return None
    return value if -LARGEST <= value <= LARGEST else None  # also false for NaN, and safe for huge integers


def printed_number(text: str) -> float | None:
    """The number that a log prints so; None for what is no number, or one that stands for a missing one (nan, inf)."""
    try:
        return as_number(float(text))
    except ValueError:
        return None


def count(record: Mapping[str, Any], key: str) -> int | None:
    """A whole number of a record; None when it is absent or something else."""
    value = record.get(key)
    return value if type(value) is int else None


def moment(record: Mapping[str, Any]) -> float | None:
    """When a record was written, in seconds since the epoch; None when it does not tell."""
    try:
        return datetime.fromisoformat(record["time"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def lookup(values: Any, key: str) -> Any:
    """A value of nested mappings by its dotted key; None when absent."""
    for part in parts_of(key):
        # Nearly all are dictionaries, which is a faster question.
        values = values.get(part) if isinstance(values, (dict, Mapping)) else None
    return values


@functools.cache
def parts_of(key: str) -> list[str]:
    """The names in a dotted key; every key is one of ours."""
    return key.split(".")


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys; lists stay values."""
    items: dict[str, Any] = {}

    def add(values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            # What YAML and JSON make of a mapping; to ask for any Mapping takes most of the time here.
            if isinstance(value, dict):
                add(value, f"{prefix}{key}.")
            else:
                items[f"{prefix}{key}"] = value

    add(values, "")
    return items


def canonical(values: Any) -> bytes:
    """Bytes that are the same for equal values, to group by: JSON, and what JSON has no word for as text."""
    try:
        return orjson.dumps(values, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Of integers of more than 64 bits, and of text that is no Unicode.
        return repr(values).encode(errors="backslashreplace")


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
