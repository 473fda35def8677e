"""Layouts side by side: the speed of each on the same number of ranks, and the bytes that its ranks send in a step.

Drawn only if at least two layouts of one task ran on the same number of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from analysis.formatting import plot_text, plural, shown, title, unit
from analysis.metrics.communication import Collective
from analysis.report.figures.style import AXIS, Figure, empty_plot, word
from analysis.scaling.groups import Group, by_task
from analysis.scaling.layouts import MeasuredLayout, axes_of, layouts_by_ranks
from analysis.scaling.places import differ
from jobs import metrics as m
from jobs.parallelism import AXIS_NAMES

MOST_BARS = 40
PIXELS_PER_ROW = 27
INK, BAR, FASTEST_BAR = "#1f2937", "#d5d9df", "#8fbbdb"
# An axis has the same colour in every report; axes that are joined in other ways take the others in turn.
AXIS_COLOURS = {
    "tp": "#D55E00",
    "cp": "#CC79A7",
    "dp_shard": "#0072B2",
    "dp_shard+cp": "#004B75",
    "dp_replicate": "#56B4E9",
    "dp_replicate+dp_shard": "#009E73",
    "pp": "#E69F00",
}
OTHER_COLOURS = ("#000000", "#F0E442", "#7F3C8D")
MINOR_COLOUR = "#999999"
# An axis whose part of every bar is shorter than this part of the longest bar cannot be seen; all such are one segment.
SMALLEST_SEGMENT = 0.005
# A loss or a norm that is reduced: its digits in MiB would only be wide.
SMALLEST_SHOWN_BYTES, TINY = 1024, "< 0.001"


@dataclass(frozen=True)
class Row:
    """A bar and the place of its middle, counted from the top; a heading takes a place of its own."""

    layout: MeasuredLayout
    y: int
    fastest: bool
    """True if it is the highest on its number of ranks, or cannot be distinguished from it."""


def side_by_side(groups: Sequence[Group]) -> list[Figure]:
    """Return a figure for each task with two layouts on the same number of ranks."""
    tasks = by_task(groups)
    found = []
    for number, (task, members) in enumerate(tasks.items(), start=1):
        blocks = {
            ranks: layouts
            for ranks, layouts in layouts_by_ranks(members).items()
            if len({layout.choice for layout in layouts}) > 1
        }
        if blocks:
            model, data, length, grows = task
            weak = ", weak scaling" if grows else ""
            named = f": {model}, {data}, sequence length {length}{weak}" if len(tasks) > 1 else ""
            found.append(one_task(f"layouts-{number}", f"Layouts side by side{named}", members, blocks))
    return found


def one_task(name: str, heading: str, groups: Sequence[Group], blocks: dict[int, list[MeasuredLayout]]) -> Figure:
    """Return the figure of one task: speed on the left, bytes on the right, one row per layout."""
    most = max(2, MOST_BARS // len(blocks))
    rows, headings = placed({ranks: layouts[:most] for ranks, layouts in blocks.items()})
    left_out = sum(max(0, len(layouts) - most) for layouts in blocks.values())
    sent = any(row.layout.collectives is not None for row in rows)
    plot = empty_plot()
    add_speed(plot, rows)
    if sent:
        add_bytes(plot, rows)
    places = len(rows) + len(headings)
    plot.update_layout(
        barmode="stack",
        bargap=0.3,
        height=104 + PIXELS_PER_ROW * places,
        margin={"t": 56, "r": 36, "b": 40},
        legend={"x": 1, "xanchor": "right", "y": 0, "yanchor": "top", "traceorder": "normal"},
        xaxis=panel([0, 0.44] if sent else [0, 1], title(m.TOKENS_PER_S_PER_RANK)),
        yaxis={
            "range": [places - 0.5, -0.5],
            "tickvals": [row.y for row in rows],
            "ticktext": [row_label(row.layout, blocks[row.layout.point.ranks]) for row in rows],
            "showgrid": False,
            "ticks": "",
        },
    )
    for ranks, y in headings.items():
        plot.add_annotation(
            text=plural(ranks, "rank"),
            font={"weight": 700},
            x=0,
            xref="paper",
            xanchor="right",
            xshift=-6,
            y=y,
            showarrow=False,
        )
    return Figure(name, heading, caption(groups, rows, sent, left_out), plot, wide=True)


def panel(domain: list[float], text: str) -> dict[str, Any]:
    """Return a horizontal axis above its part of the figure, which starts at 0."""
    return AXIS | {
        "domain": domain,
        "anchor": "y",
        "side": "top",
        "title": {"text": text, "standoff": 8, "font": {"size": 14}},
        "rangemode": "tozero",
        "showgrid": True,
    }


def placed(blocks: dict[int, list[MeasuredLayout]]) -> tuple[list[Row], dict[int, int]]:
    """Return the rows from top to bottom, and the place of the heading above each number of ranks."""
    rows: list[Row] = []
    headings: dict[int, int] = {}
    for ranks, layouts in blocks.items():
        headings[ranks] = len(rows) + len(headings)
        best = layouts[0]
        rows += [
            Row(
                layout,
                headings[ranks] + i,
                fastest=not layout.point.doubtful and not differ(layout.point, best.point),
            )
            for i, layout in enumerate(layouts, start=1)
        ]
    return rows, headings


def row_label(layout: MeasuredLayout, rivals: Sequence[MeasuredLayout]) -> str:
    """Return a row's name, its degrees above 1, and its nodes if its rivals ran on other numbers of nodes."""
    grid = layout.grid or {}
    notes = [f"{axis} {grid[axis]}" for axis in AXIS_NAMES if grid.get(axis, 1) > 1]
    if len({each.point.nodes for each in rivals}) > 1:
        notes.append(plural(layout.point.nodes or 0, "node"))
    if layout.point.doubtful:
        notes.append("loss not believed")
    return plot_text(layout.name) + (f" ({', '.join(notes)})" if notes else "")


