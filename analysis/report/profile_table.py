"""profile.csv and its data frame: shares, collectives and kernels of every profiled rank, one row per value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.formatting import csv_cell
from analysis.metrics.profile import RankProfile
from analysis.run import RunResult
from jobs import metrics as m

FILE_NAME = "profile.csv"
COLUMNS = ("sweep", "name", "path", "micro_batch_size", "rank", "item", "axis", "metric", "value", "unit")


def profile_frame(runs: Sequence[RunResult]) -> pd.DataFrame:
    """Return a row for each value; `item` is the kernel or collective, else absent. Python objects, None if absent."""
    rows = [
        (run.sweep, run.name, str(run.path), run.setting("job.micro_batch_size"), profile.rank, *value)
        for run in runs
        for profile in run.profiles
        for value in values_of(profile)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


def values_of(profile: RankProfile) -> Iterator[tuple[Any, ...]]:
    """Yield the values of a rank: kernel or collective, axis, metric, value, unit."""
    for metric, value in ({m.PROFILED_STEP_TIME: profile.step_time_s} | dict(profile.shares)).items():
        yield None, None, metric.name, value, metric.unit
    for each in profile.collectives:
        shares = {
            m.COLLECTIVE_CALLS: each.calls,
            m.COMMUNICATION_SHARE: each.share,
            m.EXPOSED_COMMUNICATION_SHARE: each.exposed_share,
        }
        for metric, value in shares.items():
            yield each.collective, each.axis, metric.name, value, metric.unit
    for kernel in profile.kernels:
        for metric, value in ((m.KERNEL_TIME, kernel.time_s), (m.KERNEL_CALLS, kernel.calls)):
            yield kernel.name, None, metric.name, value, metric.unit


def to_csv(runs: Sequence[RunResult]) -> str | None:
    """Return all rows in full precision and SI units, with a line of names; None without a profile."""
    frame = profile_frame(runs)
    return None if frame.empty else str(frame.map(csv_cell).to_csv(index=False, lineterminator="\n"))
