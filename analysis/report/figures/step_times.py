"""The distribution of step times: one box per point, of the steady steps of all of its repeats, over their median.

Over the median, points of other ranks and step times share an axis on which their variation can be compared. plotly's
basic bundle has no box trace: a box is a bar from quartile to quartile, and the error bars of the median are its
whiskers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from analysis.formatting import plot_text, plural, shown
from analysis.report.figures.bars import by_line, names_of
from analysis.report.figures.style import GREY, INK, Figure, Style, empty_plot, word
from analysis.scaling.groups import Group, Point
from jobs import metrics as m

NAME, HEADING = "step-times", "Distribution of step times"
# Fewer steps have no quartiles worth a box.
FEWEST_STEPS = 4
PERCENTILES = (10, 25, 50, 75, 90)
# The axis has at least this range, in medians: noise of a thousandth fills no page.
NARROWEST = (0.95, 1.05)
# A slowest step beyond this multiple of the longest whisker's end would squeeze all boxes.
FARTHEST_SLOWEST = 1.5
ROOM = 0.04
# A row has two lines of text.
FEWEST_ROWS, ROW_PIXELS = 3, 42
WHITE = 0.55


def step_time_boxes(groups: Sequence[Group], styles: dict[str, Style]) -> list[Figure]:
    """Return the distribution of step times of each point, the lines together; no figure without measured steps."""
    points = [(group, point) for group in groups for point in group.points]
    bars = by_line([item for item in points if len(times_of(item[1])) >= FEWEST_STEPS])
    if not bars:
        return []
    times_s = [times_of(point) for _, point in bars]
    ends_s = [np.percentile(own, PERCENTILES) for own in times_s]
    ends = np.array([own / own[2] for own in ends_s])
    slowest = np.array([own_s.max() / middle_s[2] for own_s, middle_s in zip(times_s, ends_s, strict=True)])
    within = np.flatnonzero(slowest <= FARTHEST_SLOWEST * ends.max())
    hover = [
        f"{plot_text(group.label)}<br>{point.place}, {plural(len(own_s), 'step')}<br>{in_words(own_s, each_s)}"
        for (group, point), own_s, each_s in zip(bars, times_s, ends_s, strict=True)
    ]
    plot = empty_plot()
    add_boxes(plot, ends, [styles[group.label].colour for group, _ in bars], hover)
    marker = {"symbol": "circle-open", "size": 6, "color": GREY}
    text = {"hoverinfo": "text", "hovertext": [hover[row] for row in within]}
    plot.add_trace(go.Scatter(x=slowest[within].tolist(), y=within.tolist(), mode="markers", marker=marker, **text))
    low, high = min(NARROWEST[0], ends.min()), max(NARROWEST[1], ends.max(), slowest[within].max(initial=1))
    room = ROOM * (high - low)
    plot.update_xaxes(title_text="Step time / median of the point", range=[low - room, high + room], showgrid=True)
    medians = [
        f"median {shown(m.STEP_TIME, each_s[2])} s of {plural(len(own_s), 'step')}"
        for own_s, each_s in zip(times_s, ends_s, strict=True)
    ]
    names = [f"{plot_text(name)}<br>{median}" for name, median in zip(names_of(bars), medians, strict=True)]
    above = max(0.0, (FEWEST_ROWS - len(bars)) / 2) + 0.5
    plot.update_yaxes(tickvals=list(range(len(bars))), ticktext=names, range=[-above, len(bars) - 1 + above])
    plot.update_yaxes(showgrid=False, ticks="")
    plot.update_layout(showlegend=False, bargap=0.35, height=100 + ROW_PIXELS * max(FEWEST_ROWS, len(bars)))
    words = caption(groups, left_out=len(points) - len(bars), beyond=len(bars) - len(within))
    return [Figure(NAME, HEADING, words, plot, wide=True, metrics=[m.STEP_TIME])]


def times_of(point: Point) -> NDArray[np.float64]:
    """Return the steady step times of a point's repeats together, in seconds."""
    times_s = np.array([time_s for run in point.runs for time_s in run.step_times_s.values()], float)
    return times_s[times_s > 0]


def in_words(times_s: NDArray[np.float64], ends_s: NDArray[np.float64]) -> str:
    """Return the percentiles of step times and the slowest one as lines of text."""
    p10, first, middle, third, p90 = (shown(m.STEP_TIME, end_s) for end_s in ends_s)
    return (
        f"median {middle} s, quartiles {first} to {third} s<br>10 to 90 %: {p10} to {p90} s, slowest "
        f"{shown(m.STEP_TIME, float(times_s.max()))} s"
    )


def add_boxes(plot: go.Figure, ends: NDArray[np.float64], colours: Sequence[str], hover: Sequence[str]) -> None:
    """Draw a box from quartile to quartile for each row of percentiles, with a marker at the median and whiskers."""
    low, first, middle, third, high = ends.T
    rows = list(range(len(ends)))
    text = {"hoverinfo": "text", "hovertext": list(hover)}
    marker = {"color": [pale(colour) for colour in colours]}
    box = {"base": first.tolist(), "x": (third - first).tolist(), "orientation": "h"}
    plot.add_trace(go.Bar(y=rows, marker=marker, **box, **text))
    whiskers = {"array": (high - middle).tolist(), "arrayminus": (middle - low).tolist()}
    plot.add_trace(
        go.Scatter(
            x=middle.tolist(),
            y=rows,
            mode="markers",
            marker={"symbol": "diamond", "size": 7, "color": INK},
            error_x={"type": "data", "symmetric": False, "thickness": 1.5, "width": 5, **whiskers},
            **text,
        )
    )


def pale(colour: str) -> str:
    """Return a hexadecimal colour mixed with white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + WHITE * (255 - part)):02x}" for part in parts)


def caption(groups: Sequence[Group], *, left_out: int, beyond: int) -> str:
    """Return the caption: what a box is, and what is left out."""
    sentences = [
        f"{word(groups)}: steady step times over their median, the repeats of a point together. Box: quartiles; "
        "diamond: median; whiskers: 10th and 90th percentile; circle: slowest step. The axis does not start at 0."
    ]
    if beyond:
        sentences.append(f"Slowest steps beyond the axis: {beyond:,}; hover over the box for them.")
    if left_out:
        sentences.append(f"Left out: {plural(left_out, 'point')} with fewer than {FEWEST_STEPS} steps, or slower ones.")
    return " ".join(sentences)
