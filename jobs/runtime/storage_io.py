"""Record what this process reads from and writes to storage, over time and by phase.

A thread looks every second at the kernel's counters of this process (/proc/self/io), and on the first rank of a node at
those of the network file systems that hold the run's files and at the use of the node (jobs.runtime.node.use), and
appends intervals to a file of the run directory (jobs.rundir). The counters of a process contain what missed the page
cache, and pages as they are written to: not what sockets, pipes and tmpfs took. The counters of a mount contain what
all processes of the node moved.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from jobs.errors import RunDirError
from jobs.metrics import MOUNT_OPERATIONS, StoragePhase
from jobs.output import own_directory
from jobs.ranks import Rank, node_name
from jobs.rundir import RunDir, append_record
from jobs.runtime.node.file_systems import FileSystems
from jobs.runtime.node.power import power_recorded
from jobs.runtime.node.use import NODE_NUMBER, RATES, NodeUse
from jobs.schema import Run
from jobs.work.work import work_of

EVERY_S = 1.0
# From so many records on the interval doubles: a day has 20,000 records at most.
RECORDS_AT_EACH = 3600
# Less than this in a second is not recorded by itself, but summed up to LONGEST_S; our own records are less.
BUSY_BYTES = 64 * 1024
LONGEST_S = 60.0
# The same for the first rank of a node, whose records `slurmscale status --nodes` shows.
LONGEST_OF_NODE_S = 10.0
# Each write of the records is itself a write.
WRITE_EVERY_S = 10.0
PROC = Path("/proc")
LUSTRE = "fs/lustre/llite/*/stats"
LUSTRE_SUMS = re.compile(r"^(read|write)_bytes\s+\d+ samples \[bytes\] \d+ \d+ (\d+)", re.MULTILINE)
Counters = dict[str, float]


class StorageIo:
    """The record of this process, from its creation on."""

    def __init__(self, file: Path, phase: StoragePhase, paths: Iterable[Path], node: int | None = None) -> None:
        """Begin the record; `node` is the number of the node whose use this process records."""
        self.file = file
        self.phase = phase
        self.paths = [os.path.realpath(path) for path in paths]
        self.node = node
        self.use: NodeUse | None = None
        self.saving = 0
        """Checkpoints in progress: one in the background is under way while the process trains."""
        self.records: list[dict[str, Any]] = [header(node)]
        self.recorded = 0
        self.wrote_s = time.time()
        # Where the interval that is not recorded yet begins, and the last look at the counters.
        self.since = self.seen = self.look()
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch, name="storage", daemon=True)
        self.thread.start()

    def look(self) -> tuple[float, Counters]:
        """Return the time and the counters now."""
        of_node = self.use.counters() if self.use else {}
        return time.time(), {**own_counters(), **mount_counters(self.paths), **of_node}

    def watch(self) -> None:
        """Look every second until stopped."""
        # In this thread: the library of the GPUs may take a second to open them.
        use = None if self.node is None else NodeUse()
        with self.lock:
            self.use = use
            if use:  # whose counters begin here
                self.seen = self.look()
                self.end_at(self.seen)
        systems = None if self.node is None or not self.paths else FileSystems(PROC)
        while not self.stopped.wait(EVERY_S * 2 ** (self.recorded // RECORDS_AT_EACH)):
            with self.lock:
                self.tick()
            # Outside the lock: a program may take seconds.
            self.add(systems.record() if systems else None)
        self.add(systems.record(last=True) if systems else None)

    def add(self, record: dict[str, Any] | None) -> None:
        """Add a record of file systems that are looked at less often, with an interval of its own."""
        if record is not None:
            with self.lock:
                self.records.append(record | {"phase": self.current.name})

    def tick(self) -> None:
        """End the interval if the last second was busy, so that quiet seconds do not dilute it, or if it is long."""
        now = self.look()
        storage = {name: value for name, value in now[1].items() if name not in RATES}
        if max((value - self.seen[1].get(name, value) for name, value in storage.items()), default=0) >= BUSY_BYTES:
            self.end_at(self.seen)
            self.end_at(now)
        elif now[0] - self.since[0] >= (LONGEST_S if self.node is None else LONGEST_OF_NODE_S):
            self.end_at(now)
        self.seen = now
        if self.records and now[0] - self.wrote_s >= WRITE_EVERY_S:
            self.write()

    def end_at(self, when: tuple[float, Counters]) -> None:
        """Record the interval up to a look, and begin the next one there."""
        (began, before), (ended, after) = self.since, when
        if ended > began:
            grew = {name: after[name] - value for name, value in before.items() if after.get(name, -1.0) >= value}
            record = {"time_s": ended, "interval_s": ended - began, "phase": self.current.name, **grew}
            # The last line of a file alone says where a node is that a restart has replaced.
            self.records.append(record | (header(self.node) | self.use.levels() if self.use else {}))
            self.recorded += 1
        self.since = when

    @property
    def current(self) -> StoragePhase:
        """The current phase."""
        return StoragePhase.checkpoint if self.saving else self.phase

    def begin(self, phase: StoragePhase, saving: int = 0) -> None:
        """Begin a phase, with more or fewer checkpoints in progress; called from any thread."""
        with self.lock:
            self.seen = self.look()
            self.end_at(self.seen)
            self.phase = phase
            self.saving += saving

    def write(self) -> None:
        """Append the records; those that a full disk refuses are lost."""
        with suppress(OSError, RunDirError):
            own_directory(self.file.parent)
            append_record(self.file, *self.records)
        self.records = []
        self.wrote_s = time.time()

    def stop(self) -> None:
        """Record the last interval and end."""
        self.stopped.set()
        self.thread.join()
        self.begin(self.phase)
        self.write()


_of_process: StorageIo | None = None


@contextmanager
def recorded(run: Run, directory: RunDir, name: str, phase: StoragePhase, *, node: int | None) -> Iterator[None]:
    """Record the storage of this process inside this context.

    The first process of a node gives the number of the node, and records its use and its network file systems as well.
    """
    global _of_process  # noqa: PLW0603 (a process has one set of counters)
    # Data and checkpoints may be links that lead elsewhere.
    files = [directory.path, directory.data, directory.checkpoints]
    files += [Path(run.job.init_from)] if run.job.init_from else []
    files += work_of(run).directories(run)
    _of_process = StorageIo(directory.storage_log(name), phase, [] if node is None else files, node)
    try:
        yield
    finally:
        _of_process.stop()
        _of_process = None


@contextmanager
def rank_recorded(run: Run, directory: RunDir, rank: Rank, phase: StoragePhase) -> Iterator[None]:
    """Record the storage of this rank in this context, and on the first rank of a node its use, and power if asked."""
    # Mounts, processors and GPUs have one count for the node.
    node = rank.rank // run.ranks_per_node if rank.local_rank == 0 else None
    has_power = node is not None and run.cluster.record_power
    with (
        power_recorded(directory.power_log(node_name())) if has_power else nullcontext(),
        recorded(run, directory, f"rank-{rank.rank:05d}", phase, node=node),
    ):
        yield


def begin(phase: StoragePhase) -> None:
    """Begin a phase of this process, if it is recorded."""
    if _of_process is not None:
        _of_process.begin(phase)


@contextmanager
def saving_checkpoint() -> Iterator[None]:
    """Mark the time of a checkpoint, in whichever thread it is written."""
    own = _of_process
    if own is not None:
        own.begin(own.phase, saving=1)
    try:
        yield
    finally:
        if own is not None:
            own.begin(own.phase, saving=-1)


def header(node: int | None) -> dict[str, Any]:
    """Return the first record of a file: the name of the node, and its number where its use is recorded."""
    return {"node": node_name()} | ({} if node is None else {NODE_NUMBER: node})


# --- counters ------------------------------------------------------------------------------------------------------


def own_counters() -> Counters:
    """Return the bytes that this process and its children read from storage and wrote to it; empty if unknown.

    The kernel adds the bytes of a child to those of its parent when it has ended.
    """
    found: Counters = {}
    for process in ("self", *live_children()):
        # A child may end meanwhile, and a kernel may have no task accounting.
        with suppress(OSError):
            text = (PROC / process / "io").read_text()
            for name, size in re.findall(r"^((?:read|write)_bytes): (\d+)$", text, re.MULTILINE):
                found[name] = found.get(name, 0) + int(size)
    return found


def live_children() -> list[str]:
    """Return the process ids of the children of this process; empty where the kernel does not list them."""
    found: list[str] = []
    for listed in PROC.glob("self/task/*/children"):
        with suppress(OSError):
            found += listed.read_text().split()
    return found


def mount_counters(paths: list[str]) -> Counters:
    """Return the bytes that this node read and wrote on the NFS mounts of these paths and on its Lustre file systems.

    With NFS also the operations that it asked of the servers. Empty without such a file system, or where its counters
    cannot be read.
    """
    if not paths:
        return {}
    nfs = list(nfs_traffic(paths))
    found = [*((read, wrote) for read, wrote, _ in nfs), *lustre_bytes()]
    if not found:
        return {}
    sums: Counters = {"mount_read_bytes": sum(read for read, _ in found)}
    sums["mount_write_bytes"] = sum(wrote for _, wrote in found)
    return sums | ({MOUNT_OPERATIONS.name: sum(operations for *_, operations in nfs)} if nfs else {})


def nfs_traffic(paths: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yield bytes from and to the server of each NFS mount that holds one of these paths, and operations."""
    try:
        text = (PROC / "self/mountstats").read_text()
    except OSError:
        return
    mounts = {}
    for mount in re.split(r"^device ", text, flags=re.MULTILINE):
        if where := re.match(r".* mounted on (\S+) with fstype (\w+)", mount):
            # Blanks are octal escapes. Bytes: normal, direct, server, each read and written (fs/nfs/iostat.h); pages.
            point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), where[1])
            counts = re.search(r"^\s*bytes:\s+(?:\d+ ){4}(\d+) (\d+)", mount, re.MULTILINE)
            # Each operation of the protocol: its name, then how often it was asked.
            operations = sum(map(int, re.findall(r"^\s+[A-Z_0-9]+: (\d+) ", mount, re.MULTILINE)))
            is_nfs = counts and where[2].startswith("nfs")
            mounts[point] = (int(counts[1]), int(counts[2]), operations) if counts and is_nfs else None
    holding = {max((point for point in mounts if is_below(path, point)), key=len, default="") for path in paths}
    yield from filter(None, (mounts.get(point) for point in holding))


def is_below(path: str, point: str) -> bool:
    """Return True if a path lies below a mount point."""
    return point.startswith("/") and os.path.commonpath([path, point]) == point


def lustre_bytes() -> Iterator[tuple[int, int]]:
    """Yield the bytes read and written by each mounted Lustre client; `stats` are samples, unit, min, max and sum."""
    for file in PROC.glob(LUSTRE):
        with suppress(OSError):
            sums = {name: int(size) for name, size in LUSTRE_SUMS.findall(file.read_text())}
            yield sums.get("read", 0), sums.get("write", 0)
