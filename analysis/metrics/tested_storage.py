"""Values of a run that measures storage: from its events, and from the results of fio. Files are untrusted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Record
from analysis.parsers.benchmarks import fio
from analysis.untrusted import as_list, as_number
from jobs import metrics as m
from jobs.failure_causes import latest_attempt
from jobs.files import UnsuitableFileError, read_json
from jobs.metrics import Metric
from jobs.rundir import RunDir

Events = Sequence[Mapping[str, Any]]
COLD_SHARE = 0.01
"""Largest share of cached pages with which a read counts as one from storage."""
CHECKPOINT_EVENTS = {
    "write": ("checkpoint_written", m.CHECKPOINT_WRITE_TIME),
    "read": ("checkpoint_read", m.CHECKPOINT_READ_TIME),
}
"""Event and time of each direction."""


def storage_test_values(run: RunDir, events: Events) -> dict[Metric, float]:
    """Return the values of the latest attempt; empty if it measured nothing."""
    latest = latest_attempt(events)
    shares = cached_shares(latest)
    return {
        **checkpoint_values(latest),
        **data_values(latest),
        **fio_values(run),
        **({m.CACHED_SHARE: max(shares)} if shares else {}),
    }


def cached_shares(events: Events) -> list[float]:
    """Return the share of cached pages before each read that should come from storage; empty if one is unknown."""
    emptied = [each for each in events if each["event"] == "checkpoint_read" or each.get("cache") == "cold"]
    shares = [number_of(each, m.CACHED_SHARE.name) for each in emptied]
    return [] if None in shares else [share for share in shares if share is not None]


def is_cold(share: float | None) -> bool:
    """Return whether a share of cached pages proves that a read came from storage."""
    return share is not None and share <= COLD_SHARE


# --- checkpoints ---------------------------------------------------------------------------------------------------


def checkpoint_values(events: Events) -> dict[Metric, float]:
    """Return size, times and rates of checkpoints: medians over the repeats."""
    found: dict[Metric, float] = {}
    for direction, (_, time) in CHECKPOINT_EVENTS.items():
        measured = list(measurements(events, direction))
        if not measured:
            continue
        found[time] = median(time_s for time_s, _, _ in measured)
        found[m.CHECKPOINT_IO_RATES[direction]] = median(size / time_s for time_s, size, _ in measured)
        if direction == "write":
            found[m.CHECKPOINT_SIZE] = median(size for _, size, _ in measured)
        ratios = [max(times_s) / median(times_s) for _, _, event in measured if len(times_s := times_of(event)) > 1]
        if ratios:
            found[m.CHECKPOINT_IO_STRAGGLERS[direction]] = median(ratios)
    return found


def measurements(events: Events, direction: str) -> Iterator[tuple[float, float, Mapping[str, Any]]]:
    """Yield seconds, bytes and event of each repeat of a direction."""
    kind, time = CHECKPOINT_EVENTS[direction]
    for event in events:
        time_s, size = positive(event, time.name), positive(event, m.CHECKPOINT_SIZE.name)
        if event["event"] == kind and time_s and size:
            yield time_s, size, event


def times_of(event: Mapping[str, Any]) -> list[float]:
    """Return the seconds of the ranks in their own part."""
    return [time_s for rank in as_list(event.get("ranks")) if (time_s := positive(rank, "time_s"))]


def rank_rates(events: Events, direction: str) -> dict[int, float]:
    """Return bytes/s of each rank's own part of a checkpoint, the median over the repeats."""
    rates: dict[int, list[float]] = defaultdict(list)
    for _, _, event in measurements(latest_attempt(events), direction):
        for rank in as_list(event.get("ranks")):
            time_s, size, number = (number_of(rank, name) for name in ("time_s", "size_bytes", "rank"))
            if time_s and size and number is not None and min(time_s, size) > 0:
                rates[int(number)].append(size / time_s)
    return {number: median(values) for number, values in sorted(rates.items())}


# --- data and fio --------------------------------------------------------------------------------------------------


def data_values(events: Events) -> dict[Metric, float]:
    """Return the rates of each pass over the samples, and the share of waiting; a first pass only if it was cold."""
    found: dict[Metric, float] = {}
    for event in events:
        cache, time_s = str(event.get("cache")), positive(event, m.DATA_READ_TIME.name)
        if event["event"] != "data_read" or cache not in m.DATA_READ_WAITING or not time_s:
            continue
        if cache == "cold" and not is_cold(number_of(event, m.CACHED_SHARE.name)):
            continue
        ranks = as_list(event.get("ranks"))
        for name, unit in (("samples", "samples"), ("size_bytes", "bytes")):
            found[m.DATA_READ_RATES[cache, unit]] = math.fsum(positive(rank, name) or 0 for rank in ranks) / time_s
        shares = [(positive(rank, "waited_s") or 0) / own_s for rank in ranks if (own_s := positive(rank, "time_s"))]
        if shares:
            found[m.DATA_READ_WAITING[cache]] = fmean(shares)
    return found


def fio_values(run: RunDir) -> dict[Metric, float]:
    """Return bandwidth and operations of all ranks' fio together, and the longest latency; empty without results."""
    records = [record for file in run.fio_results for record in fio_records(file)]
    if not records:
        return {}
    latency = a.COMPLETION_LATENCY["p99"]
    latencies = [record.values[latency] for record in records if latency in record.values]
    return {
        m.FIO_BANDWIDTH: math.fsum(record.values.get(a.IO_BANDWIDTH, 0) for record in records),
        m.FIO_OPERATIONS: math.fsum(record.values.get(a.IO_OPERATIONS_PER_S, 0) for record in records),
        **({m.FIO_LATENCY: max(latencies)} if latencies else {}),
    }


def fio_records(file: Path) -> list[Record]:
    """Return the measurements of a result of fio; none where it cannot be read."""
    with suppress(OSError, UnsuitableFileError, ValueError):
        document = read_json(file)
        return list(fio.parse_document(document)) if fio.recognises(document) else []
    return []


def number_of(record: Any, name: str) -> float | None:
    """Return a field of a record as a number; None if it is not one."""
    return as_number(record.get(name)) if isinstance(record, Mapping) else None


def positive(record: Any, name: str) -> float | None:
    """Return a field of a record as a positive number; None if it is not one."""
    value = number_of(record, name)
    return value if value is not None and value > 0 else None
