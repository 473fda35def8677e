"""The wall time of a run from those of finished runs with the same settings, of work without a model of its time.

Repeats on as many nodes give the time of another repeat. Otherwise runs on three numbers of nodes or more give the
line log(time) = a + b log(nodes), which is read between the smallest number and twice the largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from jobs.plan.predict.calibration import calibrated_times
from jobs.plan.predict.interval import COVERAGE, Interval
from jobs.schema import Run
from jobs.work.work import work_of

FEWEST_REPEATS = 3
FEWEST_SIZES = 3
FEWEST_RUNS = 4
REACH = 2
"""Largest number of nodes that is predicted, over the largest that was measured: a line through few sizes does not show
where a program stops to scale."""


@dataclass(frozen=True)
class WholeTime:
    """The predicted wall time of a run."""

    time_s: Interval
    basis: str
    """The runs that it is from, as text."""


def whole_time(run: Run) -> WholeTime | str | None:
    """Return the predicted wall time of a run in seconds, why there is none, or None if a model predicts that work."""
    key = work_of(run).settings_digest(run)
    if key is None:
        return None
    measured = calibrated_times(run).get(key, [])
    if not measured:
        return f"unknown: the calibration has no run of these settings. {enough(run.nodes)}"
    return from_repeats(measured, run.nodes) or from_sizes(measured, run.nodes)


def from_repeats(measured: Sequence[tuple[int, float]], nodes: int) -> WholeTime | None:
    """Return the time of one more repeat from (nodes, seconds) of others; None of fewer than three."""
    logs = [math.log(time_s) for size, time_s in measured if size == nodes]
    n = len(logs)
    if n < FEWEST_REPEATS:
        return None
    center = math.fsum(logs) / n
    # The next one differs from the mean of n by s sqrt(1 + 1/n), in logarithms.
    deviation = math.sqrt(math.fsum((each - center) ** 2 for each in logs) / (n - 1) * (1 + 1 / n))
    return WholeTime(around(center, deviation, n - 1), f"{n} runs on {in_words([nodes])}")


def from_sizes(measured: Sequence[tuple[int, float]], nodes: int) -> WholeTime | str:
    """Return the time by the line through (nodes, seconds) in logarithms, or the reason why there is none."""
    sizes, n = sorted({size for size, _ in measured}), len(measured)
    of = f"the calibration has {n} run{'s' * (n > 1)} of these settings, on {in_words(sizes)}"
    if len(sizes) < FEWEST_SIZES or n < FEWEST_RUNS:
        return f"unknown: {of}. {enough(nodes)}"
    if not sizes[0] <= nodes <= REACH * sizes[-1]:
        return f"unknown: {of}, which reach from {sizes[0]} to {REACH * sizes[-1]} nodes"
    x, y = ([math.log(row[column]) for row in measured] for column in (0, 1))
    x_mean, y_mean = math.fsum(x) / n, math.fsum(y) / n
    spread = math.fsum((each - x_mean) ** 2 for each in x)
    slope = math.fsum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / spread
    residuals = [b - y_mean - slope * (a - x_mean) for a, b in zip(x, y, strict=True)]
    away = math.log(nodes) - x_mean
    variance = math.fsum(each**2 for each in residuals) / (n - 2) * (1 + 1 / n + away**2 / spread)
    return WholeTime(around(y_mean + slope * away, math.sqrt(variance), n - 2), f"{n} runs on {in_words(sizes)}")


def enough(nodes: int) -> str:
    """Return as text which runs give the time on this number of nodes."""
    return f"{FEWEST_REPEATS} runs on {in_words([nodes])}, or {FEWEST_RUNS} on {FEWEST_SIZES} numbers of nodes, give it"


def around(center: float, deviation: float, freedom: int) -> Interval:
    """Return the interval of a logarithm, by Student's t."""
    factor = math.exp(float(stdtrit(freedom, (1 + COVERAGE) / 2)) * deviation)
    return Interval(math.exp(center), math.exp(center) / factor, math.exp(center) * factor)


def in_words(sizes: Sequence[int]) -> str:
    """Return numbers of nodes as text."""
    *others, last = map(str, sizes)
    return f"{', '.join(others)} and {last} nodes" if others else f"{last} node{'s' * (sizes[0] > 1)}"
