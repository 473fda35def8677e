"""Hardware use of each node of a run, from the records of jobs.runtime.node.use, and the nodes that differ.

Values in files are untrusted: a record that does not fit is left out.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from analysis.formatting import short, shown, title
from analysis.metrics.storage import phase_of
from analysis.run import RunResult
from analysis.untrusted import as_number
from jobs import metrics as m
from jobs.metrics import Metric, StoragePhase
from jobs.rundir import RunDir, read_records
from jobs.runtime.node.use import LEVELS, NODE_NUMBER, RATES, use_of

METRICS = (m.NODE_CPU_BUSY, m.NODE_MEMORY_USED, m.NODE_GPU_BUSY, m.NODE_GPU_MEMORY_USED, m.NODE_RECEIVED, m.NODE_SENT,
           m.NODE_DISK_READ, m.NODE_DISK_WRITTEN)  # fmt: skip
assert set(METRICS) == {*RATES.values(), *LEVELS}
# A node differs if a share of its time or memory is so far from the median of the nodes.
APART = 0.1
MEASURED = {StoragePhase.train, StoragePhase.serve}
LONGEST_NAME = 40
# Records of one run: a day of 64 nodes has half a million.
MOST_RECORDS = 5_000_000


class Interval(NamedTuple):
    """The use of a node from one look to the next."""

    ended_s: float
    """Seconds since the epoch, by the clock of the node."""
    length_s: float
    phase: StoragePhase
    values: Mapping[Metric, float]


@dataclass(frozen=True)
class NodeUse:
    """A node of a run."""

    node: str
    """Its name, with its number where several nodes of the run have the name: emulated ones."""
    intervals: Sequence[Interval]

    @functools.cached_property
    def means(self) -> dict[Metric, float]:
        """Return the means over the steps, or the load of a run that serves; without either over all of its time."""
        steps = [each for each in self.intervals if each.phase in MEASURED] or self.intervals
        known = {metric: [each for each in steps if metric in each.values] for metric in METRICS}
        return {
            metric: math.fsum(each.length_s * each.values[metric] for each in found)
            / math.fsum(each.length_s for each in found)
            for metric, found in known.items()
            if found
        }


def read_node_use(run: RunDir) -> tuple[NodeUse, ...]:
    """Return the nodes whose use a run recorded, by number; a start on another node adds that node."""
    found: dict[tuple[int, str], list[Interval]] = defaultdict(list)
    room = MOST_RECORDS
    for file in run.storage_logs:
        of_node: list[Interval] | None = None
        with suppress(OSError):
            for record in read_records(file):
                if isinstance(name := record.get("node"), str):
                    number = record.get(NODE_NUMBER)
                    of_node = found[number, name] if type(number) is int else None
                if of_node is None and "node" in record:
                    break  # another rank of the node
                ended_s, length_s, phase = as_number(record.get("time_s")), record.get("interval_s"), phase_of(record)
                if of_node is not None and ended_s and phase and (values := use_of(record)):
                    of_node.append(Interval(ended_s, float(length_s or 0.0), phase, values))
                    room -= 1
                if room < 0:
                    break
    names = Counter(name for _, name in found)
    return tuple(
        NodeUse(
            short(name, LONGEST_NAME) if names[name] == 1 else f"node {number} ({short(name, LONGEST_NAME)})",
            sorted(intervals, key=lambda each: each.ended_s),
        )
        for (number, name), intervals in sorted(found.items())
        if intervals
    )


def node_use_values(nodes: Sequence[NodeUse]) -> dict[Metric, float]:
    """Return the means of a run over its nodes."""
    known = {metric: [node.means[metric] for node in nodes if metric in node.means] for metric in METRICS}
    return {metric: statistics.fmean(found) for metric, found in known.items() if found}


def can_differ(run: RunResult) -> bool:
    """Return True if the run has several nodes; emulated ones are one machine."""
    return len(run.node_use) > 1 and run.started.get("emulated_nodes") is not True


def differences(run: RunResult) -> dict[str, str]:
    """Return the nodes of a run that differ from the median of its nodes, each with what differs as text."""
    words: dict[str, list[str]] = defaultdict(list)
    nodes = run.node_use if can_differ(run) else ()
    for metric in METRICS:
        known = {node.node: node.means[metric] for node in nodes if metric in node.means}
        middle = statistics.median(known.values()) if len(known) > 1 and metric.shown_in is m.PERCENT else None
        for node, value in known.items():
            if middle is not None and abs(value - middle) > APART:
                words[node].append(f"{title(metric)} {shown(metric, value)}, median {shown(metric, middle)}")
    return {node: "; ".join(texts) for node, texts in words.items()}
