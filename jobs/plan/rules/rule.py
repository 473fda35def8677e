"""The type of a rule, the value of a key, and phrases for allowed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from jobs.layout import degree_of
from jobs.parallelism import DP_REPLICATE, DP_SHARD, MODEL_AXES, Axis
from jobs.schema import Run

# Most names in a sentence.
MOST_NAMES = 5

Rule = Callable[[Run], str | None]
"""Run -> a line for each mistake (key and value, place, allowed values, remedy), or None."""


def value_at(run: Run, key: str) -> object:
    """Return the value of a key; None if its section is null."""
    found: object = run
    for name in key.split("."):
        found = getattr(found, name, None)
    return found


@cache
def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, smallest first."""
    return [n for n in range(1, number + 1) if number % n == 0]


def multiples_near(number: int, unit: int, most: float = math.inf) -> str:
    """Return the positive multiples of a unit next to a number, none above `most`, as text: `60 or 66`, or nothing."""
    below = min(number, most) // unit * unit
    return either(int(n) for n in (below, below + unit) if 0 < n <= most)


def undivided(run: Run, axes: Iterable[Axis] = MODEL_AXES) -> list[str]:
    """Return the assignments that undo degrees of a run, which another choice of `parallelism` would not undo."""
    degrees = [f"{axis.key}=1" for axis in axes if degree_of(run, axis) > 1]
    return degrees + [f"{axis.key}=null" for axis in (DP_REPLICATE, DP_SHARD) if getattr(run.parallelism, axis.field)]


def either(choices: Iterable[object]) -> str:
    """Return choices as text: `1, 2 or 4`; nothing without one, where the refusal needs another remedy."""
    *first, last = list(map(str, choices)) or [""]
    return f"{', '.join(first)} or {last}" if first else last


def counted(count: int, noun: str = "run") -> str:
    """Return a number of things as text: `1 run`, `2 runs`."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"
