"""One row per run, used or not, for spreadsheets (full precision, SI units) and for people (rounded).

A column has a name, a source of its value, and a heading if the page shows it. Every metric of a run (jobs.metrics) has
a column.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.failures.runs import Failure
from analysis.formatting import ABSENT, csv_cell, markdown_cell, shown, title
from analysis.identity import compared as compared_settings
from analysis.metrics.communication import axis_order, degrees
from analysis.parsers import log_metrics as a
from analysis.report.sections.checkpoints import failures, written
from analysis.report.sections.goodput import lost_words
from analysis.run import RunResult
from analysis.scaling.cost import relative_costs
from analysis.scaling.groups import Group, Point
from analysis.untrusted import lookup
from jobs import metrics as m
from jobs.metrics import Metric
from jobs.parallelism import AXES, Axis


@dataclass(frozen=True)
class Row:
    """A run with its point; without one if the run is not used."""

    run: RunResult
    group: Group | None = None
    point: Point | None = None
    doubt: str | None = None
    ended: Failure | None = None
    """The failure of the run, if any."""
    compared: Mapping[Metric, float | None] = field(default_factory=dict)
    """SPEEDUP and EFFICIENCY of its point, and its RELATIVE_COST: beside the reference of its line."""
    settings_digest: str | None = None
    """Digest of all compared settings; it separates lines whose columns are equal."""

    @property
    def reference(self) -> str | None:
        """The reference point of speedup and efficiency."""
        return self.group.reference.place if self.group and self.group.reference else None

    def measured(self, metric: Metric) -> float | None:
        """Return a metric of the run; None if it is absent."""
        return self.compared.get(metric, self.run.values.get(metric))


def rows_of(
    runs: Iterable[RunResult],
    groups: Iterable[Group],
    doubts: Mapping[Path, str],
    failures: Mapping[Path, Failure] | None = None,
) -> list[Row]:
    """Return one row per run, in the order given."""
    failures = failures or {}
    groups = list(groups)
    costs = relative_costs(groups)
    rows: dict[Path, Row] = {}
    for group in groups:
        # All runs of a line have the same digest.
        digest = settings_digest(group.repeats[0])
        for point in group.points:
            speedup, efficiency = group.speedup(point), group.efficiency(point)
            for run in point.repeats:
                compared = {
                    m.SPEEDUP: speedup.median if speedup else None,
                    m.EFFICIENCY: efficiency.median if efficiency else None,
                    m.RELATIVE_COST: costs.get(run.path),
                }
                doubt, ended = doubts.get(run.path), failures.get(run.path)
                rows[run.path] = Row(run, group, point, doubt, ended, compared, digest)
    return [
        rows.get(run.path)
        or Row(run, doubt=doubts.get(run.path), ended=failures.get(run.path), settings_digest=settings_digest(run))
        for run in runs
    ]


@dataclass(frozen=True)
class Column:
    """A column: its name in the CSV, its value, and its heading if the page shows it."""

    name: str
    value: Callable[[Row], Any]
    heading: str | None = None
    metric: Metric | None = None

    def text(self, row: Row) -> str:
        """Return the value as shown on the page."""
        value = self.value(row)
        if value is None:
            return ABSENT
        if self.metric is not None:
            return shown(self.metric, value)
        return f"{value:,}" if is_count(value) else str(value)

    def is_number(self, row: Row) -> bool:
        """Return True if the value is aligned as a number."""
        return self.metric is not None or is_count(self.value(row))


def is_count(value: object) -> bool:
    """Return True for a number; booleans are not numbers here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def setting(name: str, key: str, heading: str | None = None) -> Column:
    """Return a column of a value in the configuration; None for a section."""
    return Column(name, lambda row: None if isinstance(value := row.run.setting(key), dict) else value, heading)


def planned(name: str, key: str, heading: str | None = None) -> Column:
    """Return a column from the plan."""
    return Column(name, lambda row: lookup(row.run.plan, key), heading)


def degree(axis: Axis) -> Column:
    """Return a column of the degree of an axis of the rank grid."""
    return Column(axis.name, lambda row: (degrees(row.run.plan) or {}).get(axis.name), axis.heading)


def started(name: str, key: str, heading: str | None = None) -> Column:
    """Return a column from the latest `started` event."""
    return Column(name, lambda row: row.run.started.get(key), heading)


