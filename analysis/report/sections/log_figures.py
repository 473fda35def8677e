"""The figures of logs that no other section shows: parts of a step, memory, samples of a monitor, sizes of the data."""

from __future__ import annotations

import statistics

from analysis.formatting import shown, title
from analysis.logs.file import LogFile
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from jobs import metrics as m
from jobs.metrics import Metric

HEADING = "Further figures of the logs"
METRICS = (
    # Parts of a step.
    a.DATA_TIME,
    a.COMPUTE_TIME,
    a.BACKWARD_TIME,
    a.GRADIENT_REDUCTION_TIME,
    a.OPTIMIZER_TIME,
    a.WAITING_TIME,
    m.PADDED_TOKENS,
    m.LOSS_SCALE,
    a.MEAN_LOSS,
    m.EVALUATION_TIME,
    # Memory, and what a monitor of GPUs or Slurm's accounting has.
    a.MEMORY_ALLOCATED,
    a.DEVICE_MEMORY,
    a.DEVICE_MEMORY_USED,
    a.HOST_MEMORY_PEAK,
    a.GPU_BUSY,
    a.GPU_MEMORY,
    a.GPU_MEMORY_BUSY,
    a.GPU_MEMORY_CLOCK,
    a.GPU_MEMORY_TEMPERATURE,
    a.GPU_MEMORY_USED,
    a.TEMPERATURE,
    a.POWER_LIMIT,
    a.CPUS,
    a.GPUS,
    a.JOB_TIME,
    a.TIME_LIMIT,
    a.RESTARTS,
    # What a program states once.
    a.COMMUNICATOR_SETUP_TIME,
    a.DATA_PARALLEL_SIZE,
    a.HELD_OUT_SAMPLES,
    a.PEAK_FLOPS_PER_S,
    a.TRAINING_SAMPLES,
)
MOST_ROWS = 200
NOTE = (
    "One row per figure of a log: the median of the values that it prints, with the smallest and the largest. Values "
    "include the warm-up."
)


def log_figures_section(digest: Digest) -> Section | None:
    """Return a row for each of METRICS in each log that no table of benchmarks or jobs has; None if there are none."""
    rows = [
        [
            f"{log.path.name}: {title(metric)}",
            *(shown(metric, each) for each in (statistics.median(values), min(values), max(values))),
            f"{len(values):,}",
            metric.definition,
        ]
        for log in digest.logs
        for metric in METRICS
        if (values := printed(log, metric))
    ]
    left_out = f" {len(rows) - MOST_ROWS:,} further rows are left out." if len(rows) > MOST_ROWS else ""
    headings = ("Log: figure", "Median", "Smallest", "Largest", "Values", "Meaning")
    return Section(HEADING, NOTE + left_out, headings, rows[:MOST_ROWS]) if rows else None


def printed(log: LogFile, metric: Metric) -> list[float]:
    """Return the values of a metric in the records of a log, or its setting."""
    shown_elsewhere = log.measurements.keys()
    values = [
        record.values[metric]
        for (form, kind), records in log.records.items()
        if form not in shown_elsewhere or kind is Kind.sample
        for record in records
        if metric in record.values
    ]
    return values or ([log.settings[metric]] if metric in log.settings else [])
