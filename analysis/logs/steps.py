"""The steps of a log: ranks that say the same step joined, attempts told apart, what was lost and warm-up left out."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from analysis.logs.file import LogFile
from analysis.parsers import metrics as a
from analysis.parsers.base import RESUMED, Kind, RankLabel, Record, Text
from jobs import metrics as m
from jobs.metrics import Better, Metric

# What tells a step from others: the first of them that a record has.
POSITIONS = (a.MICRO_BATCHES_DONE, m.STEP, a.SAMPLES_DONE, a.TOKENS_DONE, a.ITERATION, a.UNIX_TIME)
# Nodes that print at once are seldom further apart; a run that starts again goes further back.
MOST_BEHIND = 2
# Each rank has the loss of its own samples.
AVERAGED = {m.LOSS, m.EVALUATION_LOSS}
MOST_OVER_LATER = 1.1
WARM_UP_RULE = (
    "Of other people's logs the first step told of every attempt is not measured, nor those after it until one takes "
    f"at most {MOST_OVER_LATER:g} times the median of the attempt's second half; at most half of it is left out."
)
RATES = (m.TOKENS_PER_S, a.SAMPLES_PER_S, m.TOKENS_PER_S_PER_RANK, a.SAMPLES_PER_S_TIMED)
Place = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class LogStep:
    """A step as all ranks together tell it."""

    attempt: int
    """From 1."""
    place: Place
    values: dict[Metric, float]
    line: int
    """The first that tells of it."""

    @property
    def time_s(self) -> float | None:
        """Its step time, or one that is proportional to it; None where the log tells neither time nor speed."""
        if m.STEP_TIME in self.values:
            return self.values[m.STEP_TIME]
        return next((1 / self.values[rate] for rate in RATES if self.values.get(rate, 0) > 0), None)


@dataclass(frozen=True, eq=False)
class Attempt:
    """What is told of one start of a training, and how it ended."""

    steps: Sequence[LogStep]
    resumed: bool = False
    """Whether a line before its first step says so."""
    start: float | None = None
    """The step of the checkpoint that it goes on from; None where nothing tells it."""
    ended: str = "unknown"


@dataclass(frozen=True)
class Lost:
    """Work of an attempt that a later one did again, or could have."""

    cause: str
    steps: float
    time_s: float | None
    """None where a step's time is not told."""


@dataclass(frozen=True, eq=False)
class LogRun:
    """A log that tells of a training, with what files beside it say."""

    file: LogFile
    settings: Mapping[Metric, float]
    texts: Mapping[Text, str]
    attempts: Sequence[Attempt]
    """In `file`, which of a training with a file for each attempt is the last."""

    @cached_property
    def steps(self) -> list[LogStep]:
        """The steps that the training is made of."""
        return kept_steps(self.attempts)

    @property
    def starts(self) -> int:
        """How often the training was started, as far as told: one that began anew may be another training."""
        return len(self.attempts) if all(goes_on(later, self.attempts[0]) for later in self.attempts[1:]) else 1


def attempts_of(file: LogFile) -> list[Attempt]:
    """The attempts that a log tells of, in order."""
    resumed = [record for record in file.of(Kind.event) if record.texts.get(Text.event) == RESUMED]
    told = [joined(records, resumed) for (_, kind), records in file.records.items() if kind is Kind.step]
    if not told:
        return []
    # Of two programs that tell of the same steps, one tells their times.
    told.sort(key=lambda steps: (-sum(step.time_s is not None for step in steps), -len(steps)))
    for others in told[1:]:
        also = {(step.attempt, step.values[m.STEP]): step.values for step in others if m.STEP in step.values}
        for step in told[0]:
            if m.STEP in step.values:
                step.values.update(also.get((step.attempt, step.values[m.STEP]), {}) | step.values)
    by_attempt: dict[int, list[LogStep]] = defaultdict(list)
    for step in told[0]:
        by_attempt[step.attempt].append(step)
    attempts, after = [], 0
    for steps in by_attempt.values():
        said = [record for record in resumed if after < record.line < steps[0].line]
        start = said[-1].values.get(m.STEP) if said else None
        attempts.append(Attempt(steps, bool(said), start))
        after = steps[0].line
    return attempts


def interval(steps: Iterable[LogStep]) -> float:
    """The steps from one logged step to the next."""
    numbers = sorted({step.values[m.STEP] for step in steps if m.STEP in step.values})
    return min((later - earlier for earlier, later in pairwise(numbers)), default=1.0)


def joined(records: Iterable[Record], resumed: Sequence[Record]) -> list[LogStep]:
    """The steps that one format tells, in the order of their first line; a new attempt from each line that says so."""
    attempt, seen, said = 1, dict[Place, int](), set[tuple[Place, RankLabel]]()
    told: dict[tuple[int, Place], list[Record]] = defaultdict(list)
    lines = sorted(record.line for record in resumed)
    for count, record in enumerate(records):
        place = place_of(record, count)
        passed = sum(line < record.line for line in lines)
        del lines[:passed]
        if passed:
            begins = bool(seen)
        elif place in seen:
            behind = len(seen) - 1 - seen[place]
            by_another_rank = record.rank is not None and (place, record.rank) not in said
            begins = behind > MOST_BEHIND and not by_another_rank
        else:
            begins = bool(seen) and place < next(iter(seen))
        if begins:
            attempt, seen, said = attempt + 1, {}, set()
        seen.setdefault(place, len(seen))
        if record.rank is not None:
            said.add((place, record.rank))
        told[attempt, place].append(record)
    return [LogStep(attempt, place, slowest(ranks), ranks[0].line) for (attempt, place), ranks in told.items()]


