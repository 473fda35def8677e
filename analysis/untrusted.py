"""Values of files that anyone may have written: a value of another kind than expected is absent, never repaired."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from jobs.metrics import Metric

# No quantity is larger; squares and sums of smaller numbers stay finite.
LARGEST = 1e150
# C, C++, Python, Fortran, the C runtime of Windows, progress bars: -nan(ind), Infinity, 1.#QNAN, nan.0, ∞.
NOT_FINITE = re.compile(
    r"[-+\u2212]?(?:nan(?:\.0|\(\w*\))?|inf(?:inity)?|1\.#(?:[qs]?nan|ind|inf)\d*|∞)", re.IGNORECASE
)


def number(record: Mapping[str, Any], metric: Metric) -> float | None:
    """Return a metric of a record; None if it is absent or not a finite number."""
    return as_number(record.get(metric.name))


def as_number(value: Any) -> float | None:
    """Return the value if it is a finite number, else None."""
    if type(value) is not float and type(value) is not int:
        return None
    return value if -LARGEST <= value <= LARGEST else None  # also false for NaN, and safe for huge integers


def printed_number(text: str) -> float | None:
    """Return the number in a printed text; None for other text, nan and inf."""
    try:
        return as_number(float(text))
    except ValueError:
        return None


def is_not_finite(printed: object) -> bool:
    """Return True if a value is NaN or infinite, printed or as a number, or larger than any quantity."""
    if isinstance(printed, str):
        if NOT_FINITE.fullmatch(printed.strip()):
            return True
        try:
            printed = float(printed)
        except ValueError:
            return False
    return type(printed) in {float, int} and as_number(printed) is None


def count(record: Mapping[str, Any], key: str) -> int | None:
    """Return a whole number of a record; None if it is absent or something else."""
    value = record.get(key)
    return value if type(value) is int else None


def moment(record: Mapping[str, Any]) -> float | None:
    """Return the time of a record in seconds since the epoch; None if it has none."""
    try:
        return datetime.fromisoformat(record["time"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def lookup(values: Any, key: str) -> Any:
    """Return a value of nested mappings by its dotted key; None if absent."""
    for part in parts_of(key):
        # isinstance of dict is faster than of Mapping, and nearly all are dictionaries.
        values = values.get(part) if isinstance(values, (dict, Mapping)) else None
    return values


@functools.cache
def parts_of(key: str) -> list[str]:
    """Return the names in a dotted key. Every key is one of ours, so the cache stays small."""
    return key.split(".")


def canonical(values: Any) -> bytes:
    """Return bytes that are equal for equal values, to group by: JSON, with other types as text."""
    try:
        return orjson.dumps(values, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Integers of more than 64 bits, and text that is not Unicode.
        return repr(values).encode(errors="backslashreplace")


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []
