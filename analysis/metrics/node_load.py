"""Other work on the node of a run while it trained, from its `node_load` events and its start."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.untrusted import number
from jobs import metrics as m
from jobs.metrics import Metric

OVER_SAMPLES: Mapping[Metric, Callable[[Sequence[float]], float]] = {
    m.OTHER_LOAD: statistics.fmean,
    m.CPU_CORES: statistics.fmean,
    m.CPU_STEAL: statistics.fmean,
    m.CPU_CLOCK: statistics.fmean,
    m.CPU_THROTTLED: sum,
    m.MEMORY_AVAILABLE: min,
    m.GPU_BUSY: statistics.fmean,
    m.GPU_CLOCK: statistics.fmean,
    m.GPU_THROTTLED: statistics.fmean,
    m.GPU_MEMORY_FREE: min,
}
AT_START = (m.LOAD_AVERAGE, m.OTHER_USERS_PROCESSES)


def node_load(events: Sequence[Mapping[str, Any]], started: Mapping[str, Any]) -> dict[Metric, float]:
    """Return the load of the node of rank 0 by others, over all attempts; at the start: of the latest one."""
    samples = [event for event in events if event["event"] == "node_load"]
    known = {metric: [v for each in samples if (v := number(each, metric)) is not None] for metric in OVER_SAMPLES}
    values = {metric: float(OVER_SAMPLES[metric](found)) for metric, found in known.items() if found}
    return values | {metric: value for metric in AT_START if (value := number(started, metric)) is not None}
