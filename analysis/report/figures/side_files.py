"""The first counter of the side files over the time of each run."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.formatting import plot_text, plural, title
from analysis.metrics.side_files import SideRecord
from analysis.report.figures.style import COLOURS, MOST_LEGEND_LINES, Figure, empty_plot, legend, word_of

# A browser draws no more of them in the time that a reader waits.
MOST_POINTS = 2_000
MOST_COUNTERS = 2


def side_figure(records: Sequence[SideRecord]) -> Figure | None:
    """Return a panel for each of the first counters with a line for each run; None if no file has values."""
    metrics = list(dict.fromkeys(metric for record in records for metric in record.over_time))
    drawn = [record for record in records if record.over_time][:MOST_LEGEND_LINES]
    if not drawn:
        return None
    plot, shown = empty_plot(), metrics[:MOST_COUNTERS]
    for i, metric in enumerate(shown, 1):
        axis = "" if i == 1 else str(i)
        for record, colour in zip(drawn, COLOURS * (1 + len(drawn) // len(COLOURS)), strict=False):
            points = record.over_time.get(metric, ())
            every = -(-len(points) // MOST_POINTS) or 1
            plot.add_trace(
                go.Scatter(
                    name=plot_text(record.run.name),
                    legendgroup=record.run.name,
                    showlegend=i == 1,
                    x=[time_s for time_s, _ in points[::every]],
                    y=[value / metric.display.size for _, value in points[::every]],
                    mode="lines",
                    line={"color": colour, "width": 1.5},
                    yaxis=f"y{axis}",
                )
            )
    plot.update_layout(**legend(len(drawn)))
    plot.update_xaxes(title_text="Time since the start of the run (s)")
    plot.update_layout(yaxis={"title": {"text": plot_text(title(shown[0]))}, "rangemode": "tozero"})
    if len(shown) > 1:
        lower, upper = [0.0, 0.44], [0.56, 1.0]
        second = dict(plot.layout.yaxis.to_plotly_json())
        second |= {"title": {"text": plot_text(title(shown[1]))}, "domain": lower, "anchor": "x"}
        plot.update_layout(yaxis={"domain": upper}, yaxis2=second, height=(plot.layout.height or 360) + 160)
    others = f" Not drawn: {plural(len(metrics) - len(shown), 'counter')}." if len(metrics) > len(shown) else ""
    caption = (
        f"{word_of(record.run for record in drawn)}: {' and '.join(title(metric) for metric in shown)} as other "
        f"machines recorded them, over the time of each run; rows of one moment are averaged.{others}"
    )
    return Figure("side-files", "Counters of other machines", caption, plot, wide=True)
