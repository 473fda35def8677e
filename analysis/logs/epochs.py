"""The time of an epoch in a log, as reported or from the times of its steps, and the rate of its steps by that time."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from analysis.logs.file import LogFile
from analysis.logs.step import LogStep
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m
from jobs.metrics import Metric


def epoch_times(file: LogFile, steps: Sequence[LogStep]) -> dict[Metric, float]:
    """Return EPOCH_TIME of a log; empty if it reports none and none follows from its steps."""
    records = (record for records in file.records.values() for record in records)
    times_s = [record.values[a.EPOCH_TIME] for record in records if a.EPOCH_TIME in record.values] or whole_epochs(
        steps
    )
    return {m.EPOCH_TIME: statistics.median(times_s)} if times_s else {}


def throughput_of_epochs(file: LogFile, batch: float | None) -> dict[Metric, float]:
    """Return the steps per second of whole epochs, and the samples if the batch is known; empty if it does not follow.

    The first epoch has the warm-up and counts only if there is no other.
    """
    ends = [
        record.values for record in file.of(Kind.summary) if {a.EPOCH_TIME, m.STEP, a.EPOCH} <= record.values.keys()
    ]
    epochs = [
        (end[m.STEP] - before[m.STEP], end[a.EPOCH_TIME])
        for before, end in pairwise(ends)
        if end[a.EPOCH] == before[a.EPOCH] + 1 and end[m.STEP] > before[m.STEP]
    ]
    if not epochs and ends and ends[0][a.EPOCH] == 0:
        epochs = [(ends[0][m.STEP], ends[0][a.EPOCH_TIME])]
    if not epochs:
        return {}
    rate = math.fsum(steps for steps, _ in epochs) / math.fsum(time_s for _, time_s in epochs)
    return {a.STEPS_PER_S: rate} | ({} if batch is None else {a.SAMPLES_PER_S: rate * batch})


def whole_epochs(steps: Sequence[LogStep]) -> list[float]:
    """Return the summed step times of the epochs that another one follows and precedes, all of their steps logged.

    The first epoch begins the log and the last one may end it early; a log of every tenth step has a tenth of the time.
    """
    found: dict[tuple[int, float], list[LogStep]] = defaultdict(list)
    for step in steps:
        if a.EPOCH in step.values:
            found[step.attempt, step.values[a.EPOCH]].append(step)
    keys = list(found)
    times_s = []
    for before, key, after in zip(keys, keys[1:], keys[2:], strict=False):
        one_training = before[0] == key[0] == after[0] and before[1] + 1 == key[1] == after[1] - 1
        if one_training and every_step(found[before][-1:] + found[key] + found[after][:1]):
            times_s.append(math.fsum(step.values[m.STEP_TIME] for step in found[key]))
    return times_s


def every_step(steps: Sequence[LogStep]) -> bool:
    """Return True if consecutive steps are timed and numbered without a gap."""
    numbers = [step.values.get(m.STEP) for step in steps]
    timed = all(m.STEP_TIME in step.values for step in steps)
    return timed and all(one is not None and other is not None and other == one + 1 for one, other in pairwise(numbers))