# --- what a later attempt did again ------------------------------------------------------------------------------


def lost_steps(attempts: Sequence[Attempt]) -> list[list[LogStep]]:
    """The steps of each attempt that a later one did again, or could have."""
    return [
        [step for step in attempt.steps if any(again(step, later, attempts[0]) for later in attempts[index + 1 :])]
        for index, attempt in enumerate(attempts)
    ]


def goes_on(later: Attempt, first: Attempt) -> bool:
    """Whether an attempt goes on with a training that began with another one; else it began anew, or is another.

    Counts of samples are not asked: programs state some of them late.
    """
    begin, onward = (attempt.steps[0].values.get(m.STEP) for attempt in (first, later))
    return later.resumed or (begin is not None and onward is not None and onward > begin)


def again(step: LogStep, later: Attempt, first: Attempt) -> bool:
    """Whether a later attempt did a step again, or went on from before it."""
    if not goes_on(later, first):
        return step.place in {each.place for each in later.steps}
    if later.start is not None and m.STEP in step.values:
        return step.values[m.STEP] > later.start
    return step.place >= later.steps[0].place


def kept_steps(attempts: Sequence[Attempt]) -> list[LogStep]:
    """The steps that no later attempt did again."""
    lost = {id(step) for steps in lost_steps(attempts) for step in steps}
    return [
        replace(step, attempt=number)
        for number, attempt in enumerate(attempts, start=1)
        for step in attempt.steps
        if id(step) not in lost
    ]


def losses_of(attempts: Sequence[Attempt]) -> list[Lost] | None:
    """What was lost with each attempt but the last, where all went on; None where the log does not number its steps."""
    if not all(m.STEP in step.values for attempt in attempts for step in attempt.steps):
        return None
    starts = [attempt.start for attempt in attempts]
    return [
        loss_of(attempt, gone, [start for start in starts[index + 1 :] if start is not None])
        for index, (attempt, gone) in enumerate(zip(attempts, lost_steps(attempts), strict=True))
    ][:-1]


def loss_of(attempt: Attempt, gone: Sequence[LogStep], starts: Sequence[float]) -> Lost:
    """The steps that those lines stand for, each for all since the line before it, and their time."""
    lost = {id(step) for step in gone}
    kept = [step.values[m.STEP] for step in attempt.steps if id(step) not in lost]
    first = attempt.steps[0].values[m.STEP] - interval(attempt.steps) if attempt.start is None else attempt.start
    # A checkpoint may be written between two logged steps.
    at = max([first, *kept, *([min(starts)] if starts else [])])
    begin, time_s, known = at, 0.0, True
    for step in gone:
        number = step.values[m.STEP]
        if number > at:
            known = known and m.STEP_TIME in step.values
            time_s += (number - at) * step.values.get(m.STEP_TIME, 0.0)
            at = number
    return Lost(attempt.ended, at - begin, time_s if known else None)


# --- a step ------------------------------------------------------------------------------------------------------


def place_of(record: Record, count: int) -> Place:
    """Where in the training a record is, for order and equality; else how many records came before it."""
    epoch = (record.values[a.EPOCH],) if a.ITERATION in record.values and a.EPOCH in record.values else ()
    return *epoch, next((record.values[each] for each in POSITIONS if each in record.values), float(count))


def slowest(ranks: Sequence[Record]) -> dict[Metric, float]:
    """What ranks tell of one step: of each number the worst, for it ends with its slowest rank; of losses the mean."""
    values: dict[Metric, list[float]] = defaultdict(list)
    for record in ranks:
        for metric, value in record.values.items():
            values[metric].append(value)
    return {metric: of_ranks(metric, said) for metric, said in values.items()}


def of_ranks(metric: Metric, said: Sequence[float]) -> float:
    """One number for what several ranks say."""
    if metric in AVERAGED:
        return statistics.fmean(said)
    if metric.better is Better.neither:
        return said[0]
    return max(said) if metric.better is Better.low else min(said)


def steady(steps: Sequence[LogStep]) -> list[LogStep]:
    """The steps that count, by the rule that WARM_UP_RULE states."""
    counted = []
    for attempt in dict.fromkeys(step.attempt for step in steps):
        timed = [(step, time_s) for step in steps if step.attempt == attempt and (time_s := step.time_s) is not None]
        later = [time_s for _, time_s in timed[len(timed) // 2 :]]
        warm = next(
            (
                index
                for index, (_, time_s) in enumerate(timed)
                if index > 0 and (time_s <= MOST_OVER_LATER * statistics.median(later) or index >= len(timed) // 2)
            ),
            len(timed),
        )
        counted += [step for step, _ in timed[warm:]]
    return counted
