"""Confidence intervals of medians, of ratios and of paired ratios over repeats."""

from __future__ import annotations

import bisect
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
NORMALITY = "It assumes normally distributed logarithms, which is not checked: a few repeats could not show it."
# A difference counts as detectable if it is found in this share of repetitions of the comparison.
POWER = 0.8
# More pairs nobody runs.
MOST_PAIRS = 100_000


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


def prediction_limit(values: Sequence[float], error: float) -> tuple[float, float]:
    """Return the geometric mean of values, and the distance of logarithms that one further value exceeds on one side.

    It does so with a probability of `error` (Student's t prediction interval of the logarithms; Hahn, J. Am. Stat.
    Assoc. 64, 1969). The median of several further values exceeds it less often.
    """
    logs = [math.log(value) for value in values]
    n = len(logs)
    half = float(stdtrit(n - 1, 1 - error)) * statistics.stdev(logs) * math.sqrt(1 + 1 / n)
    return math.exp(statistics.fmean(logs)), half


def detectable(ratios: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Return the relative difference that as many pairs with this spread find with POWER; None if they do not vary."""
    if len(ratios) < FEWEST_FOR_MEAN or len(set(ratios)) == 1:
        return None
    return math.expm1(log_detectable(log_deviation(ratios), len(ratios), confidence))


def pairs_needed(ratios: Sequence[float], difference: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the fewest pairs with this spread that find a relative difference with POWER; None above MOST_PAIRS."""
    deviation = log_deviation(ratios)
    enough = range(FEWEST_FOR_MEAN, MOST_PAIRS + 1)
    place = bisect.bisect_left(
        enough, True, key=lambda n: log_detectable(deviation, n, confidence) <= math.log1p(difference)
    )
    return enough[place] if place < len(enough) else None


def log_deviation(ratios: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms of ratios."""
    return statistics.stdev(math.log(ratio) for ratio in ratios)


def log_detectable(deviation: float, n: int, confidence: float) -> float:
    """Return the difference of mean logarithms that a t interval over n pairs leaves out with POWER."""
    quantiles = float(stdtrit(n - 1, (1 + confidence) / 2)) + float(stdtrit(n - 1, POWER))
    return quantiles * deviation / math.sqrt(n)
