"""The signatures of failure causes: the texts by which one line of a log proves why its run ended.

The texts are messages of slurmstepd and srun, PBS, the Linux kernel, NVIDIA's and AMD's drivers, torch and torchrun,
NCCL, pyxis, argparse and jsonargparse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from analysis.parsers.base import Line, RankLabel
from analysis.parsers.search import Search
from jobs.failures import FailureCause


class Weight(Enum):
    """Strength of the proof by a match; the lowest value in a log decides."""

    fault = 0
    """A fault of the machine; it decides wherever the line stands in the log."""
    end = 1
    """Ends a run by itself."""
    consequence = 2
    """Also follows from a failure elsewhere."""
    signal = 3
    """A signal; the sender is not known."""


@dataclass(frozen=True)
class Match:
    """A line that matches the signature of a cause."""

    cause: FailureCause
    weight: Weight
    line: Line
    """With the rank and the host that the text names."""
    time: str = ""
    """As torchrun writes it, which sorts; empty where the order of the lines decides."""


@dataclass(frozen=True)
class Signature:
    """A text by which one line proves a cause."""

    cause: FailureCause
    weight: Weight
    pattern: re.Pattern[str]


def signature(cause: FailureCause, weight: Weight, pattern: str) -> Signature:
    """Return a signature whose pattern may match anywhere in a line."""
    return Signature(cause, weight, re.compile(pattern))


# Xid numbers that NVIDIA's catalogue attributes to the application, or that follow from another Xid (45).
HARMLESS_XID = r"(?:8|13|31|32|43|45|68|69)\b"
SIGNATURES = (
    signature(FailureCause.hardware, Weight.fault, rf"\bXid\b[^:]*(?:\(PCI:[^)]*\))?: (?!{HARMLESS_XID})\d+"),
    signature(
        FailureCause.hardware, Weight.fault, r"GPU has fallen off the bus|Unable to determine the device handle for GPU"
    ),
    signature(FailureCause.hardware, Weight.fault, r"uncorrectable (?:NVLink|ECC) error|Memory access fault by GPU"),
    signature(FailureCause.hardware, Weight.fault, r"PCIe Bus Error: severity=(?:Uncorrected|Fatal)"),
    signature(
        FailureCause.out_of_host_memory,
        Weight.fault,
        r"Detected \d+ oom[-_]kill event|exceeded memory (?:limit|allocation)",
    ),
    signature(
        FailureCause.out_of_host_memory, Weight.fault, r"Out of memory: Kill(?:ed)? process|task \d+: Out Of Memory"
    ),
    signature(
        FailureCause.out_of_host_memory, Weight.end, r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    ),
    signature(
        FailureCause.time_limit,
        Weight.end,
        r"CANCELLED AT [^%].*DUE TO TIME LIMIT|PBS: job killed: walltime \d+ exceeded",
    ),
    signature(FailureCause.preempted, Weight.end, r"CANCELLED AT [^%].*DUE TO PREEMPTION"),
    signature(
        FailureCause.node_failure, Weight.end, r"CANCELLED AT [^%].*DUE TO NODE FAILURE|srun: error: Node failure on "
    ),
    signature(FailureCause.requeued, Weight.end, r"CANCELLED AT [^%].*DUE TO JOB REQUEUE"),
    signature(
        FailureCause.out_of_gpu_memory, Weight.end, r"\b(?:CUDA|HIP|XPU) out of memory\b|CUDA error: out of memory"
    ),
    signature(FailureCause.out_of_gpu_memory, Weight.end, r"^[\w.]*OutOfMemoryError\b"),
    signature(FailureCause.launch_failure, Weight.end, r"Failed to invoke spank plugin stack|pyxis: child \d+ failed"),
    signature(FailureCause.launch_failure, Weight.end, r"execve\(\): |\berror while loading shared libraries\b"),
    signature(FailureCause.refused, Weight.end, r"\berror: (?:unrecognized arguments|argument |the following)"),
    signature(FailureCause.refused, Weight.end, r"\berror: (?:Parser key|Configuration check failed|Problem with)"),
    signature(
        FailureCause.diverged, Weight.end, r"(?i)loss (?:is|became|was) (?:nan|inf)|(?:nan|inf) in (?:loss|local grad)"
    ),
    signature(FailureCause.hung, Weight.consequence, r"Watchdog caught collective operation timeout"),
    signature(
        FailureCause.lost_peer,
        Weight.consequence,
        r"Rendezvous\w*Error\b|Connection (?:reset|closed|refused)\b|Broken pipe",
    ),
    signature(FailureCause.lost_peer, Weight.consequence, r"^\w*Error: .*\bgloo/transport/"),
    # Raised by corrupted memory of the program itself. A rank that lost its peer may crash in the same way.
    signature(
        FailureCause.code, Weight.consequence, r"tasks? [\d,-]+: (?:Segmentation fault|Bus error|Illegal instruction)"
    ),
    signature(FailureCause.code, Weight.consequence, r"^Fatal Python error: (?!Aborted)"),
    signature(
        FailureCause.code, Weight.end, r"^(?:malloc|realloc|free|munmap_chunk)\(\): |^double free or corruption \("
    ),
    signature(FailureCause.code, Weight.end, r"^corrupted (?:size vs\. prev_size|double-linked list)"),
    signature(
        FailureCause.aborted, Weight.consequence, r"\bMPI_ABORT was invoked on rank \d|\bapplication called MPI_Abort\("
    ),
    signature(FailureCause.killed, Weight.signal, r"tasks? [\d,-]+: Killed\b|\bexitcode: -9\b|Signal 9 \(SIGKILL\)"),
    signature(
        FailureCause.aborted,
        Weight.signal,
        r"tasks? [\d,-]+: Aborted\b|^Fatal Python error: Aborted|\bexitcode: -6\b|Signal 6 \(SIGABRT\)",
    ),
    signature(FailureCause.cancelled, Weight.signal, r"CANCELLED AT [\dT:-]+ \*\*\*|^KeyboardInterrupt$"),
)
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Missing\w*|Interrupt|Exit))(?:: (?P<words>.*))?$")
CONFIGURATION_TYPES = re.compile(
    r"(?:Config\w*|Missing\w*|Validation|Override\w*|Yaml\w*|Scanner|Parser|Argument)Error$"
    r"|(?:Config\w*|Missing\w*|Hydra)Exception$"
)
NETWORK_TYPES = re.compile(r"(?:Connection\w*|BrokenPipe|Rendezvous\w*|Dist(?:Network|Store|Backend))Error$")
# The cause of a process that a signal ended, by the signal's number.
SIGNALS = {9: FailureCause.killed, 6: FailureCause.aborted, 11: FailureCause.code}
# torchrun's summary of its children: the fields of one failure after another.
CHILD_FIELD = re.compile(r"^\s*(?P<name>time|host|rank|exitcode)\s*: (?P<value>\S+)")
RANK = re.compile(
    r"\[Rank (\d+)\]|srun: error: \S+: tasks? (\d+)|MPI_ABORT was invoked on rank (\d+)|MPI_Abort\(.*\) - process (\d+)"
)
HOST = re.compile(r" ON (\S+) CANCELLED AT|srun: error: (\S+): tasks? |srun: error: Node failure on (\S+)")
MARKERS = (
    "CANCELLED AT", "oom-kill", "oom_kill", "exceeded memory", "Out of memory", "Out Of Memory", "out of memory",
    "OutOfMemoryError", "Xid", "fallen off the bus", "device handle for GPU", "uncorrectable", "Memory access fault",
    "PCIe Bus Error", "PBS: job killed", "Node failure on", "spank plugin", "pyxis: ", "execve()", "loading shared",
    "error: unrecognized", "error: argument", "error: the following", "error: Parser key", "error: Configuration",
    "error: Problem", "loss is", "loss became", "loss was", "Loss is", "nan in l", "inf in l", "NaN in l",
    "Watchdog caught", "DefaultCPUAllocator",
    "Rendezvous", "Connection re", "Connection closed", "Broken pipe", ": Killed", ": Aborted",
    ": Segmentation fault", ": Bus error", ": Illegal instruction", "Fatal Python error", "alloc(): ", "free(): ",
    "munmap_chunk(): ", "MPI_ABORT", "MPI_Abort", "double free", "corrupted ", "exitcode", "Signal 9",
    "Signal 6", "KeyboardInterrupt", "Traceback (most recent call last)", "Error", "Exception", "  time      :",
    "  host      :", "  rank      :",
)  # fmt: skip
SEARCH = Search(MARKERS)


def matches(lines: Iterable[Line]) -> Iterator[Match]:
    """Yield the matches of these lines in order."""
    raising: set[RankLabel] = set()
    child: dict[str, str] = {}
    for line in lines:
        if " NCCL INFO " in line.text:
            # NCCL also logs connections that close in normal operation.
            continue
        if "Traceback (most recent call last)" in line.text:
            raising.add(line.rank)
            continue
        if field := CHILD_FIELD.match(line.text):
            child[field["name"]] = field["value"]
            if field["name"] == "exitcode":
                yield from match_child(child, line)
                child = {}
            continue
        known = next((each for each in SIGNATURES if each.pattern.search(line.text)), None)
        exception = EXCEPTION.match(line.text)
        if known is not None:
            yield Match(known.cause, known.weight, with_rank_and_host(line))
        elif exception is not None and line.rank in raising:
            cause, weight = cause_of_exception(exception)
            if cause is not None:
                yield Match(cause, weight, line)
        if exception is not None:
            raising.discard(line.rank)


def cause_of_exception(exception: re.Match[str]) -> tuple[FailureCause | None, Weight]:
    """Return the cause of a traceback's last line; None where it only reports another failure or a signal."""
    kind = exception["type"].rpartition(".")[2]
    if kind in {"ChildFailedError", "SystemExit", "KeyboardInterrupt", "SignalException", "SIGTERMException"}:
        return None, Weight.signal
    if kind == "MemoryError":
        return FailureCause.out_of_host_memory, Weight.end
    if NETWORK_TYPES.search(kind):
        return FailureCause.lost_peer, Weight.consequence
    if CONFIGURATION_TYPES.search(kind):
        return FailureCause.refused, Weight.end
    return FailureCause.code, Weight.end


def match_child(child: dict[str, str], line: Line) -> Iterator[Match]:
    """Yield the match of a process in torchrun's summary.

    Nothing where torchrun ended the process, or where the process itself reported the reason.
    """
    code = int(child["exitcode"]) if re.fullmatch(r"-?\d+", child["exitcode"]) else 0
    cause = SIGNALS.get(-code, FailureCause.unknown if code > 0 else None)
    if cause is None:
        return
    rank = int(child["rank"]) if child.get("rank", "").isdigit() else None
    its_line = line._replace(rank=rank, host=child.get("host"))
    yield Match(cause, Weight.signal, its_line, child.get("time", ""))


def with_rank_and_host(line: Line) -> Line:
    """Return the line with the rank and the host that its text names, else its own."""
    rank, host = RANK.search(line.text), HOST.search(line.text)
    return line._replace(
        rank=int(rank[rank.lastindex or 0]) if rank else line.rank,
        host=host[host.lastindex or 0] if host else line.host,
    )
