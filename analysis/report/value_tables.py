"""The tables with one row per value, and their data frames: measurements.csv and profile.csv.

Cells are Python objects, None if absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.formatting import csv_cell
from analysis.logs.measurements import Measurement
from analysis.metrics.profile import RankProfile
from analysis.run import RunResult
from jobs import metrics as m

MEASUREMENTS = ("format", "benchmark", "details", "axis", "at", "axis_unit", "metric", "value", "unit", "path", "line")
PROFILE = ("sweep", "name", "path", "micro_batch_size", "rank", "item", "axis", "metric", "value", "unit")


def measurements_frame(found: Sequence[Measurement]) -> pd.DataFrame:
    """Return a row for each value of a benchmark other than training, with its size or load."""
    rows = [
        (
            each.form,
            each.benchmark,
            each.details or None,
            axis.name if (axis := each.axis) else None,
            each.at(axis) if axis else None,
            axis.unit if axis else None,
            metric.name,
            value,
            metric.unit,
            str(each.path),
            each.line or None,
        )
        for each in found
        for metric, value in each.values.items()
        if metric is not each.axis
    ]
    return pd.DataFrame(rows, columns=list(MEASUREMENTS), dtype=object)


def profile_frame(runs: Sequence[RunResult]) -> pd.DataFrame:
    """Return a row for each value of every profiled rank; `item` is the kernel or collective, else absent."""
    rows = [
        (run.sweep, run.name, str(run.path), run.setting("job.micro_batch_size"), profile.rank, *value)
        for run in runs
        for profile in run.profiles
        for value in values_of(profile)
    ]
    return pd.DataFrame(rows, columns=list(PROFILE), dtype=object)


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


def to_csv(frame: pd.DataFrame) -> str:
    """Return all rows in full precision and SI units, with a line of names; no text is a formula."""
    return str(frame.map(csv_cell).to_csv(index=False, lineterminator="\n"))
