"""The style of every figure of a report, and the records of figures and sections: heading, text, plot or table.

Colours are Okabe and Ito's, which colour-blind readers can distinguish (https://jfly.uni-koeln.de/color); the shape of
the marker is the parallelism, so that a print without colour still reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from analysis.run import RunResult, hardware
from analysis.scaling.groups import Group
from jobs.metrics import Metric

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY, INK = "#6b7280", "#1f2937"
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
AXIS = {
    "automargin": True,
    "gridcolor": "#e5e7eb",
    "linecolor": "#9ca3af",
    "showline": True,
    "ticks": "outside",
    "tickcolor": "#9ca3af",
    "zeroline": False,
}
# A legend with more lines hides the figure; hovering names them all.
MOST_LEGEND_LINES = 16


@dataclass(frozen=True)
class Figure:
    """A figure of the page; without a plot the caption gives the reason."""

    name: str
    heading: str
    caption: str
    plot: go.Figure | None
    wide: bool = False
    """Takes the page's whole width."""
    metrics: Sequence[Metric] = ()
    """The metrics of its parts, if it shows several; the name of other figures is that of their metric."""


@dataclass(frozen=True)
class Section:
    """A table of the page, one row per run or law: first a name, last words, numbers between."""

    heading: str
    note: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    figure: Figure | None = None
    """Drawn above the table."""
    of_text: bool = False
    """Its columns are words, not numbers."""


@dataclass(frozen=True)
class Style:
    """Colour, dash and symbol of a group, the same in every figure."""

    colour: str
    dash: str
    symbol: str


def styles_of(groups: Sequence[Group]) -> dict[str, Style]:
    """Return a style for each group, by label: colour and dash by order, symbol by parallelism."""
    strokes = itertools.cycle((colour, dash) for dash in DASHES for colour in COLOURS)
    symbols = dict(zip(sorted({str(group.parallelism) for group in groups}), itertools.cycle(SYMBOLS), strict=False))
    return {
        group.label: Style(*stroke, symbols[str(group.parallelism)])
        for group, stroke in zip(groups, strokes, strict=False)
    }


def empty_plot() -> go.Figure:
    """Return a figure with the page's typography and no data."""
    return go.Figure(
        layout={
            "template": "none",
            "height": 380,
            "margin": {"l": 56, "r": 16, "t": 12, "b": 48},
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": INK},
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
            "hoverlabel": {"align": "left", "bgcolor": "#ffffff", "font": {"size": 13}},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#9ca3af", "activecolor": "#1f2937"},
            "xaxis": AXIS | {"showgrid": False},
            "yaxis": AXIS,
        }
    )


def legend(lines: int) -> dict[str, Any]:
    """Return a layout with room for a legend of `lines` lines above the axes; no legend if there are too many."""
    shown_lines = lines if lines <= MOST_LEGEND_LINES else 0
    return {"showlegend": shown_lines > 0, "height": 360 + 20 * max(0, shown_lines - 3)}


def word(groups: Sequence[Group]) -> str:
    """Return the hardware, for the first word of a caption."""
    return word_of(run for group in groups for run in group.runs)


def word_of(runs: Iterable[RunResult]) -> str:
    """Return the hardware of the runs that started, for the first word of a caption."""
    return hardware(run for run in runs if run.started)
