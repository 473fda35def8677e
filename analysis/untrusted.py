"""Values of files that anyone may have written: what is not of the expected kind is absent, never repaired.

Used by everything in analysis that reads a configuration, a plan or a record.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from jobs.metrics import Metric


def number(record: Mapping[str, Any], metric: Metric) -> float | None:
    """A metric of a record; None when it is absent or no finite number."""
    value = record.get(metric.name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None  # also false for NaN, and safe for huge integers


def lookup(values: Any, key: str) -> Any:
    """A value of nested mappings by its dotted key; None when absent."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