def measured(metric: Metric) -> Column:
    """Return a column of a metric of the run."""
    return Column(metric.name, lambda row: row.measured(metric), title(metric) if metric.on_page else None, metric)


SETTINGS = (
    Column("name", lambda row: row.run.name, "Run"),
    Column("sweep", lambda row: row.run.sweep, "Sweep"),
    setting("model", "model.name", "Model"),
    planned("parameters", "parameters"),
    setting("parallelism", "parallelism.name", "Parallelism"),
    setting("engine", "engine.kind", "Engine"),
    *map(degree, AXES),
    setting("nodes", "nodes", "Nodes"),
    setting("ranks_per_node", "ranks_per_node"),
    Column("ranks", lambda row: row.run.ranks, "Ranks"),
    setting("micro_batch_size", "job.micro_batch_size", "MBS"),
    planned("accumulation", "accumulation", "Accumulation"),
    planned("global_batch_size", "global_batch_size", "GBS"),
    setting("sequence_length", "job.sequence_length", "Sequence length"),
    setting("scaling", "scaling.mode", "Scaling"),
    setting("precision", "job.precision", "Precision"),
    setting("job", "job.name"),
    setting("data", "data.name"),
    setting("steps", "job.steps"),
    setting("epochs", "job.epochs"),
    Column("settings_digest", lambda row: row.settings_digest),
    setting("repeat", "repeat", "Repeat"),
    started("device", "device"),
    started("device_name", "device_name"),
    started("emulated_nodes", "emulated_nodes"),
    started("kernels", "kernels"),
    Column("transport", lambda row: row.run.transport),
    Column("steady_steps", lambda row: row.run.steady_steps if row.run.used else None, "Steady steps"),
)
# These stand first, in this order; every other metric of a run follows in the order of the registry.
MEASURED = (
    measured(m.TOKENS_PER_S),
    measured(m.TOKENS_PER_S_PER_RANK),
    measured(a.SAMPLES_PER_S),
    measured(a.SAMPLES_PER_S_PER_RANK),
    measured(a.STEPS_PER_S),
    measured(a.TIME_TO_TRAIN),
    measured(a.TRAINING_TIME),
    measured(m.STEP_TIME_MEDIAN),
    measured(m.STEP_TIME_P10),
    measured(m.STEP_TIME_P90),
    measured(m.SLOW_STEPS),
    measured(m.SLOW_STEPS_SHARE),
    measured(m.STRAGGLER_SHARE),
    measured(m.STEP_TIME_DRIFT),
    measured(m.STEP_TIME_DRIFT_P),
    measured(m.SPEEDUP),
    measured(m.EFFICIENCY),
    Column("reference", lambda row: row.reference),
    measured(m.MFU),
    measured(m.HFU),
    measured(m.MEMORY_PEAK),
    measured(m.MEMORY_RESERVED_PEAK),
    measured(m.PARAMETERS_HELD),
    measured(m.PARAMETERS_TRAINED),
    measured(m.COLLECTIVE_BYTES),
    measured(m.COLLECTIVE_CALLS),
    measured(m.FINAL_LOSS),
    measured(m.EVALUATION_LOSS),
    measured(m.EVALUATION_PERPLEXITY),
    measured(a.EVALUATION_SCORE),
    measured(m.EVALUATION_LABELS),
    measured(m.EVALUATION_SAMPLES),
    measured(m.STARTUP_TIME),
    *map(measured, m.STARTUP_PARTS),
    measured(m.FIRST_STEP_TIME),
    measured(m.WARMUP_TIME),
    measured(m.STEADY_TIME),
    measured(m.CHECKPOINT_TOTAL_TIME),
    measured(m.OTHER_TIME),
    measured(m.TOTAL_TIME),
    Column("checkpoints", lambda row: written(row.run)),
    Column("checkpoints_failed", lambda row: len(failures(row.run))),
    measured(m.CHECKPOINT_SIZE),
    measured(m.CHECKPOINT_STALL),
    measured(m.CHECKPOINT_STALL_SHARE),
    measured(m.CHECKPOINT_BANDWIDTH),
    measured(m.CHECKPOINT_BANDWIDTH_LOW),
    measured(m.CHECKPOINT_BANDWIDTH_HIGH),
    measured(m.GOODPUT),
    measured(m.RUN_TIME),
    *map(measured, m.GOODPUT_PARTS),
    measured(m.LOST_STEPS),
    measured(m.TOKENS_TRAINED),
    measured(m.SAMPLES_TRAINED),
    measured(m.SAMPLES_PER_STEP),
)
OUTCOME = (
    Column("lost_to", lambda row: lost_words(row.run.lost_to) or None),
    Column("attempts", lambda row: row.run.attempts, "Attempts"),
    Column("state", lambda row: row.run.state),
    Column("not_used_because", lambda row: row.run.reason),
    Column("ended_by", lambda row: row.ended.cause.word if row.ended else None),
    Column("ended_by_proof", lambda row: row.ended.proof if row.ended else None),
    Column("loss_doubt", lambda row: row.doubt),
    Column("code_digest", lambda row: row.run.provenance.get("code_digest")),
    Column("git_commit", lambda row: lookup(row.run.provenance, "git.commit")),
    Column("path", lambda row: str(row.run.path)),
)
PLACED = {column.metric for column in MEASURED}
COLUMNS: Sequence[Column] = (
    *SETTINGS,
    *MEASURED,
    *(measured(metric) for metric in m.RUN_METRICS if metric not in PLACED),
    *OUTCOME,
)


