"""The matches of a log: lines with a signature of the catalogue, the ends of tracebacks, torchrun's summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analysis.failures.catalogue import SIGNATURES, Weight
from analysis.parsers.base import Line, RankLabel
from analysis.parsers.search import Search
from jobs.failures import FailureCause


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


# Prefixes of loggers and of Ray around the lines of a traceback; launchers' prefixes are gone.
LOGGED = re.compile(
    r"^(?:\(\S[^()]*\bpid=\d+(?:, ip=[\d.]+)?\) ?"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.]{8,12} \[[\w.]+:\d+\] ?"
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]{8,}Z?\]? (?:\| \w+ +\| (?:\w+ \| )?|stderr \w )?"
    r"|[EWF]\d{4} [\d:.]{8,} +(?:\d+ )?\S+\.py:\d+\] ?"
    r"|\[(?:stderr|rank\d+)\]:? |stderr: |[\w.-]+[-_]\d+ +\| )+"
)
# Exceptions whose names end otherwise.
OTHER_TYPES = (
    "ArrowInvalid", "BackendCompilerFailed", "ConnectTimeout", "Empty", "OutOfResources", "ReadTimeout", "Timeout",
    "TimeoutExpired", "Unsupported", "error", "gaierror", "timeout",
)  # fmt: skip
# torchrun's summary indents the traceback of a rank.
EXCEPTION = re.compile(
    r"^ *(?P<type>(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Missing\w*|Interrupt|Exit)"
    rf"|(?:[a-z_]\w*\.)+(?:{'|'.join(OTHER_TYPES)}))(?:: (?P<words>.*))?$"
)
CONFIGURATION_TYPES = re.compile(
    r"(?:Config\w*|Missing\w*|Validation|Override\w*|Yaml\w*|Scanner|Parser|Constructor|Composer|Argument|Interpolation\w*"
    r"|Decoding|DuplicateOption"
    r"|(?i:toml)Decode)Error$"
    r"|(?:Config\w*|Misconfig\w*|Missing\w*|Hydra)Exception$"
    # Of a path that a setting names.
    r"|^(?:FileNotFound|NotADirectory|IsADirectory|Permission)Error$"
)
NETWORK_TYPES = re.compile(
    r"(?:^|\w)[Tt]imeout(?:Error)?$|(?:Connection\w*|BrokenPipe|Rendezvous\w*|Dist(?:Network|Store|Backend))Error$"
)
# The program's own code was not reached, or needs a package that the environment lacks.
IMPORT_TYPES = re.compile(r"^(?:ImportError|ModuleNotFoundError)$")
# The cause of a process that a signal ended, by the signal's number.
SIGNALS = {9: FailureCause.killed, 6: FailureCause.aborted, 7: FailureCause.unknown, 11: FailureCause.code}
# The type of an exception, and not only the word "Error".
TYPE = re.compile(r"[\w.]+(?:[a-z]Error|Exception): ")
WRAPPED = re.compile(r"\bRayTaskError\((?P<type>\w+)\)(?P<words>): ray::")
COMPILES = re.compile(r"^Command '\[?'?(?:\S*/)?(?:ninja|nvcc|gcc|g\+\+|c\+\+|cmake|ptxas|make)'")
# The innermost frame of a traceback, where it checks a configuration or the arguments of a command.
FRAME = re.compile(r'File "[^"]*", line \d+, in \S+')
CHECKS = re.compile(
    r'(?i)[/"]\w*(?:config|configuration|arguments?|args|arg_?parser|hparams|options|flags|hydra)\w*\.py"'
    r"|, in (?:__post_init__|\w*(?:validate|check|verify|parse)\w*(?:config|arg|param|option)\w*|\w+_validation)$"
)
VALUE_TYPES = {"ValueError", "AssertionError", "NotImplementedError", "KeyError"}
# A shell's exit status for a command that a signal ended is this plus the signal's number.
EXIT_STATUS = re.compile(r"returned non-zero exit status (\d{1,3})\.?$")
SHELL_SIGNAL = 128
DIED_WITH = re.compile(r"died with <Signals\.\w+: (\d+)>")
# torchrun's summary of its children: the fields of one failure after another.
CHILD_FIELD = re.compile(r"^\s*(?P<name>time|host|rank|exitcode)\s*: (?P<value>\S+)")
RANK = re.compile(
    r"collective timeout from +rank (\d+)|Unexpected result \S+ on rank (\d+)|\[Rank (\d+)\]"
    r"|srun: error: \S+: tasks? (\d+)|process rank (\d+) with PID|MPI_ABORT was invoked on rank (\d+)"
    r"|MPI_Abort\(.*\) - process (\d+)|Process name: \[\[\d+,\d+\],(\d+)\]"
)
HOST = re.compile(
    r" ON (\S+) CANCELLED AT|with PID \d+ on node (\S+)|srun: error: (\S+): tasks? "
    r"|srun: error: Node failure on (\S+)"
)
TRACEBACK = "Traceback (most recent call last)"
# CPython announces a traceback that does not end the program: of a destructor, of a thread, of logging itself.
SURVIVED = ("Exception ignored in", "--- Logging error ---")
# Exceptions that report the end of another process, which has its own reason.
REPORTS = {
    "ChildFailedError", "SystemExit", "KeyboardInterrupt", "SignalException", "SIGTERMException", "ActorDiedError",
    "RayActorError", "WorkerCrashedError", "ProcessExitedException", "ProcessRaisedException", "EngineDeadError",
    "AsyncEngineDeadError", "FailedJobError", "UncompletedJobError", "RemoteError",
    "CancelledError", "GetTimeoutError", "TrainingFailedError", "TuneError", "TimeoutExpired", "Empty",
}  # fmt: skip
# Of tracebacks and of torchrun's summary; the catalogue has those of its signatures.
OTHER_MARKERS = (
    TRACEBACK, '", line ', *SURVIVED, *(f".{name}" for name in OTHER_TYPES), "Error", "Exception", "exitcode", "  time      :",
    "  host      :", "  rank      :",
)  # fmt: skip
MARKERS = tuple(dict.fromkeys((*(marker for each in SIGNATURES for marker in each.markers), *OTHER_MARKERS)))
SEARCH = Search(MARKERS)


def matches(lines: Iterable[Line]) -> Iterator[Match]:
    """Yield the matches of these lines in order."""
    raising: set[RankLabel] = set()
    survived: set[RankLabel] = set()
    frames: dict[RankLabel, str] = {}
    child: dict[str, str] = {}
    for line in map(without_logger, lines):
        if " NCCL INFO " in line.text or line.text.startswith(("[W ", "[W0", "[W1")):
            # NCCL logs connections that close in normal operation; torch warns of addresses that it tries in vain.
            continue
        if frame := FRAME.search(line.text):
            frames[line.rank] = frame[0]
            continue
        if line.text.startswith(SURVIVED):
            survived.add(line.rank)
            continue
        if TRACEBACK in line.text:
            raising.add(line.rank)
            frames.pop(line.rank, None)
            continue
        if field := CHILD_FIELD.match(line.text):
            child[field["name"]] = field["value"]
            if field["name"] == "exitcode":
                yield from match_child(child, line)
                child = {}
            continue
        known = next((each for each in SIGNATURES if each.matches(line.text)), None)
        exception = EXCEPTION.match(line.text)
        if exception is not None and line.rank in survived & raising:
            survived.discard(line.rank)
        elif known is not None:
            yield Match(known.cause, known.weight, with_rank_and_host(line), advice=known.advice)
        elif exception is not None and line.rank in raising:
            cause, weight = cause_of_exception(exception, frames.get(line.rank, ""))
            if cause is not None:
                yield Match(cause, weight, line)
        elif wrapped := WRAPPED.search(line.text):
            # Ray's exception repeats the type of the task's, whose own text decides if it is in the log.
            cause, _ = cause_of_exception(wrapped)
            if cause is not None:
                yield Match(cause, Weight.signal, line)
        elif exception is not None and exception["words"] and TYPE.match(line.text):
            # Its traceback is missing, so the program may have printed it and gone on.
            cause, _ = cause_of_exception(exception)
            if cause is not None:
                yield Match(cause, Weight.signal, line)
        if exception is not None:
            raising.discard(line.rank)


def cause_of_exception(exception: re.Match[str], frame: str = "") -> tuple[FailureCause | None, Weight]:
    """Return the cause of a traceback's last line; None where it only reports another failure or a signal.

    `frame` is the innermost frame of the traceback: a value that the check of a configuration rejects was set.
    """
    kind = exception["type"].rpartition(".")[2]
    if kind in REPORTS:
        return None, Weight.signal
    if kind == "CalledProcessError":
        # accelerate's launcher: the process has printed its own reason, unless a signal ended it.
        died = DIED_WITH.search(exception["words"] or "")
        if COMPILES.search(exception["words"] or ""):
            return FailureCause.launch_failure, Weight.raised
        status = EXIT_STATUS.search(exception["words"] or "")
        number = int(died[1]) if died else int(status[1]) - SHELL_SIGNAL if status else 0
        return SIGNALS.get(number, FailureCause.unknown), Weight.signal
    if kind == "EOFError" and not exception["words"]:
        # The process at the other end of the pipe is gone.
        return FailureCause.unknown, Weight.signal
    if kind.endswith("MemoryError"):
        return FailureCause.out_of_host_memory, Weight.end
    if NETWORK_TYPES.search(kind):
        return FailureCause.lost_peer, Weight.consequence
    if IMPORT_TYPES.search(kind):
        return FailureCause.launch_failure, Weight.raised
    if CONFIGURATION_TYPES.search(kind) or (kind in VALUE_TYPES and CHECKS.search(frame)):
        return FailureCause.refused, Weight.raised
    return FailureCause.code, Weight.raised


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
