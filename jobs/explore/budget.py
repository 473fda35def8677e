"""The number of trials in each rung that a budget allows."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from analysis.compare.tuning import TrialRun
from jobs.errors import ConfigError
from jobs.schema import Tune

FEWEST = 2
"""Trials of a rung: the baseline and one more."""


def rungs(settings: Tune, first: int) -> list[int]:
    """Return the trials of each rung, the baseline among them, if the first rung has so many."""
    found = [first]
    for _ in settings.steps[1:]:
        found.append(1 + max(1, math.ceil((found[-1] - 1) / settings.reduction)))
    return found


def confirmation_runs(settings: Tune) -> int:
    """Return the runs that compare the best with the baseline: a first repeat of the baseline, then pairs."""
    return 1 + 2 * settings.pairs if settings.pairs else 0


def first_rung(settings: Tune, legal: int) -> int:
    """Return the trials of the first rung: at most the legal points; raise ConfigError if the budget is too small."""
    confirmed = confirmation_runs(settings)

    def total(first: int) -> int:
        return sum(rungs(settings, first)) + confirmed

    if total(FEWEST) > settings.runs:
        counts = ", ".join(
            f"{count} of {steps} steps" for count, steps in zip(rungs(settings, FEWEST), settings.steps, strict=True)
        )
        raise ConfigError(
            f"tune.runs={settings.runs} is too small for one rung: the fewest runs are {counts}"
            f"{f' and {confirmed} for the confirmation' if confirmed else ''}. Set tune.runs={total(FEWEST)} or more, "
            "fewer tune.steps, or tune.pairs=0."
        )
    return max(first for first in range(FEWEST, legal + 1) if total(first) <= settings.runs)


@dataclass(frozen=True)
class Spent:
    """The budget used so far."""

    settings: Tune
    begun: str
    """Time of the first start of the tuning."""
    rank_hours: float
    hours_a_run: Mapping[int, float]
    """Median rank-hours of a run by steps."""

    @classmethod
    def of(cls, settings: Tune, begun: str, trials: Sequence[TrialRun]) -> Spent:
        """Return what these trials have used."""
        hours_a_run = {
            steps: statistics.median(trial.rank_hours for trial in trials if trial.steps == steps)
            for steps in {trial.steps for trial in trials}
        }
        return cls(settings, begun, sum(trial.rank_hours for trial in trials), hours_a_run)

    def hours_of(self, steps: int) -> float:
        """Return the expected rank-hours of a run: measured, or scaled from the nearest shorter rung; 0 if unknown."""
        known = [each for each in self.hours_a_run if each <= steps]
        return self.hours_a_run[max(known)] * steps / max(known) if known else 0.0

    def is_late(self) -> bool:
        """Return whether the wall time is used up."""
        limit = self.settings.wall_time_min
        elapsed_s = time.time() - datetime.fromisoformat(self.begun).timestamp()
        return limit is not None and elapsed_s > limit * 60

    def allows(self, counts: Sequence[int], steps: Sequence[int], confirmed: int) -> bool:
        """Return whether so many further runs of each number of steps, and the confirmation, are within the budget."""
        if self.settings.gpu_hours is None:
            return True
        hours = sum(count * self.hours_of(each) for count, each in zip(counts, steps, strict=True))
        hours += confirmed * self.hours_of(steps[-1])
        return self.rank_hours + hours <= self.settings.gpu_hours
