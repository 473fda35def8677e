"""Curves over steps: the loss of the used runs, and loss and rate so far of those that a live page finds running."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go

from analysis.formatting import plot_text, plural, shown, title
from analysis.report.figures.style import COLOURS, DASHES, Figure, Style, empty_plot, legend, word, word_of
from analysis.run import RunResult
from analysis.scaling.groups import Group
from jobs import metrics as m
from jobs.metrics import Metric

MOST_CURVE_POINTS = 100_000
# A browser draws no more of them in the time that a reader waits.
MOST_CURVES = 500
# A legend of more lines leaves no room for the curves in half of the page's width.
MOST_LINES_OF_HALF = 6


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
        runs = [(*points[i], points[i][1].typical) for i in thinned(range(len(points)), MOST_CURVES)]
        which = "per point, of the run with the median throughput of its repeats"
    most = max(2, MOST_CURVE_POINTS // len(runs))
    plot = empty_plot()
    named: set[str] = set()
    for group, point, run in runs:
        of = f"{plot_text(run.name)}, {point.place}"
        trace = curve(run.losses, m.LOSS, of, styles[group.label], most)
        trace.update(name=plot_text(group.label), legendgroup=group.label, showlegend=group.label not in named)
        plot.add_trace(trace)
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


def running_curves(runs: Sequence[RunResult]) -> Iterator[Figure]:
    """Yield loss and rate so far of runs that are running; nothing of those that recorded no step."""
    known = [(m.LOSS, run, run.losses) for run in runs]
    known += [(*run.step_rates[:1], run, run.step_rates[1]) for run in runs if run.step_rates]
    strokes = itertools.cycle((colour, dash) for dash in DASHES for colour in COLOURS)
    styles = {run.path: Style(*stroke, "circle") for run, stroke in zip(runs, strokes, strict=False)}
    for metric in dict.fromkeys(metric for metric, _, values in known if values):
        own = [(run, values) for each, run, values in known if each is metric and values][:MOST_CURVES]
        plot = empty_plot()
        most = max(2, MOST_CURVE_POINTS // len(own))
        for run, values in own:
            plot.add_trace(curve(values, metric, f"{plot_text(run.name)}, running", styles[run.path], most))
        plot.update_layout(**legend(len(own)))
        plot.update_xaxes(title_text="Step")
        plot.update_yaxes(title_text=title(metric))
        reached = ", ".join(
            f"{run.name} step {max(values)}{of_planned(run)}" for run, values in own[:MOST_LINES_OF_HALF]
        )
        more = f" and {plural(len(own) - MOST_LINES_OF_HALF, 'more run')}" if len(own) > MOST_LINES_OF_HALF else ""
        caption = (
            f"{word_of(run for run, _ in own)}, still running, not a result: {metric.definition} Recorded so far: "
            f"{reached}{more}. Every step counts here, also the first ones, which no result contains."
        )
        yield Figure(f"running-{metric.name}", f"{title(metric)}, still running", caption, plot)


def of_planned(run: RunResult) -> str:
    """Return the number of planned steps as text; empty where data decide it."""
    steps = run.setting("job.steps")
    return f" of {steps}" if steps else ""


def curve(values: Mapping[int, float], metric: Metric, of: str, style: Style, most: int) -> go.Scatter:
    """Return a line of values over steps, of at most so many points; `of` names its run where the pointer rests."""
    steps = list(thinned(list(values), most))
    return go.Scatter(
        name=of,
        x=steps,
        y=[values[step] for step in steps],
        mode="lines+markers" if len(steps) == 1 else "lines",
        line={"color": style.colour, "dash": style.dash, "width": 1.5},
        hoverinfo="text",
        hovertext=[f"{of}<br>step {step}: {title(metric).lower()} {shown(metric, values[step])}" for step in steps],
    )


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
