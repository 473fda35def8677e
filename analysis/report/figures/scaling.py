"""Figures over the number of ranks: one line per group, a marker the median of a point's repeats, a bar their spread.

One function draws all of them, so that throughput, speedup, efficiency, step time and memory read alike. Where all
points have the same number of ranks, the axis is the batch or sequence length if a sweep changed it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.formatting import plot_text, plural, shown, shown_spread, title
from analysis.intervals import Spread
from analysis.report.figures.over_setting import Axis, over_setting
from analysis.report.figures.style import GREY, MOST_LEGEND_LINES, Figure, Style, empty_plot, legend, word
from analysis.scaling.groups import WEAK, Group, Point
from analysis.scaling.laws import EXTRAPOLATED_TIMES, Fit
from jobs import metrics as m
from jobs.metrics import Metric

EXTRAPOLATED = "extrapolated by a fitted law"
# An axis is logarithmic if its values double (from three on), or beyond this ratio of the largest to the smallest:
# a linear one squeezes the small ones together.
DOUBLING, LARGEST_LINEAR_RATIO = 2, 16
# Diameters in pixels: a marker, the ring of one that others cover, and the largest ring.
MARKER, RING, MOST_RING = 9, 6, 24
# Markers in one cell of this share of the axis cover each other.
SAME_PLACE = 0.015
# More names do not fit below an axis, nor do longer ones.
MOST_NAMED_PLACES, LONGEST_PLACE = 12, 28
# A logarithmic axis has a tick at every digit up to this ratio.
MOST_EVERY_DIGIT = 8


def of(metric: Metric) -> Callable[[Group, Point], Spread | None]:
    """Return the spread of a metric at a point, whatever its group."""
    return lambda _, point: point.spread(metric)


def over_ranks(
    heading: str,
    metric: Metric,
    groups: Sequence[Group],
    styles: dict[str, Style],
    spread_at: Callable[[Group, Point], Spread | None],
    *,
    fits: Mapping[str, Fit] = MappingProxyType({}),
) -> Figure:
    """Return a metric over the number of ranks, one line per group, with the spread over repeats.

    `fits` are laws of that metric by the label of their line: each is drawn beyond the measured ranks.
    """
    drawn = with_spreads(groups, spread_at)
    if not drawn:
        return Figure(metric.name, heading, f"{word(groups)}: {why_nothing(groups, metric)}", None)
    if found := over_setting([group for group, _ in drawn]):
        return over_values(heading, metric, found, styles, spread_at)
    plot = empty_plot()
    measured = {point.ranks for _, spreads in drawn for point, _ in spreads}
    ranks = sorted(measured | {fit.farthest for fit in fits.values()})
    largest = max(
        [spread.high for _, spreads in drawn for _, spread in spreads]
        + [fit.throughput(fit.farthest).value for fit in fits.values()]
    )
    # Ideal scaling is then a straight line in both figures; points that form no line need none.
    of_speed = {m.SPEEDUP, *(group.rate for group, _ in drawn)}
    both_log = is_logarithmic(sorted(measured)) and metric in of_speed
    both_log = both_log and any(group.reference for group, _ in drawn)
    # With one rank count there is no axis of ranks: the lines, now single markers, stand side by side.
    side_by_side = len(ranks) == 1
    places = [[i if side_by_side else point.ranks for point, _ in spreads] for i, (_, spreads) in enumerate(drawn)]
    heights = [[spread.median / largest for _, spread in spreads] for _, spreads in drawn]
    for (group, spreads), x, sizes in zip(drawn, places, marker_sizes(places, heights), strict=True):
        plot.add_trace(line(group, spreads, x, metric, styles[group.label], sizes=sizes))
    add_ideal(plot, metric, [group for group, _ in drawn], ranks)
    add_extrapolated(plot, metric, fits, styles)
    plot.update_xaxes(
        **(
            lines_axis([group for group, _ in drawn])
            if side_by_side
            else values_axis("Ranks", ranks, logarithmic=is_logarithmic(sorted(measured)))
        )
    )
    plot.update_yaxes(title_text=title(metric))
    if both_log:
        lowest = min(spread.low for _, spreads in drawn for _, spread in spreads)
        # Within a decade, 1, 2 and 5 are too few ticks.
        digits = "D1" if largest <= MOST_EVERY_DIGIT * lowest else "D2"
        plot.update_yaxes(type="log", dtick=digits, tickformat="~s" if lowest >= 1000 else ",.3~r")
    else:
        top = max(largest, ranks[-1] / ranks[0] if metric is m.SPEEDUP else 0, 1.0 if metric is m.EFFICIENCY else 0)
        plot.update_yaxes(range=[0, 1.08 * top / metric.display.size])
    plot.update_layout(**legend(0 if side_by_side else len(drawn)))
    caption = caption_over_ranks(metric, [group for group, _ in drawn], groups) + extrapolated_words(fits)
    caption += " Both axes are logarithmic." if both_log else ""
    return Figure(metric.name, heading, caption, plot)


def with_spreads(
    groups: Sequence[Group], spread_at: Callable[[Group, Point], Spread | None]
) -> list[tuple[Group, list[tuple[Point, Spread]]]]:
    """Return the groups that have a value at a point, with these points."""
    found = [(group, [(p, spread) for p in group.points if (spread := spread_at(group, p))]) for group in groups]
    return [(group, spreads) for group, spreads in found if spreads]


def over_values(
    heading: str,
    metric: Metric,
    along: tuple[Axis, Sequence[Group]],
    styles: dict[str, Style],
    spread_at: Callable[[Group, Point], Spread | None],
) -> Figure:
    """Return a metric over a setting, one line per group."""
    plot = empty_plot()
    axis, groups = along
    drawn = with_spreads(groups, spread_at)
    places = [[axis.value(replace(group, points=(point,))) for point, _ in spreads] for group, spreads in drawn]
    for (group, spreads), x, style in zip(drawn, places, styles.values(), strict=False):
        settings = [f"{axis.title}: {value:,}<br>" for value in x]
        plot.add_trace(line(group, spreads, x, metric, style, sizes=[MARKER] * len(x), settings=settings))
    values = sorted({value for x in places for value in x})
    plot.update_xaxes(**values_axis(axis.title, values, logarithmic=is_logarithmic(values)))
    largest = max(spread.high for _, spreads in drawn for _, spread in spreads)
    plot.update_yaxes(title_text=title(metric), range=[0, 1.08 * largest / metric.display.size])
    plot.update_layout(**legend(len(drawn)))
    caption = caption_over_ranks(metric, [group for group, _ in drawn], groups)
    where = ", ".join(sorted({point.place for group in groups for point in group.points}))
    return Figure(metric.name, heading, f"{caption} Over the {axis.title.partition(' (')[0].lower()}, {where}.", plot)


def marker_sizes(x: Sequence[Sequence[int]], y: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the sizes of the markers of each line, so that each of several in one place shows around the next.

    Lines are drawn in this order, so the first of them is the largest; `y` are shares of the axis.
    """
    places = [[(i, round(j / SAME_PLACE)) for i, j in zip(*each, strict=True)] for each in zip(x, y, strict=True)]
    above: Counter[tuple[int, int]] = Counter()
    counts: list[list[int]] = []
    for line_places in reversed(places):
        counts.insert(0, [above[place] for place in line_places])
        above.update(set(line_places))
    ring = min(RING, MOST_RING / max(above.values()))
    return [[MARKER + ring * count for count in each] for each in counts]


