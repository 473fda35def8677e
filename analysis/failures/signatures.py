"""What the lines of a log say of why its run ended: each piece of evidence with the cause that it proves.

Messages are those of slurmstepd and srun, PBS, the Linux kernel, NVIDIA's and AMD's drivers, torch and torchrun, NCCL,
pyxis, argparse and jsonargparse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from analysis.parsers.base import Line, RankLabel
from analysis.parsers.search import Search


class Ending(Enum):
    """What ended a run, with advice of one sentence."""

    succeeded = "Nothing to do."
    out_of_gpu_memory = (
        "Lower job.micro_batch_size, shard more (parallelism=fsdp_full or more ranks), or turn activation "
        "checkpointing on."
    )
    out_of_host_memory = "Ask for more memory a node, start fewer ranks or data workers on it, or load weights once."
    time_limit = "Raise wall_time_min, or checkpoint often enough to go on with resume."
    preempted = "Resume it, on a partition or QOS that nobody preempts if it must end soon."
    node_failure = "Resume it without the node that failed."
    requeued = "Nothing, unless it happens again: then ask the site what requeues its jobs."
    collective_timeout = "Look at the named rank's stack and node: it lagged or died while the others waited."
    hardware = "Report the node to the site, and resume without it."
    network = "Check that the nodes reach each other at the rendezvous port, and that none of them died first."
    launch_failure = "Start the container or program by hand on that node: the run's own code has not begun."
    configuration_error = "Mend the setting that the line names; sending it again as it is cannot help."
    code_error = "Read the traceback beside the line: the program itself failed, or a library that it called there."
    diverged = "Lower the learning rate, clip gradients, or go back to a checkpoint before the loss rose."
    killed = "Look at the node's kernel log: a SIGKILL that nobody owns is mostly the host running out of memory."
    aborted = "Look above for what the program said before it aborted; with NCCL it is mostly the watchdog."
    cancelled = "Somebody ended it: resume it if it was not you."
    unknown = "Look at the end of the log, the node's kernel log and `sacct -j JOB -o State,ExitCode`."


class Weight(Enum):
    """How much a piece of evidence proves; the first one that there is decides."""

    fault = 0
    """Of the machine, whatever else died of it and in whatever order the logs were joined."""
    end = 1
    """Ends a run by itself."""
    consequence = 2
    """Follows from a death elsewhere as well."""
    signal = 3
    """Somebody's signal."""


@dataclass(frozen=True)
class Evidence:
    """A line that says why a run ended."""

    ending: Ending
    weight: Weight
    line: Line
    """That of the rank and the host that it names."""
    when: str = ""
    """As torchrun writes it, which sorts; empty where the order of the lines has to do."""


@dataclass(frozen=True)
class Sign:
    """A text by which one line proves a cause."""

    ending: Ending
    weight: Weight
    pattern: re.Pattern[str]


def sign(ending: Ending, weight: Weight, pattern: str) -> Sign:
    """A sign whose pattern is searched anywhere in a line."""
    return Sign(ending, weight, re.compile(pattern))


