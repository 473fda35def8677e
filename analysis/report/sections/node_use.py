"""The table of hardware use: one row per node, with what differs from the other nodes of the run."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import ABSENT, plural, shown, title
from analysis.metrics.node_use import METRICS, can_differ, differences
from analysis.report.digest import Digest
from analysis.report.figures.node_use import first_nodes, node_use_figure
from analysis.report.figures.style import Section
from analysis.run import RunResult, hardware
from jobs.metrics import Metric

HEADING = "Hardware use"
# Nodes of one run in the table.
MOST_NODES = 16


def node_use_section(digest: Digest) -> Section | None:
    """Return a row for each node of each run that recorded its use, with the figure of one run; else None."""
    found = [run for run in digest.recorded if run.node_use]
    known = [metric for metric in METRICS if any(metric in node.means for run in found for node in run.node_use)]
    rows = [
        [
            f"{hardware([run])}: {run.name}",
            node.node,
            *(shown_use(metric, node.means.get(metric)) for metric in known),
            differs.get(node.node, "no" if can_differ(run) else ABSENT),
        ]
        for run in found
        for differs in [differences(run)]
        for node in first_nodes(run, MOST_NODES)
    ]
    defined = " ".join(f"{metric.name}: {metric.definition}" for metric in known)
    note = (
        "One row per node, means over the steps, or over the load of a run that serves; without either over all of the "
        "run. A server's balancer and load generator are on the first node. Emulated nodes share one machine, and each "
        "has the values of all of it. A node differs where a share is more than 10 percentage points from the median "
        f"of the nodes. A run has at most {MOST_NODES} rows, the nodes that differ first. {defined}"
    )
    headings = ("Run", "Node", *map(title, known), "Differs")
    return Section(HEADING, note, headings, rows, figure=node_use_figure(found)) if rows else None


def shown_use(metric: Metric, value: float | None) -> str:
    """Return a mean as text; less than a thousandth of its unit is 0."""
    return "0" if value is not None and value < metric.display.size / 1000 else shown(metric, value)


def nodes_differ(runs: Sequence[RunResult]) -> list[str]:
    """Warn of runs with nodes that differ from the others, each with its first one."""
    found = {run.name: each for run in runs if (each := differences(run))}
    if not found:
        return []
    name, words = next(iter(found.items()))
    node, text = next(iter(words.items()))
    more = f", and {len(words) - 1} more of its nodes" if len(words) > 1 else ""
    return [
        f"Nodes used their hardware differently in {len(found)} of {plural(len(runs), 'run')}, by more than 10 "
        f"percentage points: {node} of {name} ({text}){more}. Section {HEADING} has all of them."
    ]
