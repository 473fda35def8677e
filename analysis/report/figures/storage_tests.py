"""Figures of tests of storage: the rate of each rank in a checkpoint, and samples/s against the workers of a loader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import plotly.graph_objects as go

from analysis.formatting import plot_text, plural
from analysis.metrics.tested_storage import rank_rates
from analysis.report.figures.style import COLOURS, SYMBOLS, Figure, empty_plot, legend, word_of
from analysis.run import RunResult
from jobs import metrics as m

GB = 1e9


def rank_figure(runs: Sequence[RunResult]) -> Figure | None:
    """Return the rates of the ranks of the run with the most of them; None if no run has several ranks."""
    rates = {run.name: {each: rank_rates(run.events, each) for each in m.CHECKPOINT_IO_RATES} for run in runs}
    shown = max(runs, key=lambda run: len(rates[run.name]["write"]), default=None)
    if shown is None or len(rates[shown.name]["write"]) < 2:
        return None
    plot = empty_plot()
    for colour, symbol, (direction, of_ranks) in zip(COLOURS, SYMBOLS, rates[shown.name].items(), strict=False):
        plot.add_trace(
            go.Scatter(
                name=direction,
                x=list(of_ranks),
                y=[rate / GB for rate in of_ranks.values()],
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 8},
            )
        )
    plot.update_layout(**legend(2))
    plot.update_xaxes(title_text="Rank")
    plot.update_yaxes(title_text="Rate of the rank (GB/s)", rangemode="tozero")
    caption = (
        f"{word_of([shown])}: {shown.name}, the rate at which each rank wrote and read its own part, the median over "
        "the repeats. A rank far below the others is a straggler, which all others wait for."
    )
    return Figure("checkpoint-ranks", "Checkpoint rate of each rank", caption, plot)


def workers_figure(runs: Sequence[RunResult]) -> Figure | None:
    """Return samples/s against workers, a line per format, number of ranks and cache; None if there is no sweep."""
    lines: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        workers = run.setting("storage.data.workers")
        for cache in m.DATA_READ_WAITING:
            rate = run.values.get(m.DATA_READ_RATES[cache, "samples"])
            if isinstance(workers, int) and rate is not None:
                name = f"{run.setting('storage.data.format')}, {plural(run.ranks or 0, 'rank')}, {cache}"
                lines[name][workers].append(rate)
    if len({workers for points in lines.values() for workers in points}) < 2:
        return None
    plot = empty_plot()
    for place, (name, points) in enumerate(sorted(lines.items())):
        plot.add_trace(
            go.Scatter(
                name=plot_text(name),
                x=sorted(points),
                y=[median(points[workers]) for workers in sorted(points)],
                mode="lines+markers",
                line={"color": COLOURS[place % len(COLOURS)]},
                marker={"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 8},
            )
        )
    plot.update_layout(**legend(len(lines)))
    plot.update_xaxes(title_text="Workers of each rank (0: the rank reads itself)")
    plot.update_yaxes(title_text="Samples/s of all ranks", rangemode="tozero")
    caption = f"{word_of(runs)}: samples/s of all ranks against the workers of each, the median over repeats."
    return Figure("data-workers", "Samples/s against workers", caption, plot)
