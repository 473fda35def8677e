"""Ends a run that hangs, and says which rank lagged and where.

A thread of every rank writes what the rank is doing, and since when, to heartbeats/ in the run directory. A rank whose
work takes longer than engine.hang_timeout_s leaves the stacks of its threads and the record of its collectives in
hangs/; one of them then names who lags and records the failure, and all end. A stopped process cannot write: its
silence names it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import torch
from torch._C import _distributed_c10d

from jobs.failures import FailureCause, record_failure
from jobs.ranks import Rank, node_name, restart_count
from jobs.rundir import RunDir

BEAT_S = 5.0
# A shared file system shows a beat later to another node than it was written.
SILENT_BEATS = 4
# Ranks of one file system's directory do not all write at once.
RANKS_PER_BEAT_S = 100
COLLECTIVES_KEPT = 2000
EXIT_CODE = 75


@dataclass(frozen=True)
class Beat:
    """What a rank last said of itself."""

    rank: int
    node: str
    doing: str
    order: int
    """How many pieces of work it had begun; ranks begin the same ones in the same order."""
    place: str
    """Where its main thread was."""
    silent_s: float
    """How much older than the newest beat of any rank."""


class Watchdog:
    """Watches this rank's main thread, from the moment it is made."""

    def __init__(self, directory: RunDir, rank: Rank, limit_s: float) -> None:
        # Before any process group is made: what torch's flight recorder reads then.
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(COLLECTIVES_KEPT))
        self.directory = directory
        self.rank = rank
        self.limit_s = limit_s
        self.beat_s = min(max(BEAT_S, rank.world_size / RANKS_PER_BEAT_S), limit_s / 4)
        self.main = threading.main_thread().ident
        self.doing, self.order, self.since = "starting", 0, time.monotonic()
        self.directory.heartbeats.mkdir(exist_ok=True)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch, name="watchdog", daemon=True)
        self.thread.start()

    def begins(self, work: str) -> None:
        """The main thread has begun another piece of work; every rank begins the same ones in the same order."""
        self.doing, self.order, self.since = work, self.order + 1, time.monotonic()

    def stop(self) -> None:
        """The rank has done its work."""
        self.stopped.set()
        self.thread.join()

    def watch(self) -> None:
        """Beat until stopped; when the work takes too long, end the run."""
        while True:
            self.beat()
            if self.stopped.wait(self.beat_s):
                return
            if time.monotonic() - self.since > self.limit_s:
                self.end()

    def beat(self) -> None:
        """Write what this rank is doing; a full or slow disk must not end it."""
        file = self.directory.heartbeats / f"rank-{self.rank.rank:05d}.json"
        record = {"rank": self.rank.rank, "node": node_name(), "doing": self.doing, "order": self.order,
                  "place": place(sys._current_frames().get(self.main or 0))}  # fmt: skip
        try:
            aside = file.with_suffix(".new")
            aside.write_text(json.dumps(record))
            aside.rename(file)
        except OSError as error:
            print(f"watchdog: {file}: {error.strerror}", file=sys.stderr)

    def end(self) -> None:
        """Leave what helps to find the cause, let one rank record who lagged, and end this process."""
        hang = self.directory.hangs / f"restart-{restart_count()}"
        for duty in (self.beat, partial(self.leave_traces, hang), partial(self.accuse, hang)):
            try:
                duty()
            except Exception:  # noqa: BLE001 (a full disk or another torch must not keep the others from theirs, nor the end)
                traceback.print_exc()
        os._exit(EXIT_CODE)

    def leave_traces(self, hang: Path) -> None:
        """Write the stacks of this process, and the last collectives it took part in."""
        hang.mkdir(parents=True, exist_ok=True)
        name = f"rank-{self.rank.rank:05d}"
        with (hang / f"{name}.txt").open("w") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
        (hang / f"{name}.collectives.json").write_bytes(recorded_collectives())

    def accuse(self, hang: Path) -> None:
        """Let the first rank that is awake record who lags; the others give it time to."""
        # Time for the others to come to the same conclusion.
        time.sleep(2 * self.beat_s)
        found = beats(self.directory)
        awake = [beat for beat in found if beat.silent_s < SILENT_BEATS * self.beat_s]
        if self.rank.rank == min((beat.rank for beat in awake), default=self.rank.rank):
            lagging, words = who_lags(found, awake)
            error = f"no progress for {self.limit_s:.0f} s (engine.hang_timeout_s): {words}; stacks in {hang}"
            record_failure(self.directory, FailureCause.hung, rank=lagging.rank, node=lagging.node, error=error)
        else:
            time.sleep(2 * self.beat_s)


def place(frame: FrameType | None) -> str:
    """The innermost line of a stack."""
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def recorded_collectives() -> bytes:
    """The last collectives of this process as torch's flight recorder has them, JSON."""
    # Private: torch dumps by itself only when NCCL's own watchdog ends the process.
    return bytes(_distributed_c10d._dump_fr_trace_json(True, False))  # type: ignore[attr-defined]  # not in its stubs


def beats(directory: RunDir) -> list[Beat]:
    """The last beat of every rank."""
    written = {file: file.stat().st_mtime for file in directory.heartbeats.glob("rank-*.json")}
    newest = max(written.values(), default=0.0)
    return [Beat(**json.loads(file.read_text()), silent_s=newest - at) for file, at in sorted(written.items())]


def who_lags(found: list[Beat], awake: list[Beat]) -> tuple[Beat, str]:
    """The rank that the others wait for, and why it is that one; the first of them where nothing tells."""
    silent = [beat for beat in found if beat not in awake]
    if silent:
        return silent[0], f"{named(silent)} gave no sign of life for {silent[0].silent_s:.0f} s, {silent[0].doing}"
    behind = [beat for beat in awake if beat.order == min(beat.order for beat in awake)]
    if len(behind) < len(awake):
        return behind[0], f"{named(behind)} still {behind[0].doing} at {behind[0].place}"
    # All in the same piece of work: those in torch wait for the others, in a collective or for the device.
    torch_directory = str(Path(torch.__file__).parent)
    outside = [beat for beat in awake if not beat.place.startswith(torch_directory)]
    if 0 < len(outside) < len(awake):
        return outside[0], f"{named(outside)} {outside[0].doing} at {outside[0].place}, the others waited in torch"
    return awake[0], f"all ranks {awake[0].doing}, none stands out"


def named(beats_of: list[Beat]) -> str:
    """Ranks and nodes, in words."""
    return ", ".join(f"rank {beat.rank} on {beat.node}" for beat in beats_of[:8]) + (", ..." if beats_of[8:] else "")
