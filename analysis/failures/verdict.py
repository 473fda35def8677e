"""The verdict on a log: a failure cause, and the line that proves it.

Most failure messages of a job are consequences: one rank dies, the others time out, Slurm and torchrun kill the rest,
and each of them prints. Matches are therefore ordered by weight first: a fault of the machine, then a line that ends a
run by itself, then an exception whose text is not in the catalogue, then a consequence of a failure elsewhere, then a
bare signal. Among equal weights the earliest match decides. A process that, by torchrun's summary, ended before the
first consequence was printed is the first failure. Without a match the cause is unknown.
In a log whose program reports that it finished, consequences and signals prove nothing. What stands before the last
training step ended nothing; in a format without a reader it takes several steps to show that.

A wrong cause costs more than none. If the match that decides is only a hint (`Weight.possible`), the cause is unknown,
and the verdict contains the hint as `possible`. A process that was killed or aborted is only a hint, too, after a line
that reads like an error and is not in the catalogue: that line may be the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from analysis.failures.catalogue import Weight
from analysis.failures.signatures import Match, matches, search
from analysis.parsers.search import Search, blocks
from jobs.failure_causes import FailureCause

# A training step as programs of unknown formats print it.
PROGRESS = Search(("loss", "Loss", "it/s", "s/it", "samples/s", "tokens/s", "tok/s"))
NUMBER = re.compile(r"\d")
WENT_ON_STEPS = 3
# A step is killed up to a minute after the announcement (Slurm's KillWait), and goes on until then.
LATE_STEPS = 20
# Ends that a manager announces and carries out.
ANNOUNCED = {FailureCause.time_limit, FailureCause.preempted, FailureCause.requeued, FailureCause.node_failure,
             FailureCause.cancelled}  # fmt: skip
ISO = re.compile(r"\b\d{4}-(\d\d)-(\d\d)[ T_](\d\d):(\d\d):(\d\d)")
# [E203 09:10:05.1 of February 3rd: torch does not pad the month.
GLOG = re.compile(r"\[[EWF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.")
TIMEOUT = re.compile(r"WorkNCCL\(SeqNum=(?P<number>\d+)")


@dataclass(frozen=True)
class Verdict:
    """The cause of a run's end, with its proof."""

    cause: FailureCause
    line: int | None = None
    proof: str | None = None
    """The text of that line."""
    rank: int | None = None
    """The rank that failed first, where the log names it."""
    host: str | None = None
    weight: Weight | None = field(default=None, compare=False)
    """The weight of the proof; None if there is none."""
    advice: str = field(default="", compare=False)
    """The remedy for this proof, where it is more than that of the cause."""
    file: str | None = field(default=None, compare=False)
    """The name of the file that contains the line, where that is not the log itself."""
    possible: FailureCause | None = None
    """The cause that the line hints at, where none is proved."""

    @property
    def is_failure(self) -> bool:
        """Return True if the line names a cause, or hints at one."""
        return self.cause is not FailureCause.unknown or self.possible is not None


def in_words(cause: FailureCause, possible: FailureCause | None) -> str:
    """Return a cause, and the one that is possible where it is unknown, as text."""
    word = cause.word.replace("_", " ")
    return f"{word} (possibly {in_words(possible, None)})" if possible else word


def verdict_on(path: Path, steps: Sequence[int] = ()) -> Verdict:
    """Return the verdict on the log in this file.

    `steps` are the line numbers of its training steps, at least of the last ones: an exception before the last did not
    end the run. Raises OSError if the file cannot be read.
    """
    found = list(matches(search().lines(blocks(path))))
    verdict = decide(found, steps)
    if verdict.line is None or verdict.weight is Weight.fault:
        return verdict
    known = {match.line.number for match in found}
    later = [
        line.number
        for line in PROGRESS.lines(blocks(path))
        if line.number > verdict.line and line.number not in known and NUMBER.search(line.text)
    ]
    return decide(found, later) if len(later) >= WENT_ON_STEPS else verdict


