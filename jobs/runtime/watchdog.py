"""End a run that hangs or starts too slowly, and record which rank lagged and where.

A thread of every rank writes the rank's current work to heartbeats/ in the run directory. A rank whose work takes
longer than engine.hang_timeout_s, and longer than a slow file system needs for its bytes, writes the stacks of its
threads and the record of its collectives to hangs/. One rank then records the failure with the lagging rank, and all
ranks end. A stopped process is identified by its missing heartbeats; a job of which all processes were stopped is none
that hangs. A run that has not made its first step within engine.startup_limit_s ends in the same way.

This module does not import torch: it also watches the imports of a rank.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from jobs.errors import RunDirError
from jobs.failure_causes import FailureCause, record_failure
from jobs.files import read_object
from jobs.lease import Lease
from jobs.metrics import SUSPENDED_TIME
from jobs.output import open_to_append, own_directory, write_file
from jobs.ranks import Rank, node_name, restart_count
from jobs.rundir import RunDir, append_event
from jobs.runtime.gpus.limits import release
from jobs.runtime.machine import process_start, staged_environment

BEAT_S = 5.0
# On a shared file system another node sees a heartbeat with a delay.
SILENT_BEATS = 4
# Limits the heartbeats per second in one directory of a file system.
RANKS_PER_BEAT_S = 100
COLLECTIVES_KEPT = 2000
# Shorter parts of a start-up are not listed.
SHOWN_S = 0.5
# All ranks together: a slower file system counts as one that hangs.
LEAST_BYTES_PER_S = 1e8
EXIT_CODE = 75
STAGING = "copying the environment"
IMPORTING = "importing"
"""The first pieces of work, from the start of the process to the end of its imports."""
LONGEST_SUSPENSION = timedelta(days=7)
"""Added to the timeouts of collectives, which go on while Slurm suspends a job; the limits of this module do not."""


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a rank."""

    rank: int
    node: str
    doing: str
    order: int
    """Number of pieces of work that it has begun; all ranks begin the same ones in the same order."""
    place: str
    """The code line of its main thread."""
    silent_s: float
    """Age relative to the newest heartbeat of any rank."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds of its start-up by piece of work, if that has a limit."""


