"""Read and write throughput over time, with the phases of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import plotly.graph_objects as go

from analysis.formatting import plural
from analysis.metrics.storage import Storage
from analysis.report.figures.style import COLOURS, GREY, Figure, empty_plot, legend, word_of
from analysis.run import RunResult
from jobs import metrics as m
from jobs.metrics import MEGABYTE_PER_S, StoragePhase

HEADING = "Storage throughput over time"
# A browser draws no more of them in the time that a reader waits.
MOST_POINTS = 2_000
MOST_SPANS = 200
COLOUR_OF = {
    StoragePhase.load: "#009E73",
    StoragePhase.checkpoint: "#CC79A7",
    StoragePhase.validate: "#E69F00",
}


def storage_figure(stored: Sequence[tuple[RunResult, Storage]]) -> Figure | None:
    """Return the throughput of the first run, which moved the most bytes; None if no run recorded its storage."""
    if not stored:
        return None
    run, storage = stored[0]
    first, last = min(storage.whole), max(storage.whole)
    width = -(-(last - first + 1) // MOST_POINTS)
    plot = empty_plot()
    for place, name in enumerate(m.STORAGE_DIRECTIONS):
        # From the start of one second to that of the next.
        rates = [highest(storage, first + second, width, place) for second in range(0, last - first + 1, width)]
        plot.add_trace(
            go.Scatter(
                name=name,
                x=[*range(0, last - first + 1, width), last - first + 1],
                y=[*rates, rates[-1]],
                mode="lines",
                line={"color": COLOURS[place], "width": 1.5, "shape": "hv"},
            )
        )
    for phase, began, ended in list(spans(storage))[:MOST_SPANS]:
        plot.add_vrect(
            x0=began - first,
            x1=ended - first,
            fillcolor=COLOUR_OF[phase],
            opacity=0.25,
            line_width=0,
            layer="below",
            annotation={"text": phase.name, "font": {"size": 11, "color": GREY}, "textangle": -90},
            annotation_position="top left",
        )
    plot.update_layout(**legend(len(m.STORAGE_DIRECTIONS)))
    plot.update_xaxes(title_text="Time since the first record (s)")
    plot.update_yaxes(title_text=f"Throughput ({MEGABYTE_PER_S.name})", rangemode="tozero")
    others = f" Not drawn: {plural(len(stored) - 1, 'run')} that moved less." if len(stored) > 1 else ""
    each = "second" if width == 1 else f"{width:,} seconds, the busiest second of them"
    caption = (
        f"{word_of([run])}: {run.name}, all ranks together, one value a {each}. Shaded: phases load, checkpoint (also "
        f"in the background of steps) and validate; the rest are steps. {m.STORAGE_READ_PEAK.definition} "
        f"{m.STORAGE_WRITE_PEAK.definition}{others}"
    )
    return Figure("storage", HEADING, caption, plot, wide=True)


def highest(storage: Storage, first: int, width: int, place: int) -> float:
    """Return the largest throughput in some seconds, in the unit of the figure."""
    nothing = (0.0, 0.0)
    return max(storage.whole.get(first + i, nothing)[place] for i in range(width)) / MEGABYTE_PER_S.size


def spans(storage: Storage) -> Iterator[tuple[StoragePhase, int, int]]:
    """Yield the times of the phases that are shaded, each with its first second and the one after its last."""
    for phase in COLOUR_OF:
        seconds = sorted(storage.phase(phase))
        starts = [i for i, second in enumerate(seconds) if i == 0 or second > seconds[i - 1] + 1]
        for begin, end in pairwise([*starts, len(seconds)]):
            yield phase, seconds[begin], seconds[end - 1] + 1
