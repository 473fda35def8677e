"""What is predicted of a trial before it runs: its step time and its chance of fitting the memory of its GPU."""

from __future__ import annotations

import math
from statistics import NormalDist

from jobs.plan.predict.interval import COVERAGE
from jobs.plan.predict.memory import memory
from jobs.plan.predict.speed import speed
from jobs.plan.rules.memory import GIB
from jobs.schema import Run

DEVIATIONS = NormalDist().inv_cdf((1 + COVERAGE) / 2)
"""Half an interval in standard deviations."""
LIKELY = 0.95
"""A point with a smaller chance of fitting is one of tight memory: the upper end of its interval does not fit."""


def predicted_step_s(run: Run) -> float | None:
    """Return the predicted step time; None where the rates of the run's GPU are not known."""
    found = speed(run)
    return None if found is None else found.step_time_s.point


def chance_of_fitting(run: Run) -> float:
    """Return the probability that a run fits its GPU; 1 where the memory of that is unknown."""
    if run.gpu.memory_gb is None:
        return 1.0
    predicted = memory(run).device
    deviation = math.log(predicted.high / predicted.point) / DEVIATIONS
    return NormalDist(0, deviation).cdf(math.log(run.gpu.memory_gb * GIB / predicted.point))
