"""The figures of a report, in the order of its page; captions define what is shown and start with the hardware.

The breakdown of wall time and the losses are drawn here; the other figures have files of their own. No file is written.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from analysis.formatting import plot_text, plural, shown, title
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.bars import by_line, names_of, stacked
from analysis.report.figures.benchmarks import benchmark_figures
from analysis.report.figures.goodput import goodput_bars
from analysis.report.figures.layouts import side_by_side
from analysis.report.figures.over_ranks import of, over_ranks
from analysis.report.figures.profile import profile_bars
from analysis.report.figures.serving import serving_figures
from analysis.report.figures.startup import startup_bars
from analysis.report.figures.step_times import step_time_boxes
from analysis.report.figures.style import Figure, Style, empty_plot, legend, styles_of, word
from analysis.run import RunResult
from analysis.scaling.groups import RATES, WEAK, Group, Point
from analysis.scaling.laws import best_fits
from jobs import metrics as m
from jobs.metrics import Metric

MOST_CURVE_POINTS = 100_000
# A browser draws no more of them in the time that a reader waits.
MOST_CURVES = 500
# A legend of more lines leaves no room for the curves in half of the page's width.
MOST_LINES_OF_HALF = 6
BEFORE_STEP_TIME = {a.TIME_TO_TRAIN: "Time to train"}
STEP_TIME, MEMORY = {m.STEP_TIME_MEDIAN: "Step time"}, {m.MEMORY_PEAK: "Memory per rank"}
AFTER_STEP_TIME = {
    m.MFU: "Model FLOPs utilization",
    m.RANK_TIME_PER_TOKEN: "Cost of a token",
    m.SERVICE_UNITS: "Service units",
    m.ENERGY_PER_TOKEN: "Energy of a token",
}


def figures(digest: Digest) -> list[Figure]:
    """Return the figures in the order of the page: of trainings, of benchmarks in logs, of served loads."""
    return [*of_trainings(digest), *benchmark_figures(digest), *serving_figures(digest)]


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
    timed = [item for item in points if m.STEADY_TIME in typical(item[1]).values]
    if not timed:
        return
    bars = by_line(timed)
    plot = stacked([typical(point) for _, point in bars], names_of(bars), PARTS)
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


def typical(point: Point) -> RunResult:
    """Return the repeat with the median throughput (the lower one of two)."""
    middle = statistics.median_low(run.values[point.rate] for run in point.runs)
    return next(run for run in point.runs if run.values[point.rate] == middle)


def loss_curves(groups: Sequence[Group], styles: dict[str, Style]) -> Iterator[Figure]:
    """Yield loss over steps, if counted: one line per run in the colour of its group, or one a point with many runs."""
    points = [(group, point) for group in groups for point in group.points]
    runs = [(group, point, run) for group, point in points for run in point.repeats if run.steps_are_numbered]
    uncounted = len([run for _, point in points for run in point.repeats]) - len(runs)
    if not runs:
        return
    count, which = len(runs), "per run"
    if count > MOST_CURVES:
        points = [(group, point) for group, point in points if all(run.steps_are_numbered for run in point.repeats)]
        runs = [(*points[i], typical(points[i][1])) for i in thinned(range(len(points)), MOST_CURVES)]
        which = "per point, of the run with the median throughput of its repeats"
    most = max(2, MOST_CURVE_POINTS // len(runs))
    plot = empty_plot()
    named: set[str] = set()
    for group, point, run in runs:
        steps = list(thinned(list(run.losses), most))
        style = styles[group.label]
        plot.add_trace(
            go.Scatter(
                name=plot_text(group.label),
                legendgroup=group.label,
                showlegend=group.label not in named,
                x=steps,
                y=[run.losses[step] for step in steps],
                mode="lines+markers" if len(steps) == 1 else "lines",
                line={"color": style.colour, "dash": style.dash, "width": 1.5},
                hoverinfo="text",
                hovertext=[
                    f"{plot_text(run.name)}, {point.place}<br>step {step}: loss {shown(m.LOSS, run.losses[step])}"
                    for step in steps
                ],
            )
        )
        named.add(group.label)
    plot.update_layout(**legend(len(groups)))
    plot.update_xaxes(title_text="Step")
    plot.update_yaxes(title_text=title(m.LOSS))
    thin = f" Lines with more than {most:,} steps are thinned." if any(len(r.losses) > most for *_, r in runs) else ""
    thin += f" Not drawn: {plural(uncounted, 'run')} whose log does not count steps." if uncounted else ""
    caption = (
        f"{word(groups)}: {m.LOSS.definition} One line {which} ({left_out(len(runs), count)}), same colour and "
        f"dash as its line in the other figures; lines that coincide agree. The axis does not start at 0.{thin}"
    )
    yield Figure("loss", "Loss", caption, plot, wide=len(groups) > MOST_LINES_OF_HALF)


def left_out(drawn: int, count: int) -> str:
    """Return the number of runs that are drawn, as text."""
    return plural(count, "run") if drawn == count else f"{drawn:,} of {plural(count, 'run')}"


def thinned(values: Sequence[int], most: int) -> Iterator[int]:
    """Yield evenly spaced values, the first and the last among them."""
    if len(values) <= most:
        yield from values
        return
    for i in range(most):
        yield values[i * (len(values) - 1) // (most - 1)]