def add_speed(plot: go.Figure, rows: Sequence[Row]) -> None:
    """Draw bars of the medians with their number, and a dot for each repeat."""
    metric = m.TOKENS_PER_S_PER_RANK
    spreads = [row.layout.point.spread(metric) for row in rows]
    medians = [spread.median for spread in spreads if spread]
    ends = [row.layout.per_rank[-1] for row in rows]
    plot.add_trace(
        go.Bar(
            orientation="h",
            x=medians,
            y=[row.y for row in rows],
            marker={
                "color": [FASTEST_BAR if row.fastest else BAR for row in rows],
                "pattern": {"shape": ["/" if row.layout.point.doubtful else "" for row in rows]},
            },
            hoverinfo="skip",
            showlegend=False,
        )
    )
    # Right of the dots, where a short bar leaves no room.
    plot.add_trace(
        go.Scatter(
            mode="text",
            x=ends,
            y=[row.y for row in rows],
            text=[f"  {shown(metric, median)}" for median in medians],
            textposition="middle right",
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
        )
    )
    plot.update_layout(xaxis={"range": [0, 1.15 * max(ends)]})
    dots = [(row, value) for row in rows for value in row.layout.per_rank]
    plot.add_trace(
        go.Scatter(
            mode="markers",
            x=[value for _, value in dots],
            y=[row.y for row, _ in dots],
            marker={"color": INK, "size": 6, "line": {"color": "#ffffff", "width": 1}},
            hoverinfo="text",
            hovertext=[
                f"{plot_text(row.layout.name)}<br>{row.layout.point.place}<br>{title(metric)}: {shown(metric, value)}"
                for row, value in dots
            ],
            showlegend=False,
        )
    )


def segments(rows: Sequence[Row]) -> list[tuple[str, str, list[str]]]:
    """Return name, colour and axes of every segment of the bars."""
    layouts = [row.layout for row in rows]
    longest = max(sum(each.payload_bytes for each in layout.collectives or ()) for layout in layouts)
    others = itertools.cycle(OTHER_COLOURS)
    found, minor = [], []
    for axis in axes_of(layouts):
        most = max(sum(each.payload_bytes for each in layout.over(axis)) for layout in layouts)
        if most < SMALLEST_SEGMENT * longest:
            minor.append(axis)
        else:
            found.append((f"over {axis}", AXIS_COLOURS.get(axis) or next(others), [axis]))
    return found + ([(f"over {' and '.join(minor)} (too small to see)", MINOR_COLOUR, minor)] if minor else [])


