"""What rules are, and how they name what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from jobs.schema import Run

# Ada and Hopper are the first NVIDIA GPUs with float8 matrix units:
# https://docs.nvidia.com/cuda/cublas (8-bit floating point data types: "compute capability 8.9, 9.0 and above").
FLOAT8_CAPABILITY = (8, 9)
Rule = Callable[[Run], str | None]
"""From a Run to a sentence (what, where, what is allowed, what to type), or None when there is nothing to say."""


@cache
def divisors(number: int) -> list[int]:
    """The divisors of a positive number, smallest first."""
    return [n for n in range(1, number + 1) if number % n == 0]


def multiples_near(number: int, unit: int) -> str:
    """The positive multiples of a unit next to a number, for a person to choose from."""
    below = number // unit * unit
    return either(n for n in (below, below + unit) if n > 0)


def either(choices: Iterable[object]) -> str:
    """Choices as a sentence lists them: 1, 2 or 4."""
    *first, last = map(str, choices)
    return f"{', '.join(first)} or {last}" if first else last


def counted(runs: int) -> str:
    """So many runs, in words."""
    return f"{runs} run{'s' if runs != 1 else ''}"
