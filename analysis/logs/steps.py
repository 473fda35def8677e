"""The steps of a log: merged over ranks, divided into attempts, without lost steps and warm-up."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from analysis.logs.clock import with_derived_times
from analysis.logs.file import LogFile
from analysis.logs.step import LogStep, Place, place_of, slowest
from analysis.parsers import log_metrics as a
from analysis.parsers.base import RESUMED, Kind, RankLabel, Record, Text
from jobs import metrics as m
from jobs.metrics import Metric

# In steps. Nodes that print concurrently are rarely further apart; a restart goes further back.
MOST_BEHIND = 2
MOST_OVER_LATER = 1.1
WARM_UP_RULE = (
    "In logs of other programs, the first reported step of every attempt is not measured, nor are the steps after it "
    f"until one takes at most {MOST_OVER_LATER:g} times the median of the attempt's second half, which is so for "
    "half of that half at least."
)


@dataclass(frozen=True, eq=False)
class Attempt:
    """The steps that one start of a training reported, and the cause of its end."""

    steps: Sequence[LogStep]
    resumed: bool = False
    """A line before its first step reports a resume."""
    start: float | None = None
    """The step of the checkpoint that it resumed from; None if unknown."""
    ended: str = "unknown"


@dataclass(frozen=True)
class Lost:
    """Work of an attempt that a later one repeated, or that followed its checkpoint."""

    cause: str
    steps: float
    time_s: float | None
    """None if the time of a step is unknown."""


@dataclass(frozen=True, eq=False)
class LogRun:
    """A log of a training, with the settings from files next to it."""

    file: LogFile
    settings: Mapping[Metric, float]
    texts: Mapping[Text, str]
    attempts: Sequence[Attempt]
    """The attempts in all its files; `file` is the last one."""

    @cached_property
    def steps(self) -> list[LogStep]:
        """Return the steps of the training, without lost ones."""
        return with_derived_times(of_micro_batches(kept_steps(self.attempts)), self.file)

    @property
    def starts(self) -> int:
        """Return the number of starts; 1 if an attempt began anew, which may be another training."""
        return len(self.attempts) if all(goes_on(later, self.attempts[0]) for later in self.attempts[1:]) else 1


def attempts_of(file: LogFile) -> list[Attempt]:
    """Return the attempts in a log, in order."""
    resumed = [record for record in file.of(Kind.event) if record.texts.get(Text.event) == RESUMED]
    by_format = [joined(records, resumed) for (_, kind), records in file.records.items() if kind is Kind.step]
    if not by_format:
        return []
    # If two programs report the same steps, one of them reports times.
    by_format.sort(key=lambda steps: (-sum(step.time_s is not None for step in steps), -len(steps)))
    for others in by_format[1:]:
        also = {(step.attempt, step.values[m.STEP]): step.values for step in others if m.STEP in step.values}
        for step in by_format[0]:
            if m.STEP in step.values:
                step.values.update(also.get((step.attempt, step.values[m.STEP]), {}) | step.values)
    by_attempt: dict[int, list[LogStep]] = defaultdict(list)
    for step in by_format[0]:
        by_attempt[step.attempt].append(step)
    attempts, after = [], 0
    for steps in by_attempt.values():
        before = [record for record in resumed if after < record.line < steps[0].line]
        start = before[-1].values.get(m.STEP) if before else None
        attempts.append(Attempt(steps, bool(before), start))
        after = steps[0].line
    return attempts


def interval(steps: Iterable[LogStep]) -> float:
    """Return the smallest distance between logged steps, in steps; 1 if there are fewer than two."""
    numbers = sorted({step.values[m.STEP] for step in steps if m.STEP in step.values})
    return min((later - earlier for earlier, later in pairwise(numbers)), default=1.0)


def joined(records: Iterable[Record], resumed: Sequence[Record]) -> list[LogStep]:
    """Return the steps of one format by first line; resume lines and steps that go back begin a new attempt."""
    attempt, seen, printed = 1, dict[Place, int](), set[tuple[Place, RankLabel]]()
    found: dict[tuple[int, Place], list[Record]] = defaultdict(list)
    lines = sorted(record.line for record in resumed)
    for count, record in enumerate(records):
        place = place_of(record, count)
        passed = sum(line < record.line for line in lines)
        del lines[:passed]
        if passed:
            begins = bool(seen)
        elif place in seen:
            behind = len(seen) - 1 - seen[place]
            by_another_rank = record.rank is not None and (place, record.rank) not in printed
            begins = behind > MOST_BEHIND and not by_another_rank
        else:
            begins = bool(seen) and place < next(iter(seen))
        if begins:
            attempt, seen, printed = attempt + 1, {}, set()
        seen.setdefault(place, len(seen))
        if record.rank is not None:
            printed.add((place, record.rank))
        found[attempt, place].append(record)
    return [
        LogStep(attempt, place, slowest(ranks), ranks[0].line, ranks[0].texts.get(Text.timestamp))
        for (attempt, place), ranks in found.items()
    ]


# --- steps that a later attempt repeated --------------------------------------------------------------------------


def lost_steps(attempts: Sequence[Attempt]) -> list[list[LogStep]]:
    """Return the steps of each attempt that a later one repeated, or that followed its checkpoint."""
    return [
        [step for step in attempt.steps if any(again(step, later, attempts[0]) for later in attempts[index + 1 :])]
        for index, attempt in enumerate(attempts)
    ]


def goes_on(later: Attempt, first: Attempt) -> bool:
    """Return True if an attempt continues the training of the first one; else it began anew, or is another training.

    Sample counts are not considered: some programs report them late.
    """
    begin, onward = (attempt.steps[0].values.get(m.STEP) for attempt in (first, later))
    return later.resumed or (begin is not None and onward is not None and onward > begin)


def again(step: LogStep, later: Attempt, first: Attempt) -> bool:
    """Return True if a later attempt repeated a step, or resumed before it."""
    if not goes_on(later, first):
        return step.place in {each.place for each in later.steps}
    if later.start is not None and m.STEP in step.values:
        return step.values[m.STEP] > later.start
    if (begin := later.steps[0].values.get(a.EPOCH)) is not None and m.STEP not in step.values:
        # Steps without numbers have places that only grow; their epochs go back.
        epoch = step.values.get(a.EPOCH, -1.0)
        return epoch > begin or (epoch == begin and epochs_differ(later))
    return step.place >= later.steps[0].place


def epochs_differ(attempt: Attempt) -> bool:
    """Return whether the epochs of an attempt are printed with digits enough to tell its first steps apart."""
    epochs = [step.values.get(a.EPOCH) for step in attempt.steps[:2]]
    return len(epochs) == 2 and epochs[0] != epochs[1]


def kept_steps(attempts: Sequence[Attempt]) -> list[LogStep]:
    """Return the steps that no later attempt repeated, with consecutive attempt numbers."""
    lost = {id(step) for steps in lost_steps(attempts) for step in steps}
    return [
        replace(step, attempt=number)
        for number, attempt in enumerate(attempts, start=1)
        for step in attempt.steps
        if id(step) not in lost
    ]


def of_micro_batches(logged: list[LogStep]) -> list[LogStep]:
    """Return the whole steps of logged micro-batches; the same steps where not every micro-batch was logged.

    A step ends with the micro-batch at which the count of steps rises, and takes the time of all since the last end.
    """
    wanted = {a.MICRO_BATCHES_DONE, a.MICRO_BATCH_TIME, m.STEP}
    if not logged or any(m.STEP_TIME in each.values or not wanted <= each.values.keys() for each in logged):
        return logged
    found: list[LogStep] = []
    # The micro-batches since the last end; None if one is missing.
    since: list[LogStep] | None = [logged[0]] if logged[0].values[a.MICRO_BATCHES_DONE] == 1 else None
    for before, each in pairwise(logged):
        follows = each.values[a.MICRO_BATCHES_DONE] == before.values[a.MICRO_BATCHES_DONE] + 1
        since = [*since, each] if since is not None and follows and each.attempt == before.attempt else None
        if each.values[m.STEP] > before.values[m.STEP]:
            if since and each.values[m.STEP] == before.values[m.STEP] + 1:
                time_s = sum(part.values[a.MICRO_BATCH_TIME] for part in since)
                found.append(replace(each, values=each.values | {m.STEP_TIME: time_s}))
            since = []
    return found if len(found) > 1 else logged


def losses_of(attempts: Sequence[Attempt]) -> list[Lost] | None:
    """Return the lost work of each attempt but the last; None if the log does not number its steps."""
    if not all(m.STEP in step.values for attempt in attempts for step in attempt.steps):
        return None
    starts = [attempt.start for attempt in attempts]
    return [
        loss_of(attempt, gone, [start for start in starts[index + 1 :] if start is not None])
        for index, (attempt, gone) in enumerate(zip(attempts, lost_steps(attempts), strict=True))
    ][:-1]


def loss_of(attempt: Attempt, gone: Sequence[LogStep], starts: Sequence[float]) -> Lost:
    """Return the number and time of lost steps; each logged step stands for all since the previous logged one."""
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


def steady(steps: Sequence[LogStep]) -> list[LogStep]:
    """Return the steps that are measured, according to WARM_UP_RULE."""
    counted = []
    for attempt in dict.fromkeys(step.attempt for step in steps):
        timed = [(step, time_s) for step in steps if step.attempt == attempt and (time_s := step.time_s) is not None]
        later = [time_s for _, time_s in timed[len(timed) // 2 :]]
        limit_s = MOST_OVER_LATER * statistics.median(later) if later else 0.0
        warm = next(
            (index for index, (_, time_s) in enumerate(timed) if index > 0 and time_s <= limit_s),
            len(timed),
        )
        counted += [step for step, _ in timed[warm:]]
    return counted
