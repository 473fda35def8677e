"""The core of every comparison: match the members of two sides, divide B by A, and decide what the repeats prove.

A is compared against: one of two sets of runs, a reference table, or the baseline of a campaign. B is judged.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from analysis.intervals import CONFIDENCE, FEWEST_FOR_MEAN, paired_interval, welch_interval

Member = TypeVar("Member")
Key = TypeVar("Key", bound=Hashable)


# --- matching --------------------------------------------------------------------------------------------------


def matched(
    a: Iterable[Member], b: Iterable[Member], key: Callable[[Member], Key]
) -> dict[Key, tuple[list[Member], list[Member]]]:
    """Return the members of A and of B by key: first the keys of A, then those that only B has."""
    found: dict[Key, tuple[list[Member], list[Member]]] = {}
    for side, members in enumerate((a, b)):
        for member in members:
            found.setdefault(key(member), ([], []))[side].append(member)
    return found


def unequal_keys(own: Mapping[str, Any], other: Mapping[str, Any], ignored: Collection[str]) -> list[str]:
    """Return the keys whose values differ, without the ignored ones; an absent value is None."""
    return [key for key in {**own, **other} if key not in ignored and own.get(key) != other.get(key)]


def clauses(parts: Sequence[str], most: int) -> str:
    """Join the first parts by semicolons and count the rest."""
    more = len(parts) - most
    return "; ".join(parts[:most]) + (f"; and {more} more" if more > 0 else "")


# --- ratio and verdict -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """B divided by A, over repeats."""

    middle: float
    """Ratio of medians of two sides, or geometric mean of the ratios of pairs."""
    low: float
    """Smallest ratio of any repeat of B to any of A, or of any pair."""
    high: float
    """Largest ratio of any repeat of B to any of A, or of any pair."""
    n: tuple[int, int]
    """Repeats of A and of B."""
    interval: tuple[float, float] | None
    """Interval of the ratio of geometric means; None with too few repeats, or where none varies."""

    @classmethod
    def of_sides(cls, a: Sequence[float], b: Sequence[float]) -> Ratio:
        """Return the ratio of independent repeats, all positive."""
        return cls(
            middle=statistics.median(b) / statistics.median(a),
            low=min(b) / max(a),
            high=max(b) / min(a),
            n=(len(a), len(b)),
            interval=welch_interval(a, b),
        )

    @classmethod
    def of_pairs(cls, ratios: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
        """Return the ratio of repeats that ran in pairs, from at least one ratio B / A of a pair."""
        return cls(
            middle=statistics.geometric_mean(ratios),
            low=min(ratios),
            high=max(ratios),
            n=(len(ratios), len(ratios)),
            interval=paired_interval(ratios, confidence),
        )

    @property
    def too_few(self) -> bool:
        """Return True if there are too few repeats for an interval."""
        return min(self.n) < FEWEST_FOR_MEAN

    @property
    def direction(self) -> int:
        """1 if the interval lies above 1, -1 if below; 0 if it contains 1 or does not exist."""
        if self.interval is None:
            return 0
        return (self.interval[0] > 1) - (self.interval[1] < 1)


def relative_change(value: float, reference: float) -> float:
    """Return the change of a value as a share of its reference."""
    return (value - reference) / max(abs(reference), sys.float_info.min)


def change_direction(change: float, tolerance: float) -> int:
    """Return the sign of a relative change that exceeds a tolerance, and 0 for one within it."""
    # A change that equals the tolerance, up to rounding, is within it.
    return 0 if abs(change) <= tolerance * (1 + 1e-9) else 1 if change > 0 else -1
