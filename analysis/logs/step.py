"""One step of a log, merged over the ranks that print it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Record
from jobs import metrics as m
from jobs.metrics import Better, Metric

# Metrics that identify a step; the first one in a record counts.
POSITIONS = (a.MICRO_BATCHES_DONE, m.STEP, a.SAMPLES_DONE, a.TOKENS_DONE, a.ITERATION, a.UNIX_TIME)
# Each rank reports the loss of its own samples.
AVERAGED = {m.LOSS, m.EVALUATION_LOSS}
RATES = (m.TOKENS_PER_S, a.SAMPLES_PER_S, m.TOKENS_PER_S_PER_RANK, a.SAMPLES_PER_S_TIMED)
Place = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class LogStep:
    """One step, merged over all ranks."""

    attempt: int
    """From 1."""
    place: Place
    values: dict[Metric, float]
    line: int
    """The first line that reports it."""
    stamp: str | None = None
    """The time in that line, as written."""
    derived: str | None = None
    """The derivation of its time, if its program reports none."""

    @property
    def time_s(self) -> float | None:
        """Return the step time or a value proportional to it; None if the log reports neither time nor rate."""
        if m.STEP_TIME in self.values:
            return self.values[m.STEP_TIME]
        return next((1 / self.values[rate] for rate in RATES if self.values.get(rate, 0) > 0), None)


def place_of(record: Record, count: int) -> Place:
    """Return the position of a record in the training, for order and equality; else the number of records before it."""
    epoch = (record.values[a.EPOCH],) if a.ITERATION in record.values and a.EPOCH in record.values else ()
    return *epoch, next((record.values[each] for each in POSITIONS if each in record.values), float(count))


def slowest(ranks: Sequence[Record]) -> dict[Metric, float]:
    """Return each metric's worst value over ranks, because a step ends with its slowest rank; the mean of losses."""
    values: dict[Metric, list[float]] = defaultdict(list)
    for record in ranks:
        for metric, value in record.values.items():
            values[metric].append(value)
    return {metric: of_ranks(metric, reported) for metric, reported in values.items()}


def of_ranks(metric: Metric, reported: Sequence[float]) -> float:
    """Return one value for those of several ranks."""
    if metric in AVERAGED:
        return statistics.fmean(reported)
    if metric.better is Better.neither:
        return reported[0]
    return max(reported) if metric.better is Better.low else min(reported)
