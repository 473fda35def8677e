"""Stacked bars: the wall time of runs, or their shares of a step, cut into named parts."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.formatting import plot_text, shown, unit
from analysis.report.figures.style import empty_plot
from analysis.run import RunResult
from jobs.metrics import Metric

# More bars do not fit a page.
MOST_BARS = 40
Part = tuple[Metric, str, str]
"""A metric, its name in the legend, its colour."""


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
