"""Values of files that anyone may have written: what is not of the expected kind is absent, never repaired.

Used by everything in analysis that reads a configuration, a plan or a record.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jobs.metrics import Metric


def number(record: Mapping[str, Any], metric: Metric) -> float | None:
    """A metric of a record; None when it is absent or no finite number."""
    return as_number(record.get(metric.name))


def as_number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None  # also false for NaN, and safe for huge integers


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
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
