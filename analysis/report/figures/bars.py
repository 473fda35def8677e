"""Horizontal bars, one a run or point: stacked ones are cut into named parts."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.formatting import plot_text, plural, short, shown, unit
from analysis.report.figures.style import empty_plot
from analysis.run import RunResult
from analysis.scaling.groups import Group, Point
from jobs.metrics import Metric

# More bars do not fit a page.
MOST_BARS, LONGEST_LABEL = 40, 44
Part = tuple[Metric, str, str]
"""A metric, its name in the legend, its colour."""


def by_line(points: Sequence[tuple[Group, Point]]) -> list[tuple[Group, Point]]:
    """Return the points to draw as bars, the fastest ones if there are too many; the last line is at the bottom."""
    fastest = sorted(points, key=lambda item: -item[1].throughput.median)[:MOST_BARS]
    return sorted(fastest, key=lambda item: (item[0].label, item[1].ranks, item[1].nodes or 0), reverse=True)


def names_of(points: Sequence[tuple[Group, Point]]) -> list[str]:
    """Return the names of bars of points: `ddp, 2 ranks`."""
    return [f"{short(group.label, LONGEST_LABEL)}, {plural(point.ranks, 'rank')}" for group, point in points]


def stacked(runs: Sequence[RunResult], labels: Sequence[str], parts: Sequence[Part]) -> go.Figure:
    """Return one horizontal bar a run, the first one at the bottom."""
    plot = empty_plot()
    for metric, part, colour in parts:
        plot.add_trace(
            go.Bar(
                name=part,
                orientation="h",
                y=list(range(len(runs))),
                x=[run.values.get(metric, 0.0) / metric.display.size for run in runs],
                marker={"color": colour},
                hoverinfo="text",
                hovertext=[
                    f"{plot_text(run.name)}<br>{part}: {shown(metric, run.values.get(metric))} {unit(metric)}"
                    for run in runs
                ],
            )
        )
    plot.update_layout(
        barmode="stack", bargap=0.35, height=150 + 30 * max(4, len(runs)), legend={"traceorder": "normal"}
    )
    ticks = {"tickvals": list(range(len(runs))), "ticktext": [plot_text(label) for label in labels]}
    plot.update_yaxes(**ticks, showgrid=False, ticks="", automargin=True)
    plot.update_xaxes(rangemode="tozero", showgrid=True)
    return plot
