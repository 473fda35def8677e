"""The leaderboard as a picture: the ratio of each attempt with its interval, next to a line at 1."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis.compare.campaign import Entry, Leaderboard, Verdict
from analysis.formatting import plot_text, plural
from analysis.report.figures.style import GREY, Figure, empty_plot, word_of

COLOURS = {
    Verdict.faster: "#009E73",
    Verdict.tie: GREY,
    Verdict.no_difference: "#999999",
    Verdict.slower: "#D55E00",
    Verdict.undecided: "#CC79A7",
    Verdict.too_few: "#56B4E9",
}
MOST_ROWS = 40
PIXELS_PER_ROW = 30


def leaderboard_figure(board: Leaderboard, number: int) -> Figure | None:
    """Return the ratios of the attempts that count, in the order of the table; None if there are none.

    `number` separates the figures of several campaigns.
    """
    counted = [entry for entry in board.entries if entry.ratio and entry.verdict is not Verdict.invalid]
    rows = counted[:MOST_ROWS]
    if not rows:
        return None
    plot = empty_plot()
    for verdict, colour in COLOURS.items():
        if own := [(y, entry) for y, entry in enumerate(rows) if entry.verdict is verdict]:
            plot.add_trace(markers(own, verdict, colour))
    line = {"color": GREY, "dash": "dash", "width": 1.5}
    ends = [-0.5, len(rows) - 0.5]
    plot.add_trace(go.Scatter(name="baseline", mode="lines", x=[1, 1], y=ends, line=line, hoverinfo="skip"))
    plot.update_layout(height=120 + PIXELS_PER_ROW * max(3, len(rows)), showlegend=True)
    words = plot_text(board.rules.ratio_in_words)
    plot.update_xaxes(title_text=f"{words[:1].upper()}{words[1:]}", showgrid=True)
    plot.update_yaxes(
        range=[len(rows) - 0.5, -0.5],
        tickvals=list(range(len(rows))),
        ticktext=[
            plot_text(entry.trial.name, 40) + (" (proxy)" if entry.trial.proxy else "") + (" *" if entry.holds else "")
            for entry in rows
        ],
        showgrid=False,
        ticks="",
    )
    without = [entry for entry in rows if entry.interval is None]
    caption = (
        f"{word_of(board.runs)}: right of the dashed line an attempt is faster than the baseline. Marker: geometric "
        "mean over the pairs; bar: its interval, by the rule above; an interval that contains 1 is a tie. Star: the "
        "difference also holds at the higher confidence."
    )
    caption += f" Without an interval: {plural(len(without), 'attempt')}." if without else ""
    if left_out := len(board.entries) - len(rows):
        caption += f" Left out: {plural(left_out, 'attempt')}, as the table explains."
    return Figure(f"leaderboard-{number}", f"Ratios of {board.path.name}", caption, plot, wide=True)


def markers(rows: list[tuple[int, Entry]], verdict: Verdict, colour: str) -> go.Scatter:
    """Return the attempts of one verdict."""
    ratios = [entry.ratio.middle if entry.ratio else 1.0 for _, entry in rows]
    intervals = [entry.interval or (ratio, ratio) for (_, entry), ratio in zip(rows, ratios, strict=True)]
    return go.Scatter(
        name=verdict.value,
        mode="markers",
        x=ratios,
        y=[y for y, _ in rows],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - ratio for (_, high), ratio in zip(intervals, ratios, strict=True)],
            "arrayminus": [ratio - low for (low, _), ratio in zip(intervals, ratios, strict=True)],
            "thickness": 2,
            "width": 6,
        },
        marker={
            "color": colour,
            "size": [15 if entry.holds else 10 for _, entry in rows],
            "symbol": ["star" if entry.holds else "circle" for _, entry in rows],
        },
        hoverinfo="text",
        hovertext=[
            f"{plot_text(entry.trial.name)}: {ratio:.3f} ({low:.3f} to {high:.3f}), n = {len(entry.ratios)}"
            for (_, entry), ratio, (low, high) in zip(rows, ratios, intervals, strict=True)
        ],
    )