def line(
    group: Group,
    spreads: Sequence[tuple[Point, Spread]],
    x: Sequence[int],
    metric: Metric,
    style: Style,
    *,
    sizes: Sequence[float],
    settings: Sequence[str] = (),
) -> go.Scatter:
    """Return one group's line: medians, with bars from the smallest to the largest repeat.

    `settings` are hover lines, one per point.
    """
    size = metric.display.size
    return go.Scatter(
        name=plot_text(group.label + (f" ({group.mode})" if group.unequal_work else "")),
        x=list(x),
        y=[spread.median / size for _, spread in spreads],
        error_y={
            "type": "data",
            "visible": any(spread.n > 1 for _, spread in spreads),
            "symmetric": False,
            "array": [(spread.high - spread.median) / size for _, spread in spreads],
            "arrayminus": [(spread.median - spread.low) / size for _, spread in spreads],
            "thickness": 1.5,
            "width": 5,
        },
        mode="lines+markers",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={
            "symbol": [f"{style.symbol}-open" if point.doubtful else style.symbol for point, _ in spreads],
            "size": list(sizes),
        },
        hoverinfo="text",
        hovertext=[
            f"{plot_text(group.label)}<br>{setting}{point.place}, n = {spread.n}<br>"
            f"{title(metric)}: {shown_spread(metric, spread)}"
            for (point, spread), setting in zip(spreads, settings or [""] * len(spreads), strict=True)
        ],
    )


