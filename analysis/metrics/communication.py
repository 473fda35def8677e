"""Communication of a rank in a step, and its rank grid: the `layout` event of a run and the layout of its plan.

Nothing is computed from formulas here; what a run did not record is absent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.untrusted import lookup, number
from jobs import metrics as m
from jobs.metrics import Metric
from jobs.parallelism import AXES, AXIS_NAMES


@dataclass(frozen=True)
class Collective:
    """The calls of one collective over one axis of the rank grid in one step, of the rank with the most bytes."""

    axis: str
    """One of jobs.parallelism.AXIS_NAMES, several of them joined by `+`, or `world`."""
    collective: str
    calls: float
    payload_bytes: float


def read_collectives(event: Mapping[str, Any]) -> tuple[Collective, ...] | None:
    """Return the collectives of a `layout` event, innermost axes first; None if they are absent or invalid.

    An empty tuple is a result: no rank sends anything.
    """
    records = event.get("collectives")
    if not isinstance(records, list):
        return None
    found = [collective for record in records if (collective := read_collective(record))]
    # A sum over the valid entries only would be too small.
    return tuple(sorted(found, key=lambda each: axis_order(each.axis))) if len(found) == len(records) else None


def read_collective(record: Any) -> Collective | None:
    """Return one entry of the event; None if a field is missing or of another type."""
    if not isinstance(record, dict):
        return None
    axis, collective = record.get("axis"), record.get("collective")
    calls, payload_bytes = number(record, m.COLLECTIVE_CALLS), number(record, m.COLLECTIVE_BYTES)
    if not (isinstance(axis, str) and isinstance(collective, str)) or calls is None or payload_bytes is None:
        return None
    return Collective(axis, collective, calls, payload_bytes) if min(calls, payload_bytes) >= 0 else None


def sums(collectives: Iterable[Collective] | None) -> dict[Metric, float]:
    """Return COLLECTIVE_CALLS and COLLECTIVE_BYTES over all axes and collectives; empty if they are unknown."""
    if collectives is None:
        return {}
    listed = list(collectives)
    return {
        m.COLLECTIVE_CALLS: sum(each.calls for each in listed),
        m.COLLECTIVE_BYTES: sum(each.payload_bytes for each in listed),
    }


@functools.cache
def axis_order(axis: str) -> tuple[int, tuple[int, ...], str]:
    """Return the sort key of an axis: axes of the grid from the innermost, then joined ones, then any other name."""
    parts = axis.split("+")
    known = tuple(-AXIS_NAMES.index(part) for part in parts if part in AXIS_NAMES)
    return (len(parts) if len(known) == len(parts) else len(AXES) + 1, known, axis)


def degrees(plan: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the degree of every axis by the plan; None if the plan does not contain the whole grid."""
    layout = lookup(plan, "layout")
    if not isinstance(layout, Mapping):
        return None
    # Older plans lack axes that were added later.
    grid = {axis.name: layout.get(axis.name, 1 if axis.rare else None) for axis in AXES}
    return grid if all(type(degree) is int and degree >= 1 for degree in grid.values()) else None