class Watchdog:
    """A thread that watches this rank's main thread."""

    def __init__(self, lease: Lease, rank: Rank, limit_s: float, startup_limit_s: float | None = None) -> None:
        # Before any process group is created: torch's flight recorder reads it then.
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(COLLECTIVES_KEPT))
        self.lease = lease
        self.directory = lease.run
        self.rank = rank
        self.hang_timeout_s = self.limit_s = limit_s
        self.startup_limit_s = startup_limit_s
        """Longest time from the start of the process to the end of its first step; None: no limit, or it is made."""
        self.exceeded_s: float | None = None
        """The limit of the start-up for which this run ends."""
        staged_s = staged_environment()[1]
        self.spent = {STAGING: staged_s, IMPORTING: time.time() - process_start() - staged_s}
        """Seconds of the start-up by piece of work, without the present one."""
        shortest_s = min(limit_s, startup_limit_s or limit_s)
        self.beat_s = min(max(BEAT_S, rank.world_size / RANKS_PER_BEAT_S), shortest_s / 4)
        self.main = threading.main_thread().ident
        self.doing, self.order, self.since = IMPORTING, 0, time.monotonic()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch, name="watchdog", daemon=True)
        self.thread.start()

    def begins(self, work: str, size_bytes: float = 0) -> None:
        """Note that the main thread begins a piece of work, which reads or writes this number of bytes on all ranks.

        Every rank begins the same ones in the same order.
        """
        spent = self.spent_until_now()
        self.doing, self.order = work, self.order + 1
        # In this order: the thread must not compare the time of the last piece with the limit of this one, nor count it
        # twice.
        self.since = time.monotonic()
        self.spent = spent
        self.limit_s = within_s(self.hang_timeout_s, size_bytes)

    def startup_ends(self) -> None:
        """Note that the first step is made, or that none is left."""
        self.startup_limit_s, self.spent = None, {}

    def spent_until_now(self) -> dict[str, float]:
        """Return the seconds of the start-up by piece of work; empty if it has no limit, or is over."""
        if self.startup_limit_s is None:
            return {}
        return self.spent | {self.doing: self.spent.get(self.doing, 0.0) + time.monotonic() - self.since}

    def stop(self) -> None:
        """Stop watching, when the rank has done its work."""
        self.stopped.set()
        self.thread.join()

    def watch(self) -> None:
        """Write heartbeats until stopped; end the run when the work takes too long."""
        while True:
            self.beat()
            slept = time.monotonic()
            if self.stopped.wait(self.beat_s):
                return
            self.forgive(time.monotonic() - slept)
            self.exceeded_s = self.exceeded()
            if self.exceeded_s is not None or time.monotonic() - self.since > self.limit_s:
                self.end()

    def exceeded(self) -> float | None:
        """Return the limit of the start-up if this is the first rank awake and the limit is exceeded.

        Ranks start at different times: one of them decides for all, which end with it.
        """
        limit_s = self.startup_limit_s
        if limit_s is None or sum(self.spent_until_now().values()) <= limit_s or self.a_rank_before_is_awake():
            return None
        return limit_s

    def forgive(self, slept_s: float) -> None:
        """Do not count the time for which this process was stopped to the work of the main thread.

        Slurm stops all processes of a job that it suspends (gang scheduling, `scontrol suspend`), and this thread then
        wakes up far too late. Where one rank alone is stopped, the threads of the others are on time and detect a hang.
        """
        late_s = slept_s - self.beat_s
        if late_s > self.beat_s:
            self.since = min(self.since + late_s, time.monotonic())
            self.record_suspension(late_s)

    def record_suspension(self, time_s: float) -> None:
        """Record a suspension that is over, for goodput: on rank 0, which writes the events of the run."""
        if not self.rank.is_first or self.lease.is_lost():
            return
        try:
            append_event(self.directory, "suspended", restart=restart_count(), **{SUSPENDED_TIME.name: time_s})
        except (OSError, RunDirError) as error:
            print(f"watchdog: {error}", file=sys.stderr)

    def beat(self) -> None:
        """Write a heartbeat; a full disk does not end the rank."""
        file = heartbeat(self.directory, self.rank.rank)
        record = {"rank": self.rank.rank, "node": node_name(), "doing": self.doing, "order": self.order,
                  "place": place(sys._current_frames().get(self.main or 0)),
                  "spent": self.spent_until_now()}  # fmt: skip
        try:
            own_directory(file.parent)
            write_file(file, json.dumps(record))
        except OSError as error:
            print(f"watchdog: {file}: {error.strerror}", file=sys.stderr)
        except RunDirError as error:
            print(f"watchdog: {error}", file=sys.stderr)

    def end(self) -> None:
        """Write the traces, let one rank record which rank lagged, and end this process."""
        hang = self.directory.hangs / f"restart-{restart_count()}"
        for duty in (self.beat, partial(self.write_traces, hang), partial(self.record_lagging, hang), release):
            try:
                duty()
            except Exception:  # noqa: BLE001 (an error of one duty must not prevent the next, nor the end)
                traceback.print_exc()
        os._exit(EXIT_CODE)

    def write_traces(self, hang: Path) -> None:
        """Write the stacks of this process, and its last collectives."""
        own_directory(hang.parent)
        name = f"rank-{self.rank.rank:05d}"
        with open_to_append(own_directory(hang) / f"{name}.txt") as stacks:
            faulthandler.dump_traceback(stacks.fileno(), all_threads=True)
        # Private: torch itself dumps only when NCCL's watchdog ends the process. Without torch there are none.
        collectives = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
        if collectives is not None:
            write_file(hang / f"{name}.collectives.json", bytes(collectives._dump_fr_trace_json(True, False)))

    def record_lagging(self, hang: Path) -> None:
        """Record the lagging rank if this is the first rank awake; else wait while that rank does."""
        # Time for the other ranks to detect the hang as well.
        time.sleep(2 * self.beat_s)
        if self.a_rank_before_is_awake():
            time.sleep(2 * self.beat_s)
            return
        found = beats(self.directory)
        awake = [beat for beat in found if beat.silent_s < SILENT_BEATS * self.beat_s]
        if self.lease.is_lost():
            return
        lagging, words = lagging_rank(found, awake)
        if self.exceeded_s is not None:
            words = unstarted(found, self.rank.world_size) or words
            error = f"no first step within {self.exceeded_s:.0f} s (engine.startup_limit_s): {words}; "
            error += f"{startup_in_words(lagging)}; stacks in {hang}"
            cause = FailureCause.startup_limit
            record_failure(self.directory, cause, rank=lagging.rank, node=lagging.node, error=error)
            return
        slow = "" if self.limit_s == self.hang_timeout_s else f", and its bytes at {LEAST_BYTES_PER_S / 1e9:g} GB/s"
        error = f"no progress for {self.limit_s:.0f} s (engine.hang_timeout_s{slow}): {words}; stacks in {hang}"
        record_failure(self.directory, FailureCause.hung, rank=lagging.rank, node=lagging.node, error=error)

    def a_rank_before_is_awake(self) -> bool:
        """Return True if a rank with a lower number wrote a heartbeat lately.

        Mostly rank 0 did: N ranks then look at N files, and only one rank reads all of them.
        """
        try:
            own = heartbeat(self.directory, self.rank.rank).stat().st_mtime
        except OSError:
            return False  # a full disk, which no other rank can write to either
        before = (heartbeat(self.directory, rank) for rank in range(self.rank.rank))
        return any(file.exists() and own - file.stat().st_mtime < SILENT_BEATS * self.beat_s for file in before)