def add_bytes(plot: go.Figure, rows: Sequence[Row]) -> None:
    """Draw stacked bars of the bytes over each axis, with their sum, or `not recorded`."""
    size = m.COLLECTIVE_BYTES.display.size
    for name, colour, axes in segments(rows):
        parts = [(row, [each for axis in axes for each in row.layout.over(axis)]) for row in rows]
        parts = [(row, collectives) for row, collectives in parts if collectives]
        plot.add_trace(
            go.Bar(
                name=plot_text(name),
                orientation="h",
                xaxis="x2",
                x=[sum(each.payload_bytes for each in collectives) / size for _, collectives in parts],
                y=[row.y for row, _ in parts],
                marker={"color": colour},
                hoverinfo="text",
                hovertext=["<br>".join(segment_in_words(row, collectives)) for row, collectives in parts],
            )
        )
    totals = {
        row.y: sum(each.payload_bytes for each in row.layout.collectives)
        for row in rows
        if row.layout.collectives is not None
    }
    plot.add_trace(
        go.Scatter(
            mode="text",
            xaxis="x2",
            x=[totals.get(row.y, 0) / size for row in rows],
            y=[row.y for row in rows],
            text=[
                f" {shown(m.COLLECTIVE_BYTES, totals[row.y])}" if row.y in totals else " not recorded" for row in rows
            ],
            textposition="middle right",
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
        )
    )
    room = 1.15 * max(totals.values()) / size
    plot.update_layout(xaxis2=panel([0.5, 1], title(m.COLLECTIVE_BYTES)) | {"range": [0, room or 1]})


def segment_in_words(row: Row, collectives: Sequence[Collective]) -> list[str]:
    """Return the hover lines of a segment: its collectives."""
    size = f"{unit(m.COLLECTIVE_BYTES)} (calls)"
    listed = [plot_text(f"{in_words(each)} over {each.axis}") for each in collectives]
    return [f"{plot_text(row.layout.name)}, {row.layout.point.place}, in {size}:", *listed]


def caption(groups: Sequence[Group], rows: Sequence[Row], sent: bool, left_out: int) -> str:
    """Return the caption of both halves, with omissions."""
    counts = sorted({len(row.layout.point.runs) for row in rows})
    repeats = f"n = {counts[0]}" + ("" if len(counts) == 1 else f" to {counts[-1]}")
    sentences = [
        f"{word(groups)}: {m.TOKENS_PER_S_PER_RANK.definition} Bar: median over repeats; dot: one repeat; {repeats}.",
        "Blue: the highest on that number of ranks, and any that cannot be distinguished from it (see Results).",
    ]
    if sent:
        sentences.append(
            f"Right: {m.COLLECTIVE_BYTES.definition} Summed over the collectives of an axis. The cost of bytes "
            "depends on their link, and each call has a cost too: the table lists the calls."
        )
    else:
        sentences.append(f"{m.COLLECTIVE_BYTES.name}: recorded by no run of these bars.")
    if len({row.layout.group.engine for row in rows}) > 1:
        sentences.append("Engines are different code: between them, the layout is not the only difference.")
    if any(row.layout.point.doubtful for row in rows):
        sentences.append("Hatched: the loss is not believed.")
    doubted = sum(len(row.layout.point.doubted) for row in rows if not row.layout.point.doubtful)
    if doubted:
        sentences.append(f"Left out of the medians: {plural(doubted, 'run')} with a loss that is not believed.")
    if left_out:
        sentences.append(f"Left out: {plural(left_out, 'slower point')}.")
    return " ".join(sentences)


def in_words(collective: Collective) -> str:
    """Return a collective with its bytes and, in parentheses, its calls."""
    payload = shown(m.COLLECTIVE_BYTES, collective.payload_bytes)
    tiny = 0 < collective.payload_bytes < SMALLEST_SHOWN_BYTES
    return f"{collective.collective} {TINY if tiny else payload} ({collective.calls:,.0f})"
