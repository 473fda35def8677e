"""Failure causes: the one list that recording, requeueing and reporting share, and the classification of exceptions.

A rank that raises records its own cause. For a rank that was killed or hung, the batch script records it.
This module does not import torch, because a rank that cannot import torch must still record its failure.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from jobs.errors import SuiteError
from jobs.ranks import restart_count
from jobs.run_events import LONGEST_ERROR, write_failure
from jobs.rundir import RunDir, event_record


class KnownCauseError(Exception):
    """A failure whose cause is known where it is raised, such as the end of a program that the run had started.

    `proof` is the line of a log that names the cause, with the log and the line's number, and `advice` its remedy.
    """

    def __init__(self, cause: FailureCause, text: str, *, proof: str = "", advice: str = "") -> None:
        super().__init__(text)
        self.cause = cause
        self.evidence: dict[str, str | int] = {
            name: words for name, words in (("proof", proof), ("advice", advice)) if words
        }
        """Fields of the event."""


class Retry(Enum):
    """Nodes on which the same run may succeed when it is started again."""

    nowhere = "nowhere"
    anywhere = "anywhere"
    elsewhere = "elsewhere"
    """The node is suspect: a sweep avoids a node that has failed repeatedly."""


class FailureCause(Enum):
    """Cause of the end of a run. The name is written to its events; runs.csv and reports contain `word`."""

    out_of_gpu_memory = (
        "out_of_gpu_memory",
        Retry.nowhere,
        "Lower job.micro_batch_size, shard more (parallelism=fsdp_full or more ranks), or enable activation "
        "checkpointing. A server needs more GPUs for each replica (parallelism.tensor), or shorter requests.",
    )
    out_of_host_memory = (
        "out_of_host_memory",
        Retry.nowhere,
        "Request more memory per node, or start fewer ranks or data workers on each node.",
    )
    time_limit = (
        "time_limit",
        Retry.anywhere,
        "Raise wall_time_min, or save checkpoints often enough to resume the run.",
    )
    preempted = (
        "preempted",
        Retry.anywhere,
        "Resume the run; for a deadline, use a partition or QOS that is not preempted.",
    )
    node_failure = ("node_failure", Retry.elsewhere, "Resume the run without the failed node.")
    requeued = (
        "requeued",
        Retry.anywhere,
        "Nothing to do after one requeue; if it repeats, ask the site for the requeue policy.",
    )
    hung = (
        "collective_timeout",
        Retry.elsewhere,
        "Check the stack and the node of the named rank: it lagged or died while the others waited.",
    )
    startup_limit = (
        "startup_limit",
        Retry.anywhere,
        "The text names the longest part of the start-up. Set cluster.stage_environment=/tmp for imports, "
        "engine.weights=node for weights, a stage or `slurmscale data` for data, or raise engine.startup_limit_s.",
    )
    hardware = ("hardware", Retry.elsewhere, "Report the node to the site, and resume the run without it.")
    lost_peer = (
        "network",
        Retry.anywhere,
        "Check that the nodes reach each other (slurmscale doctor), and that no node died first.",
    )
    storage = (
        "storage",
        Retry.nowhere,
        "Free space or raise the quota where the line says so; replace a damaged file, or resume from an earlier "
        "checkpoint.",
    )
    launch_failure = (
        "launch_failure",
        Retry.nowhere,
        "Start the container or program by hand on that node: the run's own code was not reached.",
    )
    refused = (
        "configuration_error",
        Retry.nowhere,
        "Correct the setting that the line names; the same submission would fail again.",
    )
    code = ("code_error", Retry.nowhere, "Read the traceback next to the line: the program or a library raised it.")
    diverged = (
        "diverged",
        Retry.nowhere,
        "Lower the learning rate, clip gradients, or restart from a checkpoint before the loss rose.",
    )
    killed = (
        "killed",
        Retry.elsewhere,
        "Read the node's kernel log: the usual source of an unexplained SIGKILL is exhausted host memory.",
    )
    aborted = (
        "aborted",
        Retry.anywhere,
        "Read the lines before the abort; with NCCL the usual source is the watchdog.",
    )
    cancelled = ("cancelled", Retry.nowhere, "A user cancelled the job: resume the run if that was not intended.")
    unknown = (
        "unknown",
        Retry.anywhere,
        "Read the end of the log, the node's kernel log and `sacct -j JOB -o State,ExitCode`.",
    )
    # Run directories of earlier releases contain this name for the memory of both host and GPU.
    out_of_memory = out_of_host_memory

    def __init__(self, word: str, retry: Retry, advice: str) -> None:
        self.word = word
        self.retry = retry
        self.advice = advice

    @property
    def retryable(self) -> bool:
        """Return True if the same run may succeed when it is started again."""
        return self.retry is not Retry.nowhere

    @property
    def is_symptom(self) -> bool:
        """Return True if a failure elsewhere also leaves this trace."""
        return self in {FailureCause.lost_peer, FailureCause.killed, FailureCause.unknown}

    @property
    def explains_symptoms(self) -> bool:
        """Return True if it is a statement of the machine or of Slurm that precedes a symptom."""
        return self in {
            FailureCause.out_of_host_memory,
            FailureCause.hardware,
            FailureCause.node_failure,
            FailureCause.time_limit,
            FailureCause.preempted,
        }

    @property
    def is_out_of_memory(self) -> bool:
        """Return True if the run needs more memory than there is."""
        return self in {FailureCause.out_of_gpu_memory, FailureCause.out_of_host_memory}

    @property
    def survivable(self) -> bool:
        """Return True if a program may print its signature and continue."""
        return self in {
            FailureCause.code,
            FailureCause.refused,
            FailureCause.lost_peer,
            FailureCause.diverged,
            FailureCause.storage,
            FailureCause.unknown,
        }


@dataclass(frozen=True)
class Stop:
    """Reason of a request to stop at a step boundary."""

    reason: str
    cause: FailureCause | None
    """None if the signal alone does not determine the cause."""


# Signals that Slurm and users send before SIGKILL; the batch script requests SIGUSR2 ahead of the time limit.
STOPS = {
    signal.SIGTERM: Stop("asked to end (SIGTERM)", None),
    signal.SIGUSR2: Stop("time limit near, or preempted (SIGUSR2)", FailureCause.time_limit),
}

# By name, because torch may not be importable: exceptions of c10d, and of the meeting before.
LOST_PEER_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError", "RendezvousError"}
# gloo raises a plain RuntimeError that contains its own file names.
LOST_PEER_TEXT = re.compile(r"gloo/|Connection (closed|reset) by peer")
# torch.OutOfMemoryError is raised for a device; torch raises a plain RuntimeError for host memory.
GPU_MEMORY_TYPE = "OutOfMemoryError"
GPU_MEMORY_TEXT = re.compile(r"(?:CUDA|HIP|XPU) out of memory")
NCCL_MEMORY_TEXT = re.compile(r"out of memory", re.IGNORECASE)
HOST_MEMORY_TEXT = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
# Errors of file systems: full, over the quota, failing, unreachable, read-only.
STORAGE_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS}
# CUDA errors that NVIDIA's documentation of Xid messages attributes to the device.
HARDWARE_TEXT = re.compile(r"uncorrectable (NVLink|ECC) error|fallen off the bus|CUDA-capable device\(s\) is/are busy")
# The words of `srun: error: node02: task 1: Killed`; another word is a signal of the node, as SIGKILL.
TASK_CAUSES = {
    "Out Of Memory": FailureCause.out_of_host_memory,
    **dict.fromkeys(
        ("Segmentation fault", "Aborted", "Illegal instruction", "Floating point exception", "Bad system call",
         "Trace/breakpoint trap"),
        FailureCause.code,
    ),
    # Requests to end, from Slurm or a user, that came before the rank had installed its handlers: no fault of the node.
    **dict.fromkeys(
        ("Terminated", "Hangup", "Interrupt", "Quit", "User defined signal 1"), FailureCause.cancelled
    ),
    "User defined signal 2": FailureCause.time_limit,
}  # fmt: skip
EXITED = re.compile(r"Exited with exit code (\d+)")
CORE_DUMPED = " (core dumped)"


def cause_of(error: BaseException) -> FailureCause:
    """Return the cause of an exception that a rank raised."""
    types = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if isinstance(error, KnownCauseError):
        return error.cause
    if isinstance(error, SuiteError):
        return FailureCause.refused
    # NCCL cannot allocate its buffers: a DistBackendError that says so is not a lost peer.
    if GPU_MEMORY_TYPE in types or (types & LOST_PEER_TYPES and NCCL_MEMORY_TEXT.search(text)):
        return FailureCause.out_of_gpu_memory
    if isinstance(error, MemoryError) or HOST_MEMORY_TEXT.search(text):
        return FailureCause.out_of_host_memory
    if isinstance(error, OSError) and error.errno in STORAGE_ERRNO:
        return FailureCause.storage
    if HARDWARE_TEXT.search(text):
        return FailureCause.hardware
    if types & LOST_PEER_TYPES or LOST_PEER_TEXT.search(text):
        return FailureCause.lost_peer
    return FailureCause.code


def cause_of_task(how: str) -> FailureCause:
    """Return the cause of a task whose end srun reports in these words: `Killed`, `Exited with exit code 1`.

    A shell or container around the task exits with 128 and the number of the signal that ended it.
    """
    if exited := EXITED.match(how):
        number = int(exited[1]) - 128
        if number not in set(signal.Signals):
            return FailureCause.code
        how = signal.strsignal(number) or ""
    return TASK_CAUSES.get(how.removesuffix(CORE_DUMPED), FailureCause.killed)


def recorded_cause(event: Mapping[str, Any]) -> FailureCause | None:
    """Return the cause that an event of a run names; None if it names none that is known."""
    name = event.get("cause")
    if name == "out_of_memory" and GPU_MEMORY_TEXT.search(str(event.get("error"))):
        return FailureCause.out_of_gpu_memory
    return FailureCause.__members__.get(str(name))


def blames_node(failure: Mapping[str, Any]) -> bool:
    """Return whether the recorded node of a failure is suspect."""
    cause = recorded_cause(failure)
    return cause is not None and cause.retry is Retry.elsewhere


def record_failure(
    run: RunDir,
    cause: FailureCause,
    *,
    rank: int,
    node: str,
    error: str,
    restart: int | None = None,
    evidence: Mapping[str, str | int] | None = None,
) -> None:
    """Record the rank that ended this start, with its node, cause and evidence, in a file of its own."""
    start = restart_count() if restart is None else restart
    fields = {"cause": cause.name, "rank": rank, "node": node, "error": error[:LONGEST_ERROR], **(evidence or {})}
    record = event_record("failed", restart=start, **fields)
    write_failure(run, record, restart=start, rank=rank)


def latest_attempt(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events since the ranks last met, or since the run last went back into the queue."""
    begins = [i for i, event in enumerate(events) if event["event"] in {"started", "requeued"}]
    latest = events[begins[-1] :] if begins else events
    # A rank that outlived its attempt, on a node that was cut off, may still record its own failure.
    restart = restart_of(latest[0], 0) if latest else 0
    return [event for event in latest if event["event"] != "failed" or restart_of(event, restart) >= restart]


def restart_of(event: Mapping[str, Any], unknown: int) -> int:
    """Return the number of restarts before an event, or `unknown` where it was not recorded."""
    restart = event.get("restart")
    return restart if isinstance(restart, int) else unknown


def end_of(attempt: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the end that an attempt recorded: its first failure that is not a lost peer, else the last end."""
    ends = [event for event in attempt if event["event"] in {"finished", "stopped", "failed"}]
    failures = [event for event in ends if event["event"] == "failed"]
    # A rank that lost its peer observed the failure of another rank, even where it wrote first.
    own = [event for event in failures if event.get("cause") != FailureCause.lost_peer.name]
    return next(iter(own or failures or ends[-1:]), None)