def within_s(hang_timeout_s: float, size_bytes: float) -> float:
    """Return the longest time of a piece of work that reads or writes this number of bytes on all ranks."""
    return hang_timeout_s + size_bytes / LEAST_BYTES_PER_S


def heartbeat(directory: RunDir, rank: int) -> Path:
    """Return the file of a rank's last heartbeat."""
    return directory.heartbeats / f"rank-{rank:05d}.json"


def place(frame: FrameType | None) -> str:
    """Return the innermost line of a stack."""
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def beats(directory: RunDir) -> list[Beat]:
    """Return the last heartbeat of every rank."""
    written = {file: file.stat().st_mtime for file in directory.heartbeats.glob("rank-*.json")}
    newest = max(written.values(), default=0.0)
    found = []
    for file, at in sorted(written.items()):
        with suppress(OSError, ValueError, TypeError):
            found.append(Beat(**read_object(file), silent_s=newest - at))
    return found


def lagging_rank(found: list[Beat], awake: list[Beat]) -> tuple[Beat, str]:
    """Return the rank that the others wait for, and the reason; the first rank awake where none stands out."""
    silent = [beat for beat in found if beat not in awake]
    if silent:
        return silent[0], f"{named(silent)} wrote no heartbeat for {silent[0].silent_s:.0f} s, {silent[0].doing}"
    behind = [beat for beat in awake if beat.order == min(beat.order for beat in awake)]
    if len(behind) < len(awake):
        return behind[0], f"{named(behind)} still {behind[0].doing} at {behind[0].place}"
    # All do the same piece of work: ranks in torch wait for the others in a collective, or for the device.
    spec = find_spec("torch")  # without importing it: it may be what hangs
    torch_directory = str(Path(spec.origin).parent) if spec and spec.origin else os.sep
    outside = [beat for beat in awake if not beat.place.startswith(torch_directory)]
    if 0 < len(outside) < len(awake):
        return outside[0], f"{named(outside)} {outside[0].doing} at {outside[0].place}, the others waited in torch"
    return awake[0], f"all ranks {awake[0].doing}, none stands out"


def unstarted(found: list[Beat], ranks: int) -> str:
    """Return the ranks without any heartbeat as text; empty if there are none."""
    missing = sorted(set(range(ranks)) - {beat.rank for beat in found})
    return f"{len(missing)} of {ranks} ranks have not started, the first is rank {missing[0]}" if missing else ""


def startup_in_words(beat: Beat) -> str:
    """Return the parts of a rank's start-up, the longest first, with the remedy for slow imports."""
    parts = sorted(beat.spent.items(), key=lambda part: -part[1])
    listed = ", ".join(f"{work} {time_s:.0f} s" for work, time_s in parts if time_s >= SHOWN_S)
    whole = f"the {sum(beat.spent.values()):.0f} s of rank {beat.rank}: {listed or 'not recorded'}"
    slow_imports = bool(parts) and parts[0][0] == IMPORTING and not beat.spent.get(STAGING)
    return f"{whole}. Set cluster.stage_environment=/tmp" if slow_imports else whole


def named(beats_of: list[Beat]) -> str:
    """Return ranks and nodes as text."""
    return ", ".join(f"rank {beat.rank} on {beat.node}" for beat in beats_of[:8]) + (", ..." if beats_of[8:] else "")
