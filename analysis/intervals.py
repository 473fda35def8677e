"""Confidence intervals of medians, of ratios and of paired ratios over repeats."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, stdtrit

# At least this for an interval of the median, exactly this for one of a mean.
CONFIDENCE = 0.95
# Fewer repeats have no interval of the median with this confidence.
FEWEST_FOR_MEDIAN = 6
# Fewer repeats give no usable variance.
FEWEST_FOR_MEAN = 3


def coverage(n: int, k: int) -> float:
    """Return the probability that the k-th smallest to the k-th largest of n repeats contain the median.

    Repeats are independent, of any distribution. Outside is a binomial tail, twice: all but k - 1 of them are above the
    median, or all but k - 1 below it.
    """
    return float(1 - 2 * bdtr(k - 1, n, 0.5))


@functools.cache
def interval_rank(n: int) -> int:
    """Return the largest k whose coverage is at least CONFIDENCE; 0 for fewer than FEWEST_FOR_MEDIAN repeats."""
    return int(np.sum(1 - 2 * bdtr(np.arange(n // 2), n, 0.5) >= CONFIDENCE))


@dataclass(frozen=True)
class Spread:
    """A median over repeats with the smallest and the largest of them."""

    median: float
    low: float
    high: float
    n: int
    interval: tuple[float, float] | None = None
    """Confidence interval of the median, by `interval_rank`; None for fewer than FEWEST_FOR_MEDIAN repeats."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        ordered = sorted(values)
        k = interval_rank(len(ordered))
        interval = (ordered[k - 1], ordered[-k]) if k else None
        return cls(statistics.median(ordered), ordered[0], ordered[-1], len(ordered), interval)

    def over(self, reference: float) -> Spread:
        """Return the spread of the repeats divided by a reference."""
        interval = self.interval and (self.interval[0] / reference, self.interval[1] / reference)
        return Spread(self.median / reference, self.low / reference, self.high / reference, self.n, interval)


def welch_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of the geometric mean of b over that of a; None with too few repeats or no variance.

    Welch's t interval at CONFIDENCE of the difference of mean logarithms (Welch, Biometrika 34, 1947), exponentiated.
    """
    if min(len(a), len(b)) < FEWEST_FOR_MEAN:
        return None
    logs = [[math.log(value) for value in side] for side in (a, b)]
    errors = [statistics.variance(side) / len(side) for side in logs]
    if sum(errors) == 0:
        return None
    freedom = sum(errors) ** 2 / sum(error**2 / (len(side) - 1) for error, side in zip(errors, logs, strict=True))
    middle = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(sum(errors))
    return math.exp(middle - half), math.exp(middle + half)


def paired_interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval of the geometric mean of ratios of pairs; None with too few pairs or no variance.

    Student's t interval of their mean logarithm, exponentiated.
    """
    if len(ratios) < FEWEST_FOR_MEAN or len(set(ratios)) == 1:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    middle, half = statistics.fmean(logs), float(stdtrit(len(logs) - 1, (1 + confidence) / 2)) * error
    return math.exp(middle - half), math.exp(middle + half)
