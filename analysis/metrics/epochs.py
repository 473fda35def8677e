"""The time of a pass over the data, for our runs; that of a log: analysis.logs.epochs."""

from __future__ import annotations

from analysis.run import RunResult
from jobs import metrics as m
from jobs.metrics import Metric


def epoch_values(run: RunResult) -> dict[Metric, float]:
    """Return EPOCH_TIME of a run of ours that trained a number of epochs; empty for any other."""
    epochs, useful_s = run.setting("job.epochs"), run.values.get(m.USEFUL_TIME)
    return {m.EPOCH_TIME: useful_s / epochs} if epochs and useful_s is not None else {}
