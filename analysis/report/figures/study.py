"""The first quantity of a study as bars, one for each row and column of its table."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis.compare.study import Study
from analysis.formatting import plot_text
from analysis.report.figures.bars import MOST_BARS
from analysis.report.figures.style import COLOURS, INK, Figure, empty_plot, legend, word_of


def study_figure(study: Study, number: str = "") -> Figure | None:
    """Return the bars; None with a single one, which shows nothing, and with too many for a page."""
    quantity, several = study.quantities[0], len(study.columns) > 1
    measured = {place: spread for place, cell in study.cells.items() if (spread := cell.spread(quantity))}
    if not 1 < len(measured) <= MOST_BARS:
        return None
    plot, size, step = empty_plot(), quantity.unit.size, len(study.columns) + (1 if several else 0)
    # The first row is at the top.
    places = {row: -step * i for i, row in enumerate(study.rows)}
    for j, column in enumerate(study.columns):
        drawn = [(row, measured[row, column]) for row in study.rows if (row, column) in measured]
        y = [places[row] - j for row, _ in drawn]
        x = [spread.median / size for _, spread in drawn]
        texts = [f"{plot_text(', '.join((*row, *column)))}: {quantity.shown(spread.median)}" for row, spread in drawn]
        name, colour = plot_text(study.label(column, "columns")), COLOURS[j % len(COLOURS)]
        bar = {"name": name, "marker": {"color": colour}, "hoverinfo": "text", "hovertext": texts}
        plot.add_trace(go.Bar(orientation="h", y=y, x=x, **bar))
        errors = {
            "symmetric": False,
            "array": [(spread.high - spread.median) / size for _, spread in drawn],
            "arrayminus": [(spread.median - spread.low) / size for _, spread in drawn],
            "visible": any(spread.n > 1 for _, spread in drawn),
        }
        words = [f" {quantity.shown(spread.median)}" for _, spread in drawn]
        plot.add_trace(
            go.Scatter(
                y=y,
                x=[spread.high / size for _, spread in drawn],
                mode="text",
                text=words,
                textposition="middle right",
                cliponaxis=False,
                showlegend=False,
                hoverinfo="skip",
            )
        )
        if errors["visible"]:
            whisker = {"marker": {"size": 0}, "line": {"color": INK}, "error_x": errors}
            plot.add_trace(go.Scatter(y=y, x=x, mode="markers", showlegend=False, hoverinfo="skip", **whisker))
    ticks = {row: place - (len(study.columns) - 1) / 2 for row, place in places.items()}
    plot.update_yaxes(
        tickvals=list(ticks.values()),
        ticktext=[plot_text(study.label(row, "rows")) for row in ticks],
        showgrid=False,
        ticks="",
    )
    largest = max(spread.high for spread in measured.values()) / size
    plot.update_xaxes(title_text=plot_text(quantity.heading), range=[0, 1.35 * largest], showgrid=True)
    bars = len(study.rows) * step
    plot.update_layout(
        **legend(len(study.columns) if several else 0) | {"height": 120 + 26 * max(3, bars)}, bargap=0.25
    )
    rows = ", ".join(study.headings("rows"))
    caption = (
        f"{word_of(study.runs)}: {quantity.heading} by {rows}"
        + (f", a colour for each {', '.join(study.headings('columns'))}" if several else "")
        + (". Whiskers: the smallest and the largest repeat." if any(s.n > 1 for s in measured.values()) else ".")
    )
    name = f"study{number}-{quantity.metric.name}"
    return Figure(name, quantity.heading, caption, plot, metrics=[quantity.metric])
