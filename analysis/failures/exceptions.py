"""Exceptions: the lines of tracebacks, and the cause that an exception's type names where its text is not known."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from analysis.failures.catalogue import PARTS, Weight
from analysis.failures.catalogue.places import COMPUTES, cause_by_place
from analysis.parsers.base import Line, RankLabel
from jobs.failure_causes import FailureCause

# Exceptions whose names end otherwise.
OTHER_TYPES = (
    "ArrowInvalid", "BackendCompilerFailed", "ConnectTimeout", "Empty", "OutOfResources", "ReadTimeout", "Timeout",
    "TimeoutExpired", "Unsupported", "error", "gaierror", "timeout",
)  # fmt: skip
# torchrun's summary indents the traceback of a rank.
EXCEPTION = re.compile(
    r"^ *(?P<type>(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Missing\w*|Interrupt|Exit|StopIteration)"
    rf"|(?:[a-z_]\w*\.)+(?:{'|'.join(OTHER_TYPES)}))(?:: (?P<words>.*))?$"
)
CONFIGURATION_TYPES = re.compile(
    r"(?:Config\w*|Missing\w*|Validation|Override\w*|Yaml\w*|Scanner|Parser|Constructor|Composer|(?<!Invalid)Argument|UnrecognizedFlag|IllegalFlagValue|Interpolation\w*"
    r"|Decoding|DuplicateOption"
    r"|(?i:toml)Decode)Error$"
    r"|(?:Config\w*|Misconfig\w*|Missing\w*|Hydra)Exception$"
    # The path that a setting names is wrong.
    r"|^(?:FileNotFound|NotADirectory|IsADirectory|Permission)Error$"
)
NETWORK_TYPES = re.compile(
    r"(?:^|\w)[Tt]imeout(?:Error)?$|(?:Connection\w*|BrokenPipe|Rendezvous\w*|Dist(?:Network|Store|Backend))Error$"
)
# The program's own code was not reached, or needs a package that the environment lacks.
IMPORT_TYPES = re.compile(r"^(?:ImportError|ModuleNotFoundError)$")
# The cause of a process that a signal ended, by the signal's number.
SIGNALS = {
    9: FailureCause.killed,
    6: FailureCause.aborted,
    7: FailureCause.unknown,
    11: FailureCause.code,
    4: FailureCause.launch_failure,
    8: FailureCause.code,
}
# The type of an exception, and not only the word "Error".
TYPE = re.compile(r"[\w.]+(?:[a-z]Error|Exception): ")
WRAPPED = re.compile(r"\bRayTaskError\((?P<type>\w+)\)(?P<words>): ray::")
# A hook of sys.excepthook prints type and sentence in one line of the log.
UNCAUGHT = re.compile(
    r"\b[Uu]n(?:caught|handled) (?:exception\b.*?)?\b(?P<type>[A-Z]\w+(?:Error|Exception))\b(?:'>)?\W*(?P<words>.*)"
)
COMPILES = re.compile(
    r"^Command '\['which', '|^Command '\[?'?(?:\S*/)?(?:ninja|nvcc|gcc|g\+\+|c\+\+|cmake|ptxas|make)'"
)
# A frame of a traceback.
FRAME = re.compile(r'File "[^"]*", line \d+, in \S+')
# The source line of a frame, where it shows what was expected: an assertion, a key of a checkpoint.
SOURCE = re.compile(r"^\s+assert |^\s.*(?:(?:ckpt|checkpoint|state_dict)\w*|torch\.load\(.*\))\[")
VALUE_TYPES = {"ValueError", "AssertionError", "NotImplementedError", "KeyError"}
# Types that only the logic of a program raises, whatever their text.
LOGIC_TYPES = {
    "ArrowTypeError", "AttributeError", "IndentationError", "IndexError", "NameError", "OverflowError",
    "RecursionError", "StopIteration", "SyntaxError", "TypeError", "UnboundLocalError", "UnicodeDecodeError",
    "UnicodeEncodeError", "UnpicklingError", "ZeroDivisionError",
}  # fmt: skip
# Types whose text is a sentence. Others (OSError, exceptions of a library) do not show which side is wrong.
SENTENCE_TYPES = VALUE_TYPES | {"Exception", "RuntimeError"}
OF_DATA = re.compile(PARTS["OF_DATA"])
# Things outside of the program that a sentence names: files, connections, packages, devices, processes, settings, a
# request to the user.
OUTSIDE = re.compile(
    r"(?i)\b(?:files?|filename|paths?|director(?:y|ies)|folders?|disk|open(?:ed)?|corrupt\w*|truncated|EOF|decompress\w*|"
    r"download\w*|urls?|https?|hub|repo(?:sitory)?|tokenizer|processor|template|datasets?|"
    r"connect(?:ion|ed)?|network|internet|sockets?|hosts?|hostname|address|ports?|servers?|clients?|agents?|daemons?|"
    r"time[ds]?[ -]?out|timeout|deadline|rendezvous|nccl|gloo|mpi|rccl|ucx|requests?|status code|unreachable|"
    r"unavailable|"
    r"installed|install|packages?|versions?|librar(?:y|ies)|modules? named|symbols?|compil\w+|drivers?|cuda|hip|rocm|"
    r"gpus?|devices?|kernels?|hardware|memory|alloc\w*|nodes?|process(?:es)?|workers?|subprocess|child(?:ren)?|killed|"
    r"died|dead|alive|exit(?:ed|ing)?|environment|env|variables?|permission|credentials?|licen[sc]e|quota|space left|"
    r"config\w*|settings?|arguments?|args|flags?|options?|hyperparameters?|strategy|precision|batch[-_ ]?size|"
    r"checkpoints?|ckpt|please|unsupported|support(?:s|ed)?|exists?|"
    r"requires?|required|must|should|cannot be|can't be|missing|"
    r"exceed\w*|limits?|maximum|minimum|max value|unknown|fail(?:ed|ure|s)?|lock(?:ed|s)?|compatib\w+|"
    r"backward compat\w+|"
    r"not found|not exist|not available|not enabled|choose|specify|provide|invalid (?:value|choice|option))\b"
)
WRAPPER = re.compile(r"^Caught (?P<type>\w+) in (?:DataLoader worker|pin memory|replica)")
# The source line of a frame reads a key of a checkpoint: the checkpoint is of another kind.
READS_CHECKPOINT = re.compile(r"(?:\bckpt|checkpoint|state_dict)\w*\[|\btorch\.load\(.*\)\[")
# A shell's exit status for a command that a signal ended is this plus the signal's number.
EXIT_STATUS = re.compile(r"returned non-zero exit status (\d{1,3})\.?$")
SHELL_SIGNAL = 128
DIED_WITH = re.compile(r"died with <Signals\.\w+: (\d+)>")
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


@dataclass
class Tracebacks:
    """The tracebacks that the ranks of a log are printing."""

    raising: set[RankLabel] = field(default_factory=set)
    survived: set[RankLabel] = field(default_factory=set)
    frames: dict[RankLabel, str] = field(default_factory=dict)
    """The innermost frame so far; below it its source line, where that is an assertion or reads a checkpoint."""
    computing: set[RankLabel] = field(default_factory=set)
    """Ranks with a frame of the model, the loss or the input pipeline."""

    def contain(self, line: Line) -> bool:
        """Return True, and take note, if this is a line of a traceback before its last one."""
        if line.text.startswith(SURVIVED):
            self.survived.add(line.rank)
        elif TRACEBACK in line.text:
            self.raising.add(line.rank)
            self.frames.pop(line.rank, None)
            self.computing.discard(line.rank)
        elif frame := FRAME.search(line.text):
            # The first line of the traceback may be lost.
            self.raising.add(line.rank)
            self.frames[line.rank] = frame[0]
            if COMPUTES.search(frame[0]):
                self.computing.add(line.rank)
        elif line.rank in self.raising and SOURCE.match(line.text):
            self.frames[line.rank] = f"{self.frames.get(line.rank, '')}\n{line.text}"
        else:
            # torch.compile puts this before the exception of its backend.
            return line.rank in self.raising and line.text.endswith("raised:")
        return True

    def end(self, line: Line) -> bool:
        """Return True if the traceback that ends with this line did not end its program."""
        survived = line.rank in self.survived & self.raising
        if survived:
            self.survived.discard(line.rank)
        return survived

    def cause_of(self, line: Line, exception: re.Match[str] | None) -> tuple[FailureCause | None, Weight]:
        """Return the cause of the exception in a line; None if there is none."""
        if exception is not None and line.rank in self.raising:
            return cause_of_exception(exception, self.frames.get(line.rank, ""), computing=line.rank in self.computing)
        # Ray repeats the type of a task's exception. Without a traceback a program may have printed it and gone on.
        bare = WRAPPED.search(line.text) or UNCAUGHT.search(line.text)
        if bare is None and exception is not None and exception["words"] and TYPE.match(line.text):
            bare = exception
        cause, weight = cause_of_exception(bare) if bare else (None, Weight.signal)
        return FailureCause.unknown if weight is Weight.possible else cause, Weight.signal


def cause_of_exception(
    exception: re.Match[str], frame: str = "", *, computing: bool = False
) -> tuple[FailureCause | None, Weight]:
    """Return the cause of a traceback's last line; None if it only reports another failure or a signal.

    `frame` is the innermost frame of the traceback: a value that the check of a configuration rejects was set.
    `computing` is True if an outer frame is the model's: then an exception that fits several causes is its error.
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
    if CONFIGURATION_TYPES.search(kind):
        return FailureCause.refused, Weight.raised
    if kind == "KeyError" and READS_CHECKPOINT.search(frame):
        # A checkpoint of another kind, or a program that saves and loads under different names.
        return FailureCause.refused, Weight.possible
    place = cause_by_place(frame)
    if place is FailureCause.launch_failure or (place is not None and kind in SENTENCE_TYPES):
        return place, Weight.raised
    words = exception["words"] or ""
    if (computing and kind in SENTENCE_TYPES) or is_of_code(kind, words, frame):
        return FailureCause.code, Weight.raised
    # Libraries reject the values of their parameters by ValueErrors; those of tensors and of CPython are known.
    return FailureCause.refused if kind == "ValueError" else FailureCause.code, Weight.possible


def is_of_code(kind: str, words: str, frame: str) -> bool:
    """Return True if an exception shows by its type and sentence that the program itself is wrong.

    A sentence about tensors does, and one that names nothing outside of the program. Without a sentence the assertion
    in the source line counts.
    """
    wrapper = WRAPPER.match(words)
    kind = wrapper["type"] if wrapper else kind
    if kind in LOGIC_TYPES:
        return True
    if kind not in SENTENCE_TYPES:
        return False
    sentence = words or frame.partition("assert ")[2]
    of_data = OF_DATA.search(sentence) is not None
    if wrapper is not None or of_data:
        return True
    return kind != "ValueError" and sentence != "" and OUTSIDE.search(sentence) is None
