"""The columns of the table of runs.

A column has a name, a source of its value, and a heading if the page shows it. Every metric of a run (jobs.metrics) has
a column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.failures.runs import Failure
from analysis.formatting import ABSENT, shown, title
from analysis.metrics.communication import degrees
from analysis.parsers import log_metrics as a
from analysis.report.sections.checkpoints import failures, written
from analysis.report.sections.goodput import lost_words
from analysis.run import RunResult
from analysis.scaling.groups import Group, Point
from analysis.untrusted import as_list, lookup
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
    """SPEEDUP and EFFICIENCY of its point, and its RELATIVE_COST, relative to the reference of its line."""
    settings_digest: str | None = None
    """Digest of all compared settings; it separates lines whose columns are equal."""

    @property
    def reference(self) -> str | None:
        """The reference point of speedup and efficiency."""
        return self.group.reference.place if self.group and self.group.reference else None

    def measured(self, metric: Metric) -> float | None:
        """Return a metric of the run; None if it is absent."""
        return self.compared.get(metric, self.run.values.get(metric))


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
    setting("concurrency", "serving.concurrency"),
    setting("request_rate", "serving.requests_per_s"),
    setting("replicas", "serving.replicas"),
    setting("epochs", "job.epochs"),
    Column("settings_digest", lambda row: row.settings_digest),
    setting("repeat", "repeat", "Repeat"),
    started("device", "device"),
    started("device_name", "device_name"),
    started("emulated_nodes", "emulated_nodes"),
    Column("hosts", lambda row: " ".join(sorted(map(str, as_list(row.run.started.get("nodes"))))) or None),
    started("kernels", "kernels"),
    setting("network", "network.name"),
    Column("transport", lambda row: row.run.transport),
    Column("steady_steps", lambda row: row.run.steady_steps if row.run.used else None, "Steady steps"),
)
SERVING = (
    a.REQUESTS_PER_S,
    a.OUTPUT_TOKENS_PER_S,
    a.SERVED_TOKENS_PER_S,
    a.GOOD_REQUESTS_PER_S,
    *(
        times[key]
        for times in (a.TIME_TO_FIRST_TOKEN, a.TIME_PER_OUTPUT_TOKEN, a.INTER_TOKEN_LATENCY, a.REQUEST_LATENCY)
        for key in ("mean", "median", "p90", "p95", "p99")
    ),
    a.REQUESTS_COMPLETED,
    a.REQUESTS_FAILED,
    a.ERROR_RESPONSES,
    a.INPUT_TOKENS,
    a.OUTPUT_TOKENS,
    a.DURATION,
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
    *map(measured, SERVING),
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
    Column("ended_by_possible", lambda row: row.ended.possible.word if row.ended and row.ended.possible else None),
    Column("ended_by_proof", lambda row: row.ended.proof if row.ended else None),
    Column("loss_doubt", lambda row: row.doubt),
    Column("throughput_derived", lambda row: row.run.derived),
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
