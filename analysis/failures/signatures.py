"""The matches of a log: lines with a signature of the catalogue, the ends of tracebacks, torchrun's summary."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from analysis.failures.catalogue import SIGNATURES, Signature, Weight
from analysis.failures.exceptions import EXCEPTION, OTHER_TYPES, SIGNALS, SURVIVED, TRACEBACK, Tracebacks
from analysis.parsers.base import Line
from analysis.parsers.search import Search
from jobs.failure_causes import FailureCause


@dataclass(frozen=True)
class Match:
    """A line that matches the signature of a cause."""

    cause: FailureCause
    weight: Weight
    line: Line
    """With the rank and the host that the text names."""
    time: str = ""
    """As torchrun writes it, which sorts; empty where the order of the lines decides."""
    advice: str = ""
    """The remedy that the signature has; empty for that of the cause."""
    is_hint: bool = False
    """The line hints at its cause, and does not prove it."""


# Prefixes of loggers and of Ray around the lines of a traceback; launchers' prefixes are gone.
LOGGED = re.compile(
    r"^(?:\(\S[^()]*\bpid=\d+(?:, ip=[\d.]+)?\) ?"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.]{8,12} \[[\w.]+:\d+\] ?"
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]{8,}Z?\]? (?:\| \w+ +\| (?:\w+ \| )?|stderr \w )?"
    r"|[EWF]\d{4} [\d:.]{8,} +(?:\d+ )?\S+\.py:\d+\] ?"
    r"|.{0,80}- INFO - (?=\[rank\d+\]:)|\[(?:stderr|rank\d+)\]:? |stderr: |[\w.-]+ +\| )+"
)
# torchrun's summary of its children: the fields of one failure after another.
CHILD_FIELD = re.compile(r"^\s*(?P<name>time|host|rank|exitcode)\s*: (?P<value>\S+)")
RANK = re.compile(
    r"collective timeout from +rank (\d+)|Unexpected result \S+ on rank (\d+)|\[Rank (\d+)\]"
    r"|srun: error: \S+: tasks? (\d+)|process rank (\d+) with PID|MPI_ABORT was invoked on rank (\d+)"
    r"|MPI_Abort\(.*\) - process (\d+)|Process name: \[\[\d+,\d+\],(\d+)\]"
    r"|composer\.cli\.launcher:(?:Global rank|Rank) (\d+)|^rank (\d+) (?:exited with code|died from signal)"
    r"|first noticed rank (\d+)"
)
HOST = re.compile(
    r" ON (\S+) CANCELLED AT|with PID \d+ on node (\S+)|srun: error: (\S+): tasks? "
    r"|srun: error: Node failure on (\S+)"
)
TORCH_WARNS = ("[W ", "[W0", "[W1")
# A program that reports a failure as information or a warning, or tries again, goes on. bash prefixes the commands of
# `set -x` with +.
GOES_ON = re.compile(
    r"^\+{1,4} |^[IW]\d{4} [\d:.]{8,} +(?:\d+ )?\S+\.(?:py|cc):\d+\]"
    # fairseq raises after its warning, and a training that asked for CUDA does not go on without it.
    # NVIDIA's fault tolerance ends the ranks after its own.
    r"|^(?!.*(?:nan_detector|CUDA initialization| heartbeat\. Waited | this job is )).*"
    r"(?:(?:^|[\[|( ])WARNING(?:[\])|:]| [|-] | \d\d-\d\d )|:\d+: \w*Warning: )"
    # Unless it relays the lines of a rank, or reports that it gave the job back to Slurm.
    r"|^(?!submitit |.*Requeued SLURM job|.* - INFO - \[rank\d+\]:)(?:.* - |\[|.*\]\[|)INFO(?:\]|\|| - |:)"
    r"|(?<!after )\b[Rr]etrying\b|\b(?:[Ww]ill (?:retry|try again)|[Ff]alling back)\b|\(ignored\)"
    r"|^Error while downloading from https?://"
    r"|\bthrown while requesting\b|\bThis can cause .* errors like\b"
)
# An error as text. Launchers and managers report the end of a process with such words, too.
IN_WORDS = re.compile(r"(?i)\b(?:error|fatal|fail(?:ed|ure)|timed out|timeout|exception|panic|corrupt\w*|violation)\b")
OF_LAUNCHERS = re.compile(
    r"^(?:srun|slurmstepd|mpirun|mpiexec|\s*error_file|\s*traceback)\b|ChildFailedError|Signal \d+ \(SIG|exitcode|"
    r"FAILED|"
    r"(?i:first observed failure|CalledProcessError|return code|exit(?:ed with)? (?:code|status))"
)
# Of tracebacks and of torchrun's summary; the catalogue has those of its signatures.
OTHER_MARKERS = (
    TRACEBACK, '", line ', "    assert ", "ckpt[", "checkpoint[", "state_dict[", "torch.load(", "StopIteration",
    *SURVIVED, *(f".{name}" for name in OTHER_TYPES), "Error",
    "Exception", "exitcode", "  time      :", "  host      :", "  rank      :",
    "error", "ERROR", "fatal", "Fatal", "FATAL", "ailed", "ailure", "imed out", "imeout", "xception", "panic", "orrupt",
    "iolation",
)  # fmt: skip


@cache
def by_marker() -> Mapping[str, Sequence[int]]:
    """Return the numbers of the signatures whose expressions are tried on a text that contains a marker."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, signature in enumerate(SIGNATURES):
        for marker in signature.markers:
            numbers[marker].append(number)
    return dict(numbers)