def add_ideal(plot: go.Figure, metric: Metric, groups: Sequence[Group], ranks: Sequence[int]) -> None:
    """Draw the line of perfect scaling, dashed: one for each reference."""
    if metric not in {m.SPEEDUP, m.EFFICIENCY}:
        return
    starts = sorted({group.reference.ranks for group in groups if group.reference})
    for start in starts if metric is m.SPEEDUP else starts[:1]:
        x = [count for count in ranks if count >= start]
        y = [count / start if metric is m.SPEEDUP else 1 / metric.display.size for count in x]
        named = "ideal" if len(starts) == 1 or metric is m.EFFICIENCY else f"ideal from {plural(start, 'rank')}"
        style = {"color": GREY, "dash": "dash", "width": 1.5}
        plot.add_trace(go.Scatter(name=named, x=x, y=y, mode="lines", line=style, hoverinfo="skip"))


def add_extrapolated(plot: go.Figure, metric: Metric, fits: Mapping[str, Fit], styles: dict[str, Style]) -> None:
    """Draw fitted laws beyond the most measured ranks, dotted, in the colours of their lines; one legend entry."""
    size = metric.display.size
    for label, fit in fits.items():
        x = np.linspace(fit.ranks[-1], fit.farthest, 9).tolist()
        far = f"{title(metric)}: {shown(metric, fit.throughput(fit.farthest).value)}"
        where = f"Extrapolated to {plural(fit.farthest, 'rank')} by {fit.law.name}"
        plot.add_trace(
            go.Scatter(
                name=EXTRAPOLATED,
                legendgroup=EXTRAPOLATED,
                showlegend=False,
                x=x,
                y=[fit.throughput(ranks).value / size for ranks in x],
                mode="lines+markers",
                line={"color": styles[label].colour, "dash": "dot", "width": 1.5},
                marker={"symbol": "circle-open", "size": [0] * (len(x) - 1) + [11]},
                hoverinfo="text",
                hovertext=f"{plot_text(label)}<br>{where}<br>{far}",
            )
        )
    if fits:
        style = {"color": GREY, "dash": "dot", "width": 1.5}
        entry = {"x": [None], "y": [None], "mode": "lines", "line": style, "showlegend": True}
        plot.add_trace(go.Scatter(name=EXTRAPOLATED, legendgroup=EXTRAPOLATED, **entry))


def extrapolated_words(fits: Mapping[str, Fit]) -> str:
    """Return the caption's sentence on extrapolated lines."""
    if not fits:
        return ""
    return (
        f" Dotted, to an open circle: extrapolated to {EXTRAPOLATED_TIMES} times the most ranks by the law that fits a "
        "line best (see Fits); nothing was measured there."
    )


def is_logarithmic(values: Sequence[int]) -> bool:
    """Return True if an axis of these values, in order, is logarithmic."""
    doubling = len(values) > 2 and all(later >= DOUBLING * earlier for earlier, later in itertools.pairwise(values))
    return doubling or values[-1] > LARGEST_LINEAR_RATIO * values[0]


