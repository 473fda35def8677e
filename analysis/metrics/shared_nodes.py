"""Runs that trained at the same time on the same machine: they shared its processors, memory and network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from analysis.run import RunResult
from analysis.untrusted import as_list

# A run often starts within the second in which the one before it ends.
LEAST_OVERLAP_S = 1.0
ENDS = {"finished", "stopped", "failed", "requeued"}


def side_by_side(runs: Iterable[RunResult]) -> dict[Path, RunResult]:
    """Return, by path of each run that trained at the same time as another one on a machine, one such other run."""
    on_machine: dict[str, list[tuple[float, float, RunResult]]] = defaultdict(list)
    for run in runs:
        for begin, end in training_times(run):
            for machine in machines(run):
                on_machine[machine].append((begin, end, run))
    beside: dict[Path, RunResult] = {}
    for spans in on_machine.values():
        spans.sort(key=lambda span: span[:2])
        _, latest, longest = spans[0]
        for begin, end, run in spans[1:]:
            if run is not longest and min(end, latest) - begin > LEAST_OVERLAP_S:
                beside.setdefault(run.path, longest)
                beside.setdefault(longest.path, run)
            if end > latest:
                latest, longest = end, run
    return beside


def machines(run: RunResult) -> set[str]:
    """Return the machines of a run, else its nodes: emulated nodes have names of their own on one machine."""
    return {str(each) for each in as_list(run.started.get("machines")) or as_list(run.started.get("nodes"))}


def training_times(run: RunResult) -> Iterator[tuple[float, float]]:
    """Yield the first and the last moment of the steps of each start that recorded its end, since the epoch."""
    begin: float | None = None
    for event in run.events:
        try:
            moment = datetime.fromisoformat(str(event.get("time"))).timestamp()
        except ValueError:
            continue
        if event["event"] == "started":
            begin = moment
        elif event["event"] in ENDS and begin is not None:
            yield begin, moment
            begin = None
