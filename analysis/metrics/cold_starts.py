"""Cold and warm starts: whether the machines of a start had started a run of the sweep before, since their boot.

A record of a run does not state it: the runs of a sweep before it do, also those that failed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analysis.run import RunResult
from analysis.untrusted import as_list, moment, number
from jobs import metrics as m
from jobs.metrics import Metric

KEPT = (
    m.STARTUP_READ_BYTES,
    m.SLOWEST_IMPORT_TIME,
    m.CHECKPOINT_FROM_COPIES,
    m.CHECKPOINT_FROM_SHARED,
    m.KERNELS_FOUND,
    m.KERNELS_COMPILED,
)


def found_values(events: Iterable[Mapping[str, Any]]) -> dict[Metric, float]:
    """Return the values of a run, over its starts, that its own records contain."""
    kept: dict[Metric, list[float]] = defaultdict(list)
    for event in events:
        for metric in KEPT:
            if event["event"] in {"started", "kernels"} and (value := number(event, metric)) is not None:
                kept[metric].append(value)
    return {metric: max(values) if metric is m.SLOWEST_IMPORT_TIME else sum(values) for metric, values in kept.items()}


def cold_values(runs: Iterable[RunResult]) -> dict[Path, dict[Metric, float]]:
    """Return the number of cold starts, and the mean times of cold and of warm starts, by the path of the run.

    A start without the identities of its machines, or without a time, is left out.
    """
    starts = sorted(
        (
            (at, run.path, machines, time_s)
            for run in runs
            for event in run.events
            if event["event"] == "started"
            and (machines := frozenset(map(str, as_list(event.get("machines")))))
            and (at := moment(event)) is not None
            and (time_s := number(event, m.STARTUP_TIME)) is not None
        ),
        key=lambda start: start[:2],
    )
    seen: dict[Path, set[str]] = defaultdict(set)
    times_s: dict[Path, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    for _, path, machines, time_s in starts:
        times_s[path][not machines <= seen[path.parent]].append(time_s)
        seen[path.parent] |= machines
    names = {True: m.COLD_STARTUP_TIME, False: m.WARM_STARTUP_TIME}
    return {
        path: {
            m.COLD_STARTS: len(kinds[True]),
            **{names[is_cold]: statistics.fmean(known) for is_cold, known in kinds.items() if known},
        }
        for path, kinds in times_s.items()
    }