def decide(found: Iterable[Match], steps: Sequence[int] = ()) -> Verdict:
    """Return the verdict that these matches prove, in a log with training steps in these lines."""
    found, last_progress = list(found), steps[-1] if steps else 0
    announced_after = steps[-LATE_STEPS] if len(steps) >= LATE_STEPS else 0
    finished = max((each.line.number for each in found if each.weight is Weight.finished), default=0)
    every = [
        each for each in found if counts(each, announced_after if each.cause in ANNOUNCED else last_progress, finished)
    ]
    counted = [each for each in every if each.weight is not Weight.unexplained]
    if not counted:
        return Verdict(FailureCause.unknown)
    weight = min((each.weight for each in counted), key=lambda each: each.value)
    # The first exception is the cause of the next ones, also where only the type of a later one is certain.
    alike = {weight, Weight.possible} if weight is Weight.raised else {weight}
    equal = [each for each in counted if each.weight in alike]
    first = min(equal, key=lambda each: (each.time or "~", each.line.number))
    if first.weight is Weight.consequence and (before := exit_before(counted, equal)):
        first = before
    elif first.cause is FailureCause.hung:
        first = laggard(equal, first)
    line = first.line
    rank, host = (line.rank if isinstance(line.rank, int) else None), line.host
    if rank is None and first.weight is not Weight.fault and first.cause is not FailureCause.hung:
        rank, host = first_to_end(counted) or (rank, host)
    proof = Verdict(first.cause, line.number, line.text.strip(), rank, host, first.weight, first.advice)
    return replace(proof, cause=FailureCause.unknown, possible=first.cause) if is_hint(first, every) else proof


def is_hint(first: Match, found: Iterable[Match]) -> bool:
    """Return True if the match that decides does not prove its cause: see the text on top."""
    if first.weight is Weight.signal and first.cause in {FailureCause.killed, FailureCause.aborted}:
        return any(each.weight is Weight.unexplained and each.line.number < first.line.number for each in found)
    return first.weight is Weight.possible or first.is_hint


def exit_before(counted: Iterable[Match], consequences: Sequence[Match]) -> Match | None:
    """Return the first process in torchrun's summary that ended before all of these consequences; None if none did.

    The others then waited for it in vain: it is the first failure, whatever they printed. Times decide, of lines
    without any their order.
    """
    ends = [each for each in counted if each.weight is Weight.signal and each.time]
    first = min(ends, key=lambda each: (each.time, each.line.number), default=None)
    if first is None:
        return None
    ended, moments = moment_of(first.time), [moment_of(each.line.text) for each in consequences]
    known = [moment for moment in moments if moment is not None]
    if ended is not None and len(known) == len(moments):
        return first if ended < min(known) else None
    return first if first.line.number < min(each.line.number for each in consequences) else None


def moment_of(text: str) -> tuple[int, ...] | None:
    """Return month, day, hours, minutes and seconds in a text, by ISO 8601 or glog; None if there are none."""
    found = ISO.search(text) or GLOG.search(text)
    return tuple(map(int, found.groups())) if found else None


def counts(match: Match, last_progress: int, finished: int) -> bool:
    """Return True if a match may have ended the run: it stands after the last step and the program's own completion.

    A fault of the machine counts anywhere. What also follows from a shutdown counts only in a run that did not finish.
    """
    if match.weight is Weight.fault or match.weight is Weight.finished:
        return match.weight is Weight.fault
    if finished > last_progress and match.weight in {Weight.consequence, Weight.signal}:
        return False
    return match.line.number > max(last_progress, finished)


def first_to_end(counted: list[Match]) -> tuple[int, str | None] | None:
    """Return the rank and the host that a launcher names as the first that ended; None if it names none."""
    ends = [each for each in counted if each.weight is Weight.signal and isinstance(each.line.rank, int)]
    first = min(ends, key=lambda each: (each.time or "~", each.line.number), default=None)
    return (first.line.rank, first.line.host) if first and isinstance(first.line.rank, int) else None


def laggard(waiting: list[Match], first: Match) -> Match:
    """Return the match of the rank with the lowest collective number, among ranks whose collectives timed out.

    Where no rank is behind, the first match without a rank: the missing rank did not print, so the log does not name
    it.
    """
    numbers = {each: int(found["number"]) for each in waiting if (found := TIMEOUT.search(each.line.text))}
    behind = [each for each, number in numbers.items() if number == min(numbers.values())]
    if len(behind) == 1 and len(set(numbers.values())) > 1:
        return behind[0]
    return Match(first.cause, first.weight, first.line._replace(rank=None))
