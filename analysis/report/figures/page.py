"""The figures of a report, in the order of its page; captions define what is shown and start with the hardware.

The breakdown of wall time is drawn here; the other figures have files of their own. No file is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from analysis.formatting import plural
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.bars import by_line, names_of, stacked
from analysis.report.figures.benchmarks import benchmark_figures
from analysis.report.figures.curves import loss_curves, running_curves
from analysis.report.figures.goodput import goodput_bars
from analysis.report.figures.layouts import side_by_side
from analysis.report.figures.profile import profile_bars
from analysis.report.figures.scaling import of, over_ranks
from analysis.report.figures.serving import serving_figures
from analysis.report.figures.startup import startup_bars
from analysis.report.figures.step_times import step_time_boxes
from analysis.report.figures.style import Figure, Style, styles_of, word
from analysis.scaling.groups import RATES, WEAK, Group
from analysis.scaling.laws import best_fits
from jobs import metrics as m
from jobs.metrics import Metric

BEFORE_STEP_TIME = {a.TIME_TO_TRAIN: "Time to train"}
STEP_TIME, MEMORY = {m.STEP_TIME_MEDIAN: "Step time"}, {m.MEMORY_PEAK: "Memory per rank"}
AFTER_STEP_TIME = {
    m.MFU: "Model FLOPs utilization",
    m.RANK_TIME_PER_TOKEN: "Cost of a token",
    m.SERVICE_UNITS: "Service units",
    m.ENERGY_PER_TOKEN: "Energy of a token",
}


def figures(digest: Digest) -> list[Figure]:
    """Return the figures in the order of the page: of running runs, trainings, benchmarks in logs, served loads."""
    return [
        *running_curves(digest.running),
        *of_trainings(digest),
        *benchmark_figures(digest),
        *serving_figures(digest),
    ]


def of_trainings(digest: Digest) -> list[Figure]:
    """Return the figures of lines and runs; empty if no run is used."""
    groups = digest.groups
    if not groups:
        return []
    styles = styles_of(groups)
    if sum(len(group.repeats) for group in groups) == 1:
        # A marker without a bar shows nothing that the table does not.
        return [*step_time_boxes(groups, styles), *of_runs(groups, styles)]
    return [
        *(
            over_ranks("Throughput", rate, list(fits), styles, lambda _, point: point.throughput, fits=best_fits(fits))
            for rate in dict.fromkeys([*RATES, *(group.rate for group in groups)])
            if (fits := {group: own for group, own in digest.fits.items() if group.rate is rate})
        ),
        over_ranks("Speedup", m.SPEEDUP, groups, styles, Group.speedup),
        *efficiencies(groups, styles),
        *where_known(BEFORE_STEP_TIME, groups, styles),
        *where_known(STEP_TIME, groups, styles),
        *step_time_boxes(groups, styles),
        *where_known(AFTER_STEP_TIME, groups, styles),
        *side_by_side(groups),
        *of_runs(groups, styles),
        *where_known(MEMORY, groups, styles),
    ]


def of_runs(groups: Sequence[Group], styles: dict[str, Style]) -> list[Figure]:
    """Return the figures of single runs: the parts of their time and their losses."""
    return [
        *time_split(groups),
        *profile_bars(groups),
        *startup_bars(groups),
        *goodput_bars(groups),
        *loss_curves(groups, styles),
    ]


def efficiencies(groups: Sequence[Group], styles: dict[str, Style]) -> Iterator[Figure]:
    """Yield the figure of efficiency; one for weak scaling and one for the rest if the report has both."""
    weak = [group for group in groups if group.mode == WEAK and group.reference]
    others = [group for group in groups if group not in weak]
    if not weak or not any(group.reference for group in others):
        yield over_ranks("Efficiency", m.EFFICIENCY, groups, styles, Group.efficiency)
        return
    modes = " and ".join(sorted({group.mode for group in others if group.reference}))
    yield over_ranks(f"Efficiency, {modes} scaling", m.EFFICIENCY, others, styles, Group.efficiency)
    yield replace(
        over_ranks("Efficiency, weak scaling", m.EFFICIENCY, weak, styles, Group.efficiency),
        name=f"{m.EFFICIENCY.name}-weak",
    )


def where_known(metrics: Mapping[Metric, str], groups: Sequence[Group], styles: dict[str, Style]) -> Iterator[Figure]:
    """Yield a figure over ranks of each of these metrics that any run has, under its heading."""
    reported = {metric for group in groups for run in group.runs for metric in run.values}
    for metric, heading in metrics.items():
        if metric in reported:
            yield over_ranks(heading, metric, groups, styles, of(metric))


PARTS = (
    (m.STARTUP_TIME, "start-up", "#999999"),
    (m.FIRST_STEP_TIME, "first step", "#E69F00"),
    (m.WARMUP_TIME, "warm-up steps", "#F0D98C"),
    (m.STEADY_TIME, "steady steps", "#0072B2"),
    (m.CHECKPOINT_TOTAL_TIME, "checkpoints", "#CC79A7"),
    (m.OTHER_TIME, "other", "#d4d4d8"),
)


def time_split(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield the parts of the wall time, if recorded: one bar per point, of the run with the median throughput."""
    name, heading = "time-split", "Breakdown of wall time"
    points = [(group, point) for group in groups for point in group.points]
    timed = [item for item in points if m.STEADY_TIME in item[1].typical.values]
    if not timed:
        return
    bars = by_line(timed)
    plot = stacked([point.typical for _, point in bars], names_of(bars), PARTS)
    plot.update_xaxes(title_text="Wall time of a run (s)")
    caption = (
        f"{word(groups)}: from the start of rank 0's process to its recorded end, by the definitions below. One bar a "
        "point: the run with the median throughput of its repeats, summed over attempts "
        "that recorded their end. Comparing lengths compares time, not work."
    )
    left_out = len(points) - len(bars)
    yield Figure(
        name,
        heading,
        caption + (f" Left out: {plural(left_out, 'slower point')}." if left_out else ""),
        plot,
        wide=True,
        metrics=[part for part, *_ in PARTS],
    )
