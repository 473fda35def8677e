"""How sure a number is that was measured several times: intervals of medians, of ratios, and of paired ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

CONFIDENCE = 0.95
# With fewer repeats a variance is hardly known.
FEWEST_FOR_MEAN = 3


def welch_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """The interval at CONFIDENCE of geometric mean of B over that of A; None with too few repeats or no variance.

    Welch's t interval of the difference of mean logarithms (Welch, Biometrika 34, 1947), exponentiated.
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
    """The interval of the geometric mean of ratios of pairs; None with too few pairs or no variance.

    Student's t interval of their mean logarithm, exponentiated.
    """
    if len(ratios) < FEWEST_FOR_MEAN or len(set(ratios)) == 1:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    middle, half = statistics.fmean(logs), float(stdtrit(len(logs) - 1, (1 + confidence) / 2)) * error
    return math.exp(middle - half), math.exp(middle + half)
