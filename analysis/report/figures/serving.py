"""Figures of served loads: rate over load, latency over rate, and the replicas of one load over its time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import plotly.graph_objects as go

from analysis.formatting import plot_text, plural, shown, title, unit, within_sentence, without_unit
from analysis.intervals import Spread
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.style import COLOURS, DASHES, SYMBOLS, Figure, empty_plot, legend, word_of
from analysis.run import RunResult
from analysis.scaling.serving import LoadLine, LoadPoint, frontier, latency_of, order, rate_of
from jobs import metrics as m
from jobs.metrics import Metric

# More lines hide each other.
MOST_LINES = 20
Drawn = Sequence[tuple[LoadPoint, Spread, float]]
"""Points with their value above and the one below."""


def serving_figures(digest: Digest) -> list[Figure]:
    """Return rate over each load that varies, and latency over rate; none without two points of one line."""
    lines = [line for line in digest.load_lines if len(line.points) > 1]
    axes = [axis for axis in (a.CONCURRENCY, a.OFFERED_REQUESTS_PER_S) if any(line.axis is axis for line in lines)]
    figures = [over_load(axis, [line for line in lines if line.axis is axis]) for axis in axes]
    return figures + ([pareto] if lines and (pareto := latency_over_rate(lines)) else [])


def over_load(axis: Metric, lines: Sequence[LoadLine]) -> Figure:
    """Return the rate over the load, one line per configuration."""
    rate = rate_of(lines)
    drawn = {
        line.label: [(point, spread, point.load) for point in line.points if (spread := point.spread(rate))]
        for line in lines[:MOST_LINES]
    }
    plot = lines_plot(drawn, rate, axis)
    loads = sorted({point.load for line in lines for point in line.points})
    plot.update_xaxes(title_text=without_unit(axis), type="log", tickvals=loads, ticktext=[f"{x:,g}" for x in loads])
    plot.update_yaxes(title_text=title(rate), rangemode="tozero")
    caption = (
        f"{hardware_of(lines)}: {rate.definition} A marker is the median of its repeats, a bar their range. "
        f"{left_out(lines)}"
    )
    heading = f"Serving: {within_sentence(rate)} over {within_sentence(axis)}"
    return Figure(f"serving-{axis.name}", heading, caption, plot)


def latency_over_rate(lines: Sequence[LoadLine]) -> Figure | None:
    """Return the latency over the rate per rank, with the load at each marker; None if one is not known."""
    rate, points = m.OUTPUT_TOKENS_PER_S_PER_RANK, [point for line in lines for point in line.points]
    latency = latency_of(points)
    if latency is None or any(point.median(rate) is None for point in points):
        return None
    drawn = {
        line.label: [
            (point, spread, at / rate.display.size)
            for point in line.points
            if (spread := point.spread(latency)) and (at := point.median(rate)) is not None
        ]
        for line in lines[:MOST_LINES]
    }
    best = frontier(lines)
    plot = lines_plot(drawn, latency, rate)
    for x, y, load in ((x, spread.median, point.load) for each in drawn.values() for point, spread, x in each):
        plot.add_annotation(
            x=x, y=y / latency.display.size, text=f"{load:,g}", showarrow=False, yshift=12, font={"size": 11}
        )
    plot.update_xaxes(title_text=title(rate), rangemode="tozero")
    plot.update_yaxes(title_text=title(latency), rangemode="tozero")
    caption = (
        f"{hardware_of(lines)}: {latency.definition} At each marker its load. "
        f"{plural(len(best), 'point')} that no other of equal model and requests beats in both: Pareto in the table. "
        f"{left_out(lines)}"
    )
    return Figure("serving-pareto", f"Serving: {within_sentence(latency)} over {within_sentence(rate)}", caption, plot)


def lines_plot(drawn: Mapping[str, Drawn], above: Metric, below: Metric) -> go.Figure:
    """Return a plot with a line for each label; markers of doubtful points are hollow."""
    plot = empty_plot()
    strokes = itertools.cycle((colour, dash) for dash in DASHES for colour in COLOURS)
    size = above.display.size
    for (label, points), (colour, dash), symbol in zip(drawn.items(), strokes, itertools.cycle(SYMBOLS), strict=False):
        plot.add_trace(
            go.Scatter(
                name=plot_text(label),
                x=[x for *_, x in points],
                y=[spread.median / size for _, spread, _ in points],
                error_y={
                    "type": "data",
                    "visible": any(spread.n > 1 for _, spread, _ in points),
                    "symmetric": False,
                    "array": [(spread.high - spread.median) / size for _, spread, _ in points],
                    "arrayminus": [(spread.median - spread.low) / size for _, spread, _ in points],
                },
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2},
                marker={"size": 8, "color": colour, "symbol": [f"{symbol}{'-open' * p.doubtful}" for p, *_ in points]},
                hoverinfo="text",
                hovertext=[plot_text("; ".join(facts(label, point, above, below)), 300) for point, *_ in points],
            )
        )
    plot.update_layout(**legend(len(drawn)))
    return plot


def facts(label: str, point: LoadPoint, *metrics: Metric) -> Iterator[str]:
    """Yield what a marker shows: its line, load, values and repeats."""
    yield label
    yield f"load {point.load:,g}"
    for metric in metrics:
        if (value := point.median(metric)) is not None:
            yield f"{within_sentence(metric)} {shown(metric, value)} {unit(metric)}".rstrip()
    yield f"n = {len(point.runs)}{', doubtful' * point.doubtful}"


def left_out(lines: Sequence[LoadLine]) -> str:
    """Return the sentences on doubtful points and on lines that are not drawn, if there are any."""
    doubtful = any(point.doubtful for line in lines for point in line.points)
    words = ["Hollow markers are doubtful (failed requests, or different counts of tokens)."] if doubtful else []
    more = len(lines) - MOST_LINES
    return " ".join(
        [*words, *([f"Left out: {plural(more, 'further configuration')}, in the table."] if more > 0 else [])]
    )


def hardware_of(lines: Sequence[LoadLine]) -> str:
    """Return the hardware of the runs, for the first word of a caption."""
    return word_of(run for line in lines for point in line.points for run in point.runs)


def replicas_figure(runs: Sequence[RunResult]) -> Figure | None:
    """Return requests and KV cache over time of the run with the most waiting requests; None if none has samples."""
    sampled = [run for run in runs if run.served and m.REQUESTS_RUNNING_PEAK in run.values]
    if not sampled:
        return None
    run = min(sampled, key=lambda run: (-run.values.get(m.REQUESTS_WAITING_PEAK, 0.0), *order(run)))
    assert run.served is not None
    plot = empty_plot()
    for metric, colour in ((m.REQUESTS_RUNNING, COLOURS[0]), (m.REQUESTS_WAITING, COLOURS[1])):
        seconds = run.served.together(metric)
        plot.add_trace(
            go.Scatter(
                name=without_unit(metric),
                x=[at for at, _ in seconds],
                y=[value for _, value in seconds],
                mode="lines",
                line={"color": colour, "width": 2},
            )
        )
    for replica, dash in zip(run.served.replicas, itertools.cycle(DASHES), strict=False):
        samples = replica.gauges.get(m.KV_CACHE_USE, ())
        plot.add_trace(
            go.Scatter(
                name=f"KV cache of replica {replica.number} (%)",
                x=[at for at, _ in samples],
                y=[value / m.KV_CACHE_USE.display.size for _, value in samples],
                yaxis="y2",
                mode="lines",
                line={"color": COLOURS[2], "dash": dash, "width": 1.5},
            )
        )
    plot.update_layout(
        yaxis_title="Requests, all replicas",
        yaxis2={
            "title": "KV cache (%)",
            "overlaying": "y",
            "side": "right",
            "range": [0, 100],
            "tickmode": "linear",
            "dtick": 25,
            "showgrid": False,
            "automargin": True,
        },
        **legend(2 + len(run.served.replicas)),
    )
    plot.update_xaxes(title_text="Time since the first request (s)")
    others = f" Not drawn: {plural(len(sampled) - 1, 'run')} with fewer requests waiting." if len(sampled) > 1 else ""
    caption = f"{word_of([run])}: {run.name}, one sample of each replica a second.{others}"
    return Figure("serving-replicas", "Replicas over time", caption, plot, wide=True)
