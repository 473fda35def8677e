"""Step-time variation of a run: single slow steps, and a drift of the step time over the run.

Both rules are robust: neither a few slow steps nor a skewed distribution of step times makes a drift, and slow steps do
not hide themselves by widening the spread. Definitions and limits: jobs.metrics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jobs import metrics as m
from jobs.metrics import Metric

MOST_FAR_OUT_SHARE = 0.02
# A shorter step did less work: the last batch of an epoch, or a skipped one.
SHORT_SHARE = 0.5
# A lasting change of the step time has so many steps on either side.
SHIFT_FEWEST_STEPS, SHIFT_SHARE = 10, 0.05
SHIFT_SEARCHED = 5
STEADY_RULE = (
    "Rates are work divided by time over the steady steps. Slow steps (slow_steps below) are left out of the rate and "
    f"named if there is one or they are at most {100 * MOST_FAR_OUT_SHARE:g} % of the steady steps: one pause of the "
    "machine, or the last iteration of a job that was ending, is no part of its speed. More of them are part of it. "
    f"The same holds for steps shorter than {SHORT_SHARE:g} times the median, such as the last batch of an epoch."
)


def far_out(step_times_s: Mapping[int, float]) -> list[int]:
    """Return the steady steps that are not in the rate, according to STEADY_RULE; the report names each."""
    if len(step_times_s) < m.SLOW_FEWEST_STEPS:
        return []
    most = max(1, MOST_FAR_OUT_SHARE * len(step_times_s))
    kinds = (slow_steps(step_times_s), short_steps(step_times_s))
    return sorted(step for steps in kinds if len(steps) <= most for step in steps)


def short_steps(step_times_s: Mapping[int, float]) -> list[int]:
    """Return the steps that are too short for the work of the others."""
    middle_s = float(np.median(np.fromiter(step_times_s.values(), float)))
    return [step for step, time_s in step_times_s.items() if time_s < SHORT_SHARE * middle_s]


def far_out_share(step_times_s: Mapping[int, float], torn: Collection[int]) -> float:
    """Return by which share the rate would be lower with the steps that are left out of it, at equal work a step.

    Below 0 if it would be higher.
    """
    kept_s = math.fsum(time_s for step, time_s in step_times_s.items() if step not in torn)
    if not (torn and kept_s):
        return 0.0
    mean_s = kept_s / (len(step_times_s) - len(torn))
    return 1 - mean_s * len(step_times_s) / math.fsum(step_times_s.values())


def step_variation(step_times_s: Mapping[int, float]) -> dict[Metric, float]:
    """Return slow steps and drift of a run from its steady step times by step, each only if it has enough steps."""
    times_s = np.array([step_times_s[step] for step in sorted(step_times_s)])
    slow = slowness(step_times_s, times_s) if len(times_s) >= m.SLOW_FEWEST_STEPS else {}
    return slow | drift(step_times_s)


def slowness(step_times_s: Mapping[int, float], times_s: NDArray[np.float64]) -> dict[Metric, float]:
    """Return the number of slow steps and their cost."""
    slow = slow_steps(step_times_s)
    beyond_s = sum(step_times_s[step] for step in slow) - len(slow) * float(np.median(times_s))
    return {m.SLOW_STEPS: float(len(slow)), m.SLOW_STEPS_SHARE: beyond_s / float(times_s.sum())}


def slow_steps(step_times_s: Mapping[int, float]) -> list[int]:
    """Return the steps that SLOW_STEPS counts."""
    times_s = np.fromiter(step_times_s.values(), float)
    middle = float(np.median(times_s))
    deviation_s = m.MAD_TO_DEVIATION * float(np.median(np.abs(times_s - middle)))
    limit_s = max(m.SLOW_TIMES * middle, middle + m.SLOW_DEVIATIONS * deviation_s)
    return sorted(step for step, time_s in step_times_s.items() if time_s > limit_s)


def drift(step_times_s: Mapping[int, float]) -> dict[Metric, float]:
    """Return the drift of the step time over the run, with its p; empty with too few steps.

    Times may be in any unit: the drift is relative.

    Over blocks, because neighbouring steps are alike, which makes single ones surer than they are. Slope: Sen 1968,
    https://doi.org/10.1080/01621459.1968.10480934. By hand, since importing scipy.stats takes longer than a report.
    """
    times_s = np.array([step_times_s[step] for step in sorted(step_times_s)])
    if len(times_s) < m.DRIFT_FEWEST_STEPS:
        return {}
    blocks = np.array([np.median(block) for block in np.array_split(times_s, m.DRIFT_BLOCKS)])
    earlier, later = np.triu_indices(len(blocks), 1)
    rises_s = blocks[later] - blocks[earlier]
    values = {
        m.STEP_TIME_DRIFT: float(np.median(rises_s / (later - earlier))) * len(blocks) / float(np.median(times_s))
    }
    return values | ({m.STEP_TIME_DRIFT_P: chance(blocks, int(np.sign(rises_s).sum()))} if rises_s.any() else {})


def chance(blocks: NDArray[np.float64], balance: int) -> float:
    """Return the two-sided p of Kendall's S, the balance of rises and falls over all pairs.

    Kendall's test (Rank Correlation Methods, 1970): exact by the number of permutations with that many inversions;
    if values are equal, by the normal distribution with the variance corrected for ties.
    """
    n = len(blocks)
    _, equal = np.unique(blocks, return_counts=True)
    if equal.max() > 1:
        variance = (n * (n - 1) * (2 * n + 5) - (equal * (equal - 1) * (2 * equal + 5)).sum()) / 18
        return math.erfc(abs(balance) / math.sqrt(2 * variance))
    by_inversions = functools.reduce(np.convolve, [np.ones(count) for count in range(1, n + 1)])
    fewest = (n * (n - 1) // 2 - abs(balance)) // 2
    return min(1.0, 2 * float(by_inversions[: fewest + 1].sum()) / math.factorial(n))


class Shift(NamedTuple):
    """A lasting change of the step time, between two steps of a run."""

    step: int
    """The first step after it."""
    before_s: float
    after_s: float
    """Median step times."""


def level_shift(step_times_s: Mapping[int, float]) -> Shift | None:
    """Return the largest lasting change of the step time, as throttling causes it; None if there is none.

    The split is where the ranks of both sides differ most (Pettitt 1979, https://doi.org/10.2307/2346729). It counts if
    the medians differ by more than SHIFT_SHARE and nine of ten steps on one side are above nine of ten on the other,
    which neither noise nor single slow steps give. A drift has no such split, or has it besides its own warning.
    """
    steps = sorted(step_times_s)
    times_s = np.array([step_times_s[step] for step in steps])
    if len(times_s) < 2 * SHIFT_FEWEST_STEPS:
        return None
    ranks = times_s.argsort(kind="stable").argsort(kind="stable") + 1.0
    ends = np.arange(SHIFT_FEWEST_STEPS, len(times_s) - SHIFT_FEWEST_STEPS + 1)
    balance = 2 * ranks.cumsum()[ends - 1] - ends * (len(times_s) + 1)
    near = int(ends[np.abs(balance).argmax()])
    # Ranks find the split but for a few steps; the medians of both sides fit best at the step itself.
    around = [int(end) for end in ends if abs(end - near) <= SHIFT_SEARCHED]
    end = min(
        around, key=lambda end: sum(np.abs(side - np.median(side)).sum() for side in (times_s[:end], times_s[end:]))
    )
    sides = times_s[:end], times_s[end:]
    before_s, after_s = (float(np.median(side)) for side in sides)
    low, high = sorted(sides, key=np.median)
    apart = np.percentile(low, 90) < np.percentile(high, 10)
    large = max(before_s, after_s) > (1 + SHIFT_SHARE) * min(before_s, after_s)
    return Shift(steps[end], before_s, after_s) if apart and large else None
