"""Figures of benchmarks that are not training: bandwidth over message size, rate over load, or bars."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from analysis.formatting import binary_size, plot_text, plural, shown, title, unit, within_sentence, without_unit
from analysis.logs.measurements import SUBJECTS, Series, names_below
from analysis.report.digest import Digest
from analysis.report.figures.bars import MOST_BARS
from analysis.report.figures.style import COLOURS, DASHES, SYMBOLS, Figure, empty_plot, legend
from jobs.metrics import Metric

# More lines hide each other.
MOST_LINES = 28
# Named places are at least this share of a logarithmic axis apart.
APART = 0.12
# Beyond this ratio of values a linear axis hides the small ones.
LARGEST_LINEAR_RATIO = 16


def benchmark_figures(digest: Digest) -> list[Figure]:
    """Return a figure for each merit of each subject that has more than one measurement, in the order of subjects."""
    kinds: dict[tuple[str, Metric, Metric | None], list[Series]] = defaultdict(list)
    for each in digest.series:
        kinds[each.subject.name, each.merit, each.axis].append(each)
    order = [subject.name for subject in SUBJECTS]
    return [
        figure
        for (subject, merit, axis), members in sorted(kinds.items(), key=lambda item: order.index(item[0][0]))
        if (figure := (over_axis(subject, merit, axis, members) if axis else bars(subject, merit, members)))
    ]


def over_axis(subject: str, merit: Metric, axis: Metric, members: Sequence[Series]) -> Figure:
    """Return a merit over a size or a load, one line per series, the axis below logarithmic."""
    drawn = sorted(members, key=lambda each: -each.best[1])[:MOST_LINES]
    names = labels(drawn)
    plot = empty_plot()
    strokes = itertools.cycle((colour, dash) for dash in DASHES for colour in COLOURS)
    for series, name, (colour, dash), symbol in zip(drawn, names, strokes, itertools.cycle(SYMBOLS), strict=False):
        known = [(at, value) for at in series.points if at and (value := series.median(merit, at))]
        plot.add_trace(
            go.Scatter(
                name=plot_text(name),
                x=[at for at, _ in known],
                y=[value / merit.display.size for _, value in known],
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2},
                marker={"symbol": symbol, "size": 7, "color": colour},
                hoverinfo="text",
                hovertext=[plot_text("; ".join(facts(series, at, name)), 300) for at, _ in known],
            )
        )
    ticks = apart(sorted({at for series in drawn for at in series.points if at}))
    texts = [binary_size(at) if axis.unit == "B" else f"{at:,.6g}" for at in ticks]
    plot.update_xaxes(title_text=without_unit(axis), type="log", tickvals=ticks, ticktext=texts)
    values = [value for series in drawn for at in series.points if (value := series.median(merit, at))]
    logarithmic = max(values) > LARGEST_LINEAR_RATIO * min(values)
    scale = {"type": "log", "dtick": "D2", "tickformat": ",.3~f"} if logarithmic else {"rangemode": "tozero"}
    plot.update_yaxes(title_text=title(merit), **scale)
    plot.update_layout(**legend(len(drawn)))
    caption = f"{hardware(drawn)}: {merit.definition} One line per series, a marker the median of its repeats. "
    caption += (
        f"{'Both axes are' if logarithmic else 'The axis below is'} logarithmic.{left_out(len(members) - len(drawn))}"
    )
    return Figure(
        f"{merit.name}-{axis.name}", f"{subject}: {within_sentence(merit)} over {within_sentence(axis)}", caption, plot
    )


def apart(places: Sequence[float]) -> list[float]:
    """Return the places of a logarithmic axis that have room for a name, from the last one down."""
    named = list(places[-1:])
    for place in reversed(places[:-1]):
        if math.log(named[-1] / place) >= APART * math.log(places[-1] / places[0]):
            named.append(place)
    return named[::-1]


def bars(subject: str, merit: Metric, members: Sequence[Series]) -> Figure | None:
    """Return a bar for each series that has no axis; None for a single one, which the headline has."""
    if len(members) < 2:
        return None
    drawn = sorted(members, key=lambda each: each.best[1])[-MOST_BARS:]
    names = labels(drawn)
    plot = empty_plot()
    plot.add_trace(
        go.Bar(
            orientation="h",
            y=list(range(len(drawn))),
            x=[each.best[1] / merit.display.size for each in drawn],
            marker={"color": COLOURS[0]},
            hoverinfo="text",
            hovertext=[plot_text("; ".join(facts(each, None, n)), 300) for each, n in zip(drawn, names, strict=True)],
        )
    )
    plot.update_layout(bargap=0.35, showlegend=False, height=120 + 26 * max(4, len(drawn)))
    texts = [plot_text(name) for name in names]
    plot.update_yaxes(tickvals=list(range(len(drawn))), ticktext=texts, showgrid=False, ticks="", automargin=True)
    plot.update_xaxes(title_text=title(merit), rangemode="tozero", showgrid=True)
    caption = f"{hardware(drawn)}: {merit.definition} One bar per test, the median of its repeats."
    caption += left_out(len(members) - len(drawn))
    return Figure(f"{merit.name}-bars", f"{subject}: {within_sentence(merit)}", caption, plot, wide=True)


def labels(drawn: Sequence[Series]) -> list[str]:
    """Return a name for each series: its test, with its file if two series have the same test."""
    below = names_below(drawn)
    names = [", ".join(filter(None, (each.name, each.lengths))) for each in drawn]
    several = len({each.place for each in drawn}) > 1
    return [
        f"{name}, {below[each.place]}"
        if several and (names.count(name) > 1 or each.name == each.measurements[0].form)
        else name
        for each, name in zip(drawn, names, strict=True)
    ]


def facts(series: Series, at: float | None, name: str) -> Iterator[str]:
    """Yield what a marker shows: its name, its place, its merit and latencies, its repeats."""
    yield name
    if series.axis and at is not None:
        yield binary_size(at) if series.axis.unit == "B" else f"{within_sentence(series.axis)} {at:,.6g}"
    for metric in (series.merit, *series.subject.latencies):
        if (value := series.median(metric, at)) is not None:
            yield f"{within_sentence(metric)} {shown(metric, value)} {unit(metric)}".rstrip()
    yield f"n = {len(series.points[at])}"


def hardware(drawn: Sequence[Series]) -> str:
    """Return the hardware that the logs name, for the first word of a caption."""
    named = sorted({each.hardware for series in drawn for each in series.measurements if each.hardware})
    return " and ".join(named) if named else "Hardware not named in the logs"


def left_out(count: int) -> str:
    """Return the number of series that are not drawn, as a sentence; empty if all are."""
    return f" Left out: {plural(count, 'further test')}, in the tables." if count > 0 else ""