def settings_digest(run: RunResult) -> str | None:
    """Return the digest of a run's compared settings; None if it is not used."""
    if not run.used:
        return None
    return hashlib.sha256(json.dumps(compared_settings(run), sort_keys=True, default=str).encode()).hexdigest()[:12]


def columns_of(rows: Iterable[Row]) -> list[Column]:
    """Return all columns of these rows, shown on the page or not."""
    return [*COLUMNS, *sent_columns(rows)]


def sent_columns(rows: Iterable[Row]) -> list[Column]:
    """Return a column of bytes for each axis over which any of these runs recorded collectives."""
    axes = {each.axis for row in rows for each in row.run.collectives or ()}
    return [
        Column(f"{m.COLLECTIVE_BYTES.name}_{axis}", functools.partial(sent_over, axis), metric=m.COLLECTIVE_BYTES)
        for axis in sorted(axes, key=axis_order)
    ]


def sent_over(axis: str, row: Row) -> float | None:
    """Return COLLECTIVE_BYTES over one axis, summed over collectives; None if the run recorded no axis."""
    collectives = row.run.collectives
    return None if collectives is None else sum(each.payload_bytes for each in collectives if each.axis == axis)


def fold(rows: Sequence[Row]) -> tuple[list[Column], list[tuple[str, str]]]:
    """Return the columns that a page shows for these rows, and the settings that all of them share.

    A column without any value is omitted.
    """
    on_page = [c for c in COLUMNS if c.heading and any(c.value(row) is not None for row in rows)]
    if len(rows) < 2:
        return on_page, []
    first = rows[0]

    def is_shared(column: Column) -> bool:
        text = column.text(first)
        return column.metric is None and all(column.text(row) == text for row in rows)

    shared = [column for column in on_page[1:] if is_shared(column)]
    return [c for c in on_page if c not in shared], [(str(c.heading), c.text(first)) for c in shared]


def runs_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a row a run with every column, the values as they are: Python objects, None where absent."""
    return pd.DataFrame({each.name: list(map(each.value, rows)) for each in columns_of(rows)}, dtype=object)


def to_csv(rows: Sequence[Row]) -> str:
    """Return all columns of all rows in full precision, with a line of names; no text is a formula."""
    frame = runs_frame(rows)
    cells = {csv_cell(name): pd.Series(map(csv_cell, values), dtype=object) for name, values in frame.items()}
    return str(pd.DataFrame(cells).to_csv(index=False, lineterminator="\n"))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; cells are text, whatever they contain."""
    cells = [[markdown_cell(cell) for cell in row] for row in rows]
    frame = pd.DataFrame(cells, columns=[markdown_cell(heading) for heading in headings])
    # Cells are neither padded to the widest one, which may be long, nor parsed as numbers.
    return f"{frame.to_markdown(index=False, tablefmt='github', stralign=None, disable_numparse=True)}\n"