def values_axis(name: str, values: Sequence[int], *, logarithmic: bool) -> dict[str, Any]:
    """Return an axis with the measured values, in order, as its ticks and room at both ends."""
    if logarithmic:
        scale: dict[str, Any] = {"type": "log"}
    else:
        room = max(0.5, 0.08 * (values[-1] - values[0]))
        scale = {"range": [values[0] - room, values[-1] + room]}
    return scale | {"title_text": name, "tickvals": list(values), "ticktext": [f"{n:,}" for n in values]}


def lines_axis(groups: Sequence[Group]) -> dict[str, Any]:
    """Return an axis with a place for each line, for points that all have the same number of ranks."""
    named = [plot_text(label, LONGEST_PLACE) for label in without_common_words([group.label for group in groups])]
    named = named if len(groups) <= MOST_NAMED_PLACES else [""] * len(groups)
    title_text = plural(groups[0].points[0].ranks, "rank")
    places = list(range(len(groups)))
    ticks = {"tickvals": places, "ticktext": named, "ticklabeloverflow": "allow"}
    return {"range": [-0.5, len(groups) - 0.5], "title_text": title_text, **ticks}


def without_common_words(labels: Sequence[str]) -> list[str]:
    """Return several labels without the first words that all of them have: the name of a common model."""
    words = [label.split(" ") for label in labels]
    shared = itertools.takewhile(lambda each: len(set(each)) == 1, zip(*(each[:-1] for each in words), strict=False))
    common = sum(1 for _ in shared) if len(labels) > 1 else 0
    return [" ".join(each[common:]) for each in words]


def caption_over_ranks(metric: Metric, drawn: Sequence[Group], groups: Sequence[Group]) -> str:
    """Return the caption: definition, meaning of marker and bar, reference, n, and omitted lines and runs."""
    sentences = [
        f"{word(groups)}: {metric.definition}",
        f"Marker: median over repeats; bar: smallest to largest; {n_of(drawn)}.",
    ]
    if metric in {m.SPEEDUP, m.EFFICIENCY}:
        references = {group.reference.place: None for group in drawn if group.reference}
        which = next(iter(references)) if len(references) == 1 else "the first marker of each line"
        sentences.append(f"Reference: {which}; dashed: ideal.")
        if len(groups) > len(drawn):
            why = "one rank count only" if metric is m.EFFICIENCY else "one rank count only, or weak scaling"
            sentences.append(f"Without: {plural(len(groups) - len(drawn), 'line')} ({why}).")
    sentences += [f"Different work, {group.label}: {work}." for group in drawn if (work := group.unequal_work)]
    points = [point for group in drawn for point in group.points]
    if any(point.doubtful for point in points):
        sentences.append("Open marker: the loss of no repeat is believed.")
    left_out = sum(len(point.doubted) for point in points if not point.doubtful)
    if left_out:
        sentences.append(f"Left out of the medians: {plural(left_out, 'run')} with a loss that is not believed.")
    if len(drawn) > MOST_LEGEND_LINES:
        sentences.append(f"{len(drawn)} lines: hover for their names.")
    return " ".join(sentences)


def why_nothing(groups: Sequence[Group], metric: Metric) -> str:
    """Return the reason that a metric has no figure."""
    if (
        metric is m.SPEEDUP
        and all(group.mode == WEAK for group in groups if group.reference)
        and any(group.mode == WEAK for group in groups)
    ):
        return "no speedup is given for weak scaling, where the work grows with the ranks; see efficiency."
    return f"no {metric.name}, because no line has points of different rank counts. " + (
        "Add logs of other rank counts to get one."
        if all(run.log for group in groups for run in group.runs)
        else "Sweep over nodes or ranks_per_node to get one."
    )


def n_of(groups: Sequence[Group]) -> str:
    """Return the number of repeats of the points: `n = 2 each`."""
    counts = {len(point.runs) for group in groups for point in group.points}
    low, high = min(counts), max(counts)
    if high == 1:
        return "n = 1, so there is no bar"
    return f"n = {low} each" if low == high else f"n = {low} to {high}"
