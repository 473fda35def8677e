"""Why an attempt of a run did not reach its end, in one word, and whether another attempt may fare better.

A rank that raises names its own cause; what no rank could say (it was killed, it hung) the batch script adds.
Needs no torch: a rank that cannot import it fails for a reason too.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from jobs.errors import SuiteError
from jobs.ranks import restart_count
from jobs.rundir import RunDir, append_event


class Cause(Enum):
    """What ended an attempt."""

    time_limit = "time_limit"
    """Stopped at a step boundary because its time was nearly over."""
    preempted = "preempted"
    """Stopped because a job of higher priority wanted the nodes."""
    lost_peer = "lost_peer"
    """A collective failed: another rank is gone, or the network between them."""
    killed = "killed"
    """A signal from outside ended a rank."""
    hung = "hung"
    """A rank made no progress."""
    hardware = "hardware"
    """The accelerator reported a fault of its own."""
    out_of_memory = "out_of_memory"
    refused = "refused"
    """A configuration, data file, checkpoint or directory that cannot be used."""
    code = "code"
    """Any other exception: the program's own."""

    @property
    def may_pass(self) -> bool:
        """Whether the same run may succeed when it is started again."""
        return self not in {Cause.out_of_memory, Cause.refused, Cause.code}


@dataclass(frozen=True)
class Stop:
    """Why a run was asked to stop at a step boundary."""

    reason: str
    cause: Cause | None
    """None: whoever asked decides what comes after."""


# What Slurm and people send before they kill; the batch script asks for the second one ahead of the time limit.
STOPS = {
    signal.SIGTERM: Stop("asked to end (SIGTERM)", None),
    signal.SIGUSR2: Stop("time limit near, or preempted (SIGUSR2)", Cause.time_limit),
}

# By name, since torch may not be importable: c10d's exceptions, and torch's and NumPy's out of memory.
LOST_PEER_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError"}
OUT_OF_MEMORY_TYPES = {"OutOfMemoryError", "MemoryError"}
# What torch raises as a plain RuntimeError for host memory.
OUT_OF_MEMORY_TEXT = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
# gloo raises plain RuntimeErrors, which name its own files and nothing else in common.
LOST_PEER_TEXT = re.compile(r"gloo/|Connection (closed|reset) by peer")
# CUDA errors that NVIDIA's documentation of Xid messages ascribes to the device and not to the program.
HARDWARE_TEXT = re.compile(r"uncorrectable (NVLink|ECC) error|fallen off the bus|CUDA-capable device\(s\) is/are busy")


def cause_of(error: BaseException) -> Cause:
    """The cause that an exception of a rank stands for."""
    types = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if isinstance(error, SuiteError):
        return Cause.refused
    if types & OUT_OF_MEMORY_TYPES or OUT_OF_MEMORY_TEXT.search(text):
        return Cause.out_of_memory
    if HARDWARE_TEXT.search(text):
        return Cause.hardware
    if types & LOST_PEER_TYPES or LOST_PEER_TEXT.search(text):
        return Cause.lost_peer
    return Cause.code


def record_failure(run: RunDir, cause: Cause, *, rank: int, node: str, error: str, restart: int | None = None) -> None:
    """Tell a run's record which rank ended this start of it, and why."""
    start = restart_count() if restart is None else restart
    append_event(run, "failed", restart=start, cause=cause.name, rank=rank, node=node, error=error)


def latest_attempt(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The events since the ranks last met, or since the run last went back into the queue."""
    begins = [i for i, event in enumerate(events) if event["event"] in {"started", "requeued"}]
    latest = events[begins[-1] :] if begins else events
    # A rank that outlived its attempt, on a node that was cut off, may still add its own failure.
    restart = restart_of(latest[0], 0) if latest else 0
    return [event for event in latest if event["event"] != "failed" or restart_of(event, restart) >= restart]


def restart_of(event: Mapping[str, Any], unknown: int) -> int:
    """How often the run had been started again when this happened."""
    restart = event.get("restart")
    return restart if isinstance(restart, int) else unknown


def end_of(attempt: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The end that an attempt recorded: its first failure with a cause of its own, else the last end."""
    ends = [event for event in attempt if event["event"] in {"finished", "stopped", "failed"}]
    failures = [event for event in ends if event["event"] == "failed"]
    # A rank that lost another one is a witness, whoever wrote first.
    own = [event for event in failures if event.get("cause") != Cause.lost_peer.name]
    return next(iter(own or failures or ends[-1:]), None)
