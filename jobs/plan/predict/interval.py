"""Predicted numbers with their intervals of 90 %."""

from __future__ import annotations

from dataclasses import dataclass

COVERAGE = 0.9
"""Share of measurements that an interval shall contain."""


@dataclass(frozen=True)
class Interval:
    """A prediction, and the limits of its interval."""

    point: float
    low: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        """Return the sum, as if both were off to the same side."""
        return Interval(self.point + other.point, self.low + other.low, self.high + other.high)

    def record(self) -> dict[str, int]:
        """Return the numbers as plan.json contains them."""
        return {"point": round(self.point), "low": round(self.low), "high": round(self.high)}