# Xid numbers that NVIDIA's catalogue ascribes to the application, or that follow from another one (45).
HARMLESS_XID = r"(?:8|13|31|32|43|45|68|69)\b"
SIGNS = (
    sign(Ending.hardware, Weight.fault, rf"\bXid\b[^:]*(?:\(PCI:[^)]*\))?: (?!{HARMLESS_XID})\d+"),
    sign(Ending.hardware, Weight.fault, r"GPU has fallen off the bus|Unable to determine the device handle for GPU"),
    sign(Ending.hardware, Weight.fault, r"uncorrectable (?:NVLink|ECC) error|Memory access fault by GPU"),
    sign(Ending.hardware, Weight.fault, r"PCIe Bus Error: severity=(?:Uncorrected|Fatal)"),
    sign(
        Ending.out_of_host_memory, Weight.fault, r"Detected \d+ oom[-_]kill event|exceeded memory (?:limit|allocation)"
    ),
    sign(Ending.out_of_host_memory, Weight.fault, r"Out of memory: Kill(?:ed)? process|task \d+: Out Of Memory"),
    sign(Ending.out_of_host_memory, Weight.end, r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"),
    sign(Ending.time_limit, Weight.end, r"CANCELLED AT [^%].*DUE TO TIME LIMIT|PBS: job killed: walltime \d+ exceeded"),
    sign(Ending.preempted, Weight.end, r"CANCELLED AT [^%].*DUE TO PREEMPTION"),
    sign(Ending.node_failure, Weight.end, r"CANCELLED AT [^%].*DUE TO NODE FAILURE|srun: error: Node failure on "),
    sign(Ending.requeued, Weight.end, r"CANCELLED AT [^%].*DUE TO JOB REQUEUE"),
    sign(Ending.out_of_gpu_memory, Weight.end, r"\b(?:CUDA|HIP|XPU) out of memory\b|CUDA error: out of memory"),
    sign(Ending.out_of_gpu_memory, Weight.end, r"^[\w.]*OutOfMemoryError\b"),
    sign(Ending.launch_failure, Weight.end, r"Failed to invoke spank plugin stack|pyxis: child \d+ failed"),
    sign(Ending.launch_failure, Weight.end, r"execve\(\): |\berror while loading shared libraries\b"),
    sign(Ending.configuration_error, Weight.end, r"\berror: (?:unrecognized arguments|argument |the following)"),
    sign(Ending.configuration_error, Weight.end, r"\berror: (?:Parser key|Configuration check failed|Problem with)"),
    sign(Ending.diverged, Weight.end, r"(?i)loss (?:is|became|was) (?:nan|inf)|(?:nan|inf) in (?:loss|local grad)"),
    sign(Ending.collective_timeout, Weight.consequence, r"Watchdog caught collective operation timeout"),
    sign(Ending.network, Weight.consequence, r"Rendezvous\w*Error\b|Connection (?:reset|closed|refused)\b|Broken pipe"),
    sign(Ending.network, Weight.consequence, r"^\w*Error: .*\bgloo/transport/"),
    # Nobody sends these signals: the program's own memory is broken. Ranks whose peers have gone crash as well.
    sign(
        Ending.code_error, Weight.consequence, r"tasks? [\d,-]+: (?:Segmentation fault|Bus error|Illegal instruction)"
    ),
    sign(Ending.code_error, Weight.consequence, r"^Fatal Python error: (?!Aborted)"),
    sign(Ending.code_error, Weight.end, r"^(?:malloc|realloc|free|munmap_chunk)\(\): |^double free or corruption \("),
    sign(Ending.code_error, Weight.end, r"^corrupted (?:size vs\. prev_size|double-linked list)"),
    sign(Ending.aborted, Weight.consequence, r"\bMPI_ABORT was invoked on rank \d|\bapplication called MPI_Abort\("),
    sign(Ending.killed, Weight.signal, r"tasks? [\d,-]+: Killed\b|\bexitcode: -9\b|Signal 9 \(SIGKILL\)"),
    sign(
        Ending.aborted,
        Weight.signal,
        r"tasks? [\d,-]+: Aborted\b|^Fatal Python error: Aborted|\bexitcode: -6\b|Signal 6 \(SIGABRT\)",
    ),
    sign(Ending.cancelled, Weight.signal, r"CANCELLED AT [\dT:-]+ \*\*\*|^KeyboardInterrupt$"),
)
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Missing\w*|Interrupt|Exit))(?:: (?P<words>.*))?$")
CONFIGURATION_TYPES = re.compile(
    r"(?:Config\w*|Missing\w*|Validation|Override\w*|Yaml\w*|Scanner|Parser|Argument)Error$"
    r"|(?:Config\w*|Missing\w*|Hydra)Exception$"
)
NETWORK_TYPES = re.compile(r"(?:Connection\w*|BrokenPipe|Rendezvous\w*|Dist(?:Network|Store|Backend))Error$")
# What a process that a signal ended stands for, by the signal's number.
SIGNALS = {9: Ending.killed, 6: Ending.aborted, 11: Ending.code_error}
# torchrun's summary of its children: fields of one failure after the other.
CHILD_FIELD = re.compile(r"^\s*(?P<name>time|host|rank|exitcode)\s*: (?P<value>\S+)")
RANK = re.compile(
    r"\[Rank (\d+)\]|srun: error: \S+: tasks? (\d+)|MPI_ABORT was invoked on rank (\d+)|MPI_Abort\(.*\) - process (\d+)"
)
HOST = re.compile(r" ON (\S+) CANCELLED AT|srun: error: (\S+): tasks? |srun: error: Node failure on (\S+)")
NEEDLES = (
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
SEARCH = Search(NEEDLES)


def evidence(lines: Iterable[Line]) -> Iterator[Evidence]:
    """What the lines say of an end, in their order."""
    raising: set[RankLabel] = set()
    child: dict[str, str] = {}
    for line in lines:
        if " NCCL INFO " in line.text:
            # It tells of connections that close when all is well.
            continue
        if "Traceback (most recent call last)" in line.text:
            raising.add(line.rank)
            continue
        if field := CHILD_FIELD.match(line.text):
            child[field["name"]] = field["value"]
            if field["name"] == "exitcode":
                yield from of_child(child, line)
                child = {}
            continue
        known = next((each for each in SIGNS if each.pattern.search(line.text)), None)
        exception = EXCEPTION.match(line.text)
        if known is not None:
            yield Evidence(known.ending, known.weight, named(line))
        elif exception is not None and line.rank in raising:
            ending, weight = of_exception(exception)
            if ending is not None:
                yield Evidence(ending, weight, line)
        if exception is not None:
            raising.discard(line.rank)


def of_exception(exception: re.Match[str]) -> tuple[Ending | None, Weight]:
    """What the last line of a traceback stands for; None where it only reports another failure, or a signal."""
    kind = exception["type"].rpartition(".")[2]
    if kind in {"ChildFailedError", "SystemExit", "KeyboardInterrupt", "SignalException", "SIGTERMException"}:
        return None, Weight.signal
    if kind == "MemoryError":
        return Ending.out_of_host_memory, Weight.end
    if NETWORK_TYPES.search(kind):
        return Ending.network, Weight.consequence
    if CONFIGURATION_TYPES.search(kind):
        return Ending.configuration_error, Weight.end
    return Ending.code_error, Weight.end


def of_child(child: dict[str, str], line: Line) -> Iterator[Evidence]:
    """What torchrun says of one process: nothing where it ended it itself, or where the process said why."""
    code = int(child["exitcode"]) if re.fullmatch(r"-?\d+", child["exitcode"]) else 0
    ending = SIGNALS.get(-code, Ending.unknown if code > 0 else None)
    if ending is None:
        return
    rank = int(child["rank"]) if child.get("rank", "").isdigit() else None
    whose = line._replace(rank=rank, host=child.get("host"))
    yield Evidence(ending, Weight.signal, whose, child.get("time", ""))


def named(line: Line) -> Line:
    """The line, as that of the rank and the host that it speaks of where it names them."""
    rank, host = RANK.search(line.text), HOST.search(line.text)
    return line._replace(
        rank=int(rank[rank.lastindex or 0]) if rank else line.rank,
        host=host[host.lastindex or 0] if host else line.host,
    )