@cache
def search() -> Search:
    """Return the search for the lines that are relevant for a verdict."""
    return Search(tuple(dict.fromkeys((*by_marker(), *OTHER_MARKERS))))


def known(text: str) -> Iterator[Signature]:
    """Yield the signatures that a line with this text matches, in the order of the catalogue."""
    markers = {search().markers[marker] for marker, _, _ in search().found(text.encode())}
    for number in sorted({number for marker in markers for number in by_marker().get(marker, ())}):
        if SIGNATURES[number].pattern.search(text):
            yield SIGNATURES[number]


def matches(lines: Iterable[Line]) -> Iterator[Match]:
    """Yield the matches of these lines in order."""
    tracebacks = Tracebacks()
    child: dict[str, str] = {}
    for line in (without_logger(each) for each in lines if not goes_on(each.text)):
        # NCCL and torch also report normal operation: closed connections, addresses tried in vain.
        if " NCCL INFO " in line.text or line.text.startswith(TORCH_WARNS) or tracebacks.contain(line):
            continue
        if found := CHILD_FIELD.match(line.text):
            child[found["name"]] = found["value"]
            if found["name"] == "exitcode":
                yield from match_child(child, line)
                child = {}
            continue
        exception = EXCEPTION.match(line.text)
        if exception is None or not tracebacks.end(line):
            yield from match_line(line, exception, tracebacks)
        if exception is not None:
            tracebacks.raising.discard(line.rank)


def goes_on(text: str) -> bool:
    """Return True for a line after which its program goes on; a report of completion does not count."""
    return GOES_ON.search(text) is not None and all(each.weight is not Weight.finished for each in known(text))


def match_line(line: Line, exception: re.Match[str] | None, tracebacks: Tracebacks) -> Iterator[Match]:
    """Yield the match of a line by the catalogue, else by the type of its exception."""
    signature = next(known(line.text), None)
    if signature is None or signature.weight is Weight.possible:
        # The place of an exception proves more than a sentence that is only a hint.
        cause, weight = tracebacks.cause_of(line, exception)
        if cause is not None and (signature is None or weight is Weight.raised):
            yield Match(cause, weight, line)
            return
    if signature is not None:
        yield Match(signature.cause, signature.weight, with_rank_and_host(line), advice=signature.advice)
    elif IN_WORDS.search(line.text) and not OF_LAUNCHERS.search(line.text):
        yield Match(FailureCause.unknown, Weight.unexplained, line)


def match_child(child: dict[str, str], line: Line) -> Iterator[Match]:
    """Yield the match of a process in torchrun's summary.

    Nothing where torchrun ended the process, or where the process itself reported the reason. A positive exit code is
    mostly that of an exception, whose traceback the log need not contain: a hint at the program, and no proof.
    """
    code = int(child["exitcode"]) if re.fullmatch(r"-?\d+", child["exitcode"]) else 0
    # A shell reports the signal that ended its program as 128 + signal.
    cause = SIGNALS.get(-code, SIGNALS.get(code - 128, FailureCause.code) if code > 0 else None)
    if cause is None:
        return
    rank = int(child["rank"]) if child.get("rank", "").isdigit() else None
    its_line = line._replace(rank=rank, host=child.get("host"))
    is_hint = cause is FailureCause.code and code > 0
    yield Match(cause, Weight.signal, its_line, child.get("time", ""), is_hint=is_hint)


def without_logger(line: Line) -> Line:
    """Return the line without what a logger or Ray put before it."""
    before = LOGGED.match(line.text)
    return line._replace(text=line.text[before.end() :]) if before else line


def with_rank_and_host(line: Line) -> Line:
    """Return the line with the rank and the host that its text names, else its own."""
    rank, host = RANK.search(line.text), HOST.search(line.text)
    return line._replace(
        rank=int(rank[rank.lastindex or 0]) if rank else line.rank,
        host=host[host.lastindex or 0] if host else line.host,
    )
