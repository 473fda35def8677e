"""The cost of checkpoints: their size, the time that training waited, their bandwidth.

Stalls are in the records of steps, sizes and times of writing in events.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from analysis.untrusted import number
from jobs import metrics as m
from jobs.metrics import Metric


def checkpoint_values(events: Iterable[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]) -> dict[Metric, float]:
    """Return the metrics of a run's checkpoints over all of its starts; absent if not recorded."""
    records = list(records)
    values: dict[Metric, float] = {}
    stalls_s = [stall_s for record in records if (stall_s := number(record, m.CHECKPOINT_TIME)) is not None]
    steps_s = math.fsum(time_s for record in records if (time_s := number(record, m.STEP_TIME)) is not None)
    if stalls_s:
        values[m.CHECKPOINT_STALL] = statistics.median(stalls_s)
    if stalls_s and steps_s > 0:
        values[m.CHECKPOINT_STALL_SHARE] = math.fsum(stalls_s) / steps_s
    written = [event for event in events if event["event"] == "checkpoint"]
    sizes = [size for event in written if (size := number(event, m.CHECKPOINT_SIZE)) is not None]
    if sizes:
        values[m.CHECKPOINT_SIZE] = statistics.median(sizes)
    speeds = [speed for event in written if (speed := bandwidth(event)) is not None]
    if speeds:
        values[m.CHECKPOINT_BANDWIDTH] = statistics.median(speeds)
        values[m.CHECKPOINT_BANDWIDTH_LOW] = min(speeds)
        values[m.CHECKPOINT_BANDWIDTH_HIGH] = max(speeds)
    return values


def bandwidth(event: Mapping[str, Any]) -> float | None:
    """Return bytes per second of one checkpoint; None if size or time is absent."""
    size, time_s = number(event, m.CHECKPOINT_SIZE), number(event, m.CHECKPOINT_WRITE_TIME)
    return size / time_s if size is not None and time_s is not None and time_s > 0 else None
