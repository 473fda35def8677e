"""The report's tables as pandas data frames, for notebooks and for Parquet: full precision, SI units, absent is <NA>.

The public function is `analysis.frames`. Types follow the values: whole numbers are Int64, other numbers Float64
(metrics always), truth values boolean, all else text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import infer_dtype

from analysis.compare.loss import loss_doubts
from analysis.formatting import published
from analysis.load.discover import read
from analysis.load.kinds.train import latest, step_records
from analysis.report.digest import Digest
from analysis.report.points_table import POINT_METRICS, spread_at
from analysis.report.runs_columns import Row
from analysis.report.runs_table import columns_of, rows_of, runs_frame
from analysis.report.value_tables import measurements_frame, profile_frame
from analysis.run import RunResult
from analysis.scaling.groups import Group, scaling_groups
from analysis.untrusted import number
from jobs import metrics as m
from jobs.metrics import Metric
from jobs.rundir import RunDir, read_records

# Types by the kind that pandas infers; all else is text.
KINDS = {"boolean": "boolean", "integer": "Int64", "floating": "Float64", "mixed-integer-float": "Float64"}


@dataclass(frozen=True)
class Frames:
    """The tables of a report as data frames."""

    runs: pd.DataFrame
    """One row per run, used or not; the columns of runs.csv."""
    points: pd.DataFrame
    """One row per point: medians over repeats; `METRIC_low` and `METRIC_high` are the least and the greatest."""
    steps: pd.DataFrame
    """One row per recorded step of every run, its latest attempt; `path` is that of `runs`."""
    measurements: pd.DataFrame
    """One row per value of a benchmark that is not training; the columns of measurements.csv."""
    profile: pd.DataFrame
    """One row per value of a profiled rank, of its kernels and collectives; the columns of profile.csv."""


def read_frames(paths: Iterable[Path]) -> Frames:
    """Return the frames of all runs below these directories; raise ReportError as `slurmscale report` does."""
    published.cache_clear()
    found = read(paths)
    doubts = loss_doubts(found.runs)
    digest = Digest(found.runs, scaling_groups(found.runs, doubts.keys()), doubts, found.logs)
    return Frames(
        typed_runs(rows_of(digest)),
        points_frame(digest.groups),
        steps_frame(digest.runs),
        typed_table(measurements_frame(digest.measurements), "at", "value"),
        typed_table(profile_frame(digest.runs), "value"),
    )


def typed_runs(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the table of runs.csv with typed columns."""
    frame = runs_frame(rows)
    return pd.DataFrame({each.name: typed(frame[each.name], each.metric) for each in columns_of(rows)})


def typed_table(frame: pd.DataFrame, *numbers: str) -> pd.DataFrame:
    """Return a table of Python objects with typed columns; those named are metrics."""
    return pd.DataFrame(
        {name: frame[name].astype("Float64") if name in numbers else typed(frame[name]) for name in frame.columns}
    )


def points_frame(groups: Sequence[Group]) -> pd.DataFrame:
    """Return one row per point, in the order of the page."""
    points = [(group, point) for group in groups for point in group.points]
    frame = {
        "line": typed([group.label for group, _ in points]),
        "model": typed([group.model for group, _ in points]),
        "engine": typed([group.engine for group, _ in points]),
        "parallelism": typed([group.parallelism for group, _ in points]),
        "scaling": typed([group.stated_mode for group, _ in points]),
        "nodes": pd.array([point.nodes for _, point in points], dtype="Int64"),
        "ranks": pd.array([point.ranks for _, point in points], dtype="Int64"),
        "n": pd.array([len(point.runs) for _, point in points], dtype="Int64"),
        "loss_believed": pd.array([not point.doubtful for _, point in points], dtype="boolean"),
        "reference": typed([group.reference.place if group.reference else None for group, _ in points]),
    }
    for metric in POINT_METRICS:
        spreads = [spread_at(group, point, metric) for group, point in points]
        frame[metric.name] = typed([spread and spread.median for spread in spreads], metric)
        frame[f"{metric.name}_low"] = typed([spread and spread.low for spread in spreads], metric)
        frame[f"{metric.name}_high"] = typed([spread and spread.high for spread in spreads], metric)
    return pd.DataFrame(frame)


def steps_frame(runs: Iterable[RunResult]) -> pd.DataFrame:
    """Return one row per recorded step of every run, used or not, with every metric of a step."""
    columns: dict[str, list[Any]] = defaultdict(list)
    for run in runs:
        for step, record in sorted(steps_of(run).items()):
            columns["sweep"].append(run.sweep)
            columns["name"].append(run.name)
            columns["path"].append(str(run.path))
            # Without numbers in the log it is a position, which counts lines of the log and not steps.
            columns[m.STEP.name].append(step if run.steps_are_numbered else None)
            for metric in m.STEP_METRICS[1:]:
                columns[metric.name].append(number(record, metric))
    frame = {name: typed(columns[name]) for name in ("sweep", "name", "path")}
    frame[m.STEP.name] = pd.array(columns[m.STEP.name], dtype="Int64")
    return pd.DataFrame(frame | {metric.name: typed(columns[metric.name], metric) for metric in m.STEP_METRICS[1:]})


def steps_of(run: RunResult) -> Mapping[int, Mapping[str, Any]]:
    """Return the latest record of every step; without records of our own, the known losses."""
    directory = RunDir(run.path)
    if directory.metrics.is_file():
        with suppress(OSError):  # the reason is in `runs`
            return latest(step_records(read_records(directory.metrics)))
    return {step: {m.LOSS.name: loss} for step, loss in run.losses.items()}


def typed(values: Sequence[Any], metric: Metric | None = None) -> Any:
    """Return an array of the narrowest nullable type that holds all values; None and NaN are absent."""
    column = pd.Series(values, dtype=object)
    kind = "Float64" if metric else KINDS.get(infer_dtype(column), "string")
    if kind != "string":
        with suppress(OverflowError):  # an integer of more than 64 bits
            return column.astype(kind).array
    texts = [None if value is None else published(str(value)) for value in values]
    return pd.array(texts, dtype="string")
