"""Storage traffic of a run by second and phase, from the records of jobs.runtime.storage_io.

The bytes of an interval are spread evenly over its seconds. Values in files are untrusted: a record that does not fit
is left out.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from analysis.untrusted import as_number
from jobs import metrics as m
from jobs.metrics import Metric, StoragePhase
from jobs.rundir import RunDir, read_records

# Processes record an interval of a minute at most; a file system that hangs may make it longer.
LONGEST_S = 3600.0
# Seconds of one run: three months.
MOST_SECONDS = 8_000_000
Moved = tuple[float, float]
"""Bytes read and written."""
Seconds = Mapping[int, Moved]
"""Bytes moved in each second since the epoch."""


@dataclass(frozen=True)
class Storage:
    """The storage traffic of a run."""

    processes: Mapping[tuple[str, StoragePhase], Seconds]
    """Traffic of the ranks and of an evaluation, by node and phase."""
    mounts: Seconds
    """Traffic of its nodes' processes with the network file systems that hold its files; empty if not recorded."""
    operations: float | None = None
    """Operations that its nodes asked of NFS servers; None if there is no NFS mount."""

    def phase(self, phase: StoragePhase) -> Seconds:
        """Return the traffic of all nodes together in a phase; empty if it had none."""
        return added(seconds for (_, each), seconds in self.processes.items() if each is phase)

    @functools.cached_property
    def whole(self) -> Seconds:
        """The traffic of all nodes and phases together."""
        return added(self.processes.values())

    @property
    def phases(self) -> list[StoragePhase]:
        """The phases that it recorded, in their order."""
        return [phase for phase in StoragePhase if self.phase(phase)]

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return sorted({node for node, _ in self.processes})

    def node(self, node: str, phase: StoragePhase) -> Moved:
        """Return the bytes that a node moved in a phase."""
        return total(self.processes.get((node, phase), {}))

    @property
    def values(self) -> dict[Metric, float]:
        """Return its metrics."""
        found: dict[Metric, float] = {}
        for phase in self.phases:
            seconds = self.phase(phase)
            for direction, peak, bytes_moved in zip(m.STORAGE_DIRECTIONS, peaks(seconds), total(seconds), strict=True):
                found[m.STORAGE_RATES[phase, direction, "peak"]] = peak
                found[m.STORAGE_RATES[phase, direction, "mean"]] = bytes_moved / len(seconds)
        overall = {
            (m.STORAGE_READ_PEAK, m.STORAGE_WRITE_PEAK): self.whole,
            (m.MOUNT_READ_PEAK, m.MOUNT_WRITE_PEAK): self.mounts,
        }
        for metrics, seconds in overall.items():
            if seconds:
                found |= dict(zip(metrics, peaks(seconds), strict=True))
        return found | ({} if self.operations is None else {m.MOUNT_OPERATIONS: self.operations})


def peaks(seconds: Seconds) -> Moved:
    """Return the most bytes read and written in any second; there must be at least one second."""
    return max(read for read, _ in seconds.values()), max(wrote for _, wrote in seconds.values())


def total(seconds: Seconds) -> Moved:
    """Return the bytes read and written in all seconds."""
    return math.fsum(read for read, _ in seconds.values()), math.fsum(wrote for _, wrote in seconds.values())


def added(series: Iterable[Seconds]) -> Seconds:
    """Return the sum of several series."""
    found: dict[int, Moved] = {}
    for seconds in series:
        for second, (read, wrote) in seconds.items():
            before = found.get(second, (0.0, 0.0))
            found[second] = before[0] + read, before[1] + wrote
    return found


def read_storage(run: RunDir) -> Storage | None:
    """Return the storage traffic that the processes of a run recorded; None if they recorded none."""
    processes: dict[tuple[str, StoragePhase], dict[int, Moved]] = defaultdict(dict)
    mounts: dict[str, list[dict[int, Moved]]] = defaultdict(list)
    asked: dict[str, list[float]] = defaultdict(list)
    room = MOST_SECONDS
    for file in run.storage_logs:
        node, of_mounts, operations = "", dict[int, Moved](), list[float]()
        with suppress(OSError):
            for record in read_records(file):
                node = str(record["node"]) if isinstance(record.get("node"), str) else node
                if (phase := phase_of(record)) is None or phase is StoragePhase.serve:
                    continue
                room -= spread(record, ("read_bytes", "write_bytes"), processes[node, phase])
                room -= spread(record, ("mount_read_bytes", "mount_write_bytes"), of_mounts)
                operations += [count] if (count := as_number(record.get(m.MOUNT_OPERATIONS.name))) is not None else []
                if room < 0:
                    break
        mounts[node].append(of_mounts)
        if operations:
            asked[node].append(math.fsum(operations))
    # Several processes of one machine (emulated nodes) see the same counters.
    of_nodes = [
        {second: max(each.get(second, (0.0, 0.0)) for each in series) for second in set().union(*series)}
        for series in mounts.values()
    ]
    known = {key: seconds for key, seconds in processes.items() if seconds}
    operations_asked = math.fsum(max(of_processes) for of_processes in asked.values()) if asked else None
    return Storage(known, added(of_nodes), operations_asked) if known else None


def phase_of(record: Mapping[str, Any]) -> StoragePhase | None:
    """Return the phase of a record; None for a record of something else."""
    return StoragePhase.__members__.get(str(record.get("phase")))


def spread(record: Mapping[str, Any], names: tuple[str, str], into: dict[int, Moved]) -> int:
    """Add the bytes of an interval to its seconds; return their number."""
    ended, interval_s = as_number(record.get("time_s")), as_number(record.get("interval_s"))
    read, wrote = (as_number(record.get(name)) for name in names)
    if ended is None or interval_s is None or read is None or wrote is None:
        return 0
    if not (0 < interval_s <= LONGEST_S < ended < 1e11) or min(read, wrote) < 0:
        return 0
    parts = list(seconds_of(ended - interval_s, ended))
    for second, length_s in parts:
        before, share = into.get(second, (0.0, 0.0)), length_s / interval_s
        into[second] = before[0] + share * read, before[1] + share * wrote
    return len(parts)


def seconds_of(began: float, ended: float) -> Iterator[tuple[int, float]]:
    """Yield the seconds that an interval touches, each with the time that it takes of it."""
    for second in range(math.floor(began), math.ceil(ended)):
        yield second, min(ended, second + 1) - max(began, second)
