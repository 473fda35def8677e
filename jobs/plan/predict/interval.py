"""Predicted numbers with their intervals of 90 %."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

COVERAGE = 0.9
"""Share of measurements that an interval shall contain."""
DEVIATIONS = NormalDist().inv_cdf((1 + COVERAGE) / 2)
"""Half an interval in standard deviations."""


@dataclass(frozen=True)
class Interval:
    """A prediction, and the limits of its interval."""

    point: float
    low: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        """Return the sum, as if both were off to the same side."""
        return Interval(self.point + other.point, self.low + other.low, self.high + other.high)

    def and_independent(self, *others: Interval) -> Interval:
        """Return the sum with others that are off independently of it: squares of their half widths add up."""
        parts = (self, *others)
        point = sum(each.point for each in parts)
        below, above = (
            math.hypot(*(each.point - each.low for each in parts)),
            math.hypot(*(each.high - each.point for each in parts)),
        )
        return Interval(point, point - below, point + above)

    def scaled(self, factor: float) -> Interval:
        """Return the interval times a factor."""
        return Interval(self.point * factor, self.low * factor, self.high * factor)

    def widened(self, low: float, high: float) -> Interval:
        """Return the interval with another source of uncertainty, at whose limits the prediction has these numbers.

        Logarithms are normal and the sources independent, so squares of deviations add up.
        """
        below, above = (
            math.hypot(math.log(own / self.point), math.log(other / self.point))
            for own, other in ((self.low, low), (self.high, high))
        )
        return Interval(self.point, self.point / math.exp(below), self.point * math.exp(above))

    def at_most(self, limit: float) -> Interval:
        """Return the interval without the part above a limit that no measurement can exceed."""
        return Interval(min(self.point, limit), min(self.low, limit), min(self.high, limit))

    def divides(self, numerator: float) -> Interval:
        """Return a numerator divided by the interval."""
        return Interval(numerator / self.point, numerator / self.high, numerator / self.low)

    def chance_below(self, limit: float) -> float:
        """Return the probability of a value of at most `limit`: logarithms are normal on either side of the point."""
        # The limits need not be at equal ratios from the point, so each side has a deviation of its own.
        edge = self.high if limit > self.point else self.low
        deviation = abs(math.log(edge / self.point)) / DEVIATIONS
        return NormalDist().cdf(math.log(limit / self.point) / deviation) if deviation else float(limit >= self.point)

    def record(self, digits: int | None = None) -> dict[str, float]:
        """Return the numbers as plan.json contains them: whole, or with this number of decimals."""
        return {"point": round(self.point, digits), "low": round(self.low, digits), "high": round(self.high, digits)}
