"""Hardware use over time: a small panel for each node of a run, side by side with one scale."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.formatting import plot_text, plural
from analysis.metrics.node_use import NodeUse, differences
from analysis.report.figures.style import AXIS, COLOURS, Figure, empty_plot, legend, word_of
from analysis.run import RunResult
from jobs import metrics as m
from jobs.metrics import PERCENT

HEADING = "Hardware use by node"
LINES = {
    m.NODE_CPU_BUSY: "CPU busy",
    m.NODE_MEMORY_USED: "memory used",
    m.NODE_GPU_BUSY: "GPU busy",
    m.NODE_GPU_MEMORY_USED: "GPU memory used",
}
MOST_PANELS = 6
GAP = 0.02
# Points of a line in a panel.
MOST_POINTS = 300


def first_nodes(run: RunResult, most: int) -> list[NodeUse]:
    """Return the nodes that are shown, in their order: those that differ, then the first ones."""
    differs = differences(run)
    chosen = sorted(run.node_use, key=lambda node: node.node not in differs)[:most]
    return [node for node in run.node_use if node in chosen]


def node_use_figure(runs: Sequence[RunResult]) -> Figure | None:
    """Return the use of the nodes of the run with the most of them; None if no run recorded it."""
    run = max((run for run in runs if run.node_use), key=lambda run: len(run.node_use), default=None)
    if run is None:
        return None
    nodes = first_nodes(run, MOST_PANELS)
    first_s = min(node.intervals[0].ended_s - node.intervals[0].length_s for node in nodes)
    plot, named = empty_plot(), set[str]()
    for place, node in enumerate(nodes):
        axis = f"x{place + 1 if place else ''}"
        kept = node.intervals[:: -(-len(node.intervals) // MOST_POINTS)]
        for colour, (metric, name) in zip(COLOURS, LINES.items(), strict=False):
            points = [(each.ended_s - first_s, each.values[metric]) for each in kept if metric in each.values]
            if points:
                plot.add_trace(
                    go.Scatter(
                        name=name,
                        legendgroup=name,
                        showlegend=name not in named,
                        xaxis=axis,
                        x=[time_s for time_s, _ in points],
                        y=[share / PERCENT.size for _, share in points],
                        mode="lines+markers",
                        line={"color": colour, "width": 1.5},
                        marker={"size": 3},
                    )
                )
                named.add(name)
        width = (1 + GAP) / len(nodes)
        domain = [place * width, (place + 1) * width - GAP]
        text = f"{plot_text(node.node, 24)}, time (s)"
        plot.update_layout({f"xaxis{axis[1:]}": AXIS | {"domain": domain, "anchor": "y", "title": {"text": text}}})
    plot.update_layout(**legend(len(named)))
    plot.update_yaxes(title_text="Share (%)", range=[0, 100])
    left_out = len(run.node_use) - len(nodes)
    others = f" Not drawn: {plural(left_out, 'node')}, which do not differ or come later." if left_out else ""
    caption = (
        f"{word_of([run])}: {run.name}, one panel per node, from the start of its first record. Emulated nodes share "
        f"one machine, and each shows all of it.{others}"
    )
    return Figure("node-use", HEADING, caption, plot, wide=True)
