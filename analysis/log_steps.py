"""The steps of a log: ranks that say the same step joined, attempts told apart, the warm-up of each left out.

Called by analysis.log_runs and log_attempts.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.log_file import LogFile
from analysis.parsers import metrics as a
from analysis.parsers.record import Kind, Record, Text, Whose
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

    @property
    def time_s(self) -> float | None:
        """Its step time, or one that is proportional to it; None where the log tells neither time nor speed."""
        if m.STEP_TIME in self.values:
            return self.values[m.STEP_TIME]
        return next((1 / self.values[rate] for rate in RATES if self.values.get(rate, 0) > 0), None)


@dataclass(frozen=True, eq=False)
class LogRun:
    """A log that tells of a training, with what files beside it say."""

    file: LogFile
    settings: Mapping[Metric, float]
    texts: Mapping[Text, str]
    steps: Sequence[LogStep]
    files: int = 1
    """Those that its steps are from: of attempts of one training there may be several, of which `file` is the last."""


def steps_of(file: LogFile) -> list[LogStep]:
    """The steps of a log in order; where attempts overlap, the later one's replaces the earlier one's."""
    told = [joined(records) for (_, kind), records in file.records.items() if kind is Kind.step]
    if not told:
        return []
    # Of two programs that tell of the same steps, one tells their times.
    told.sort(key=lambda steps: (-sum(step.time_s is not None for step in steps), -len(steps)))
    for others in told[1:]:
        also = {(step.attempt, step.values[m.STEP]): step.values for step in others if m.STEP in step.values}
        for step in told[0]:
            if m.STEP in step.values:
                step.values.update(also.get((step.attempt, step.values[m.STEP]), {}) | step.values)
    latest = {step.place: step for step in told[0]}
    return [step for step in told[0] if latest[step.place] is step]


def joined(records: Iterable[Record]) -> list[LogStep]:
    """The steps that one format tells, in the order of their first line."""
    attempt, seen, said = 1, dict[Place, int](), set[tuple[Place, Whose]]()
    told: dict[tuple[int, Place], list[Record]] = defaultdict(list)
    for count, record in enumerate(records):
        place = place_of(record, count)
        if place in seen:
            behind = len(seen) - 1 - seen[place]
            by_another_rank = record.rank is not None and (place, record.rank) not in said
            again = behind > MOST_BEHIND and not by_another_rank
        else:
            again = bool(seen) and place < next(iter(seen))
        if again:
            attempt, seen, said = attempt + 1, {}, set()
        seen.setdefault(place, len(seen))
        if record.rank is not None:
            said.add((place, record.rank))
        told[attempt, place].append(record)
    return [LogStep(attempt, place, slowest(ranks)) for (attempt, place), ranks in told.items()]


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
