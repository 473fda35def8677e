"""Attempts of one training, in one log or with a file each, as requeued jobs and job arrays do: joined, losses told.

A file continues another one when it says that it resumed from a checkpoint, at a step that the other one made, and goes
on from there; when no setting differs that both tell, and some setting or the checkpoint's place is the same in both;
and when steps that both tell have the same learning rate and losses.
Names count for nothing. Where two files may be the one before, or a time is missing that would order them, none is
joined and the report says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from analysis.failures.verdict import Verdict
from analysis.formatting import plural, significant
from analysis.logs.steps import Attempt, LogRun, interval, losses_of
from analysis.metrics.goodput import Loss
from analysis.parsers import metrics as a
from analysis.parsers.base import RESUMED, SAVED, Kind, Record, Text
from analysis.run import RunResult
from jobs import metrics as m
from jobs.failures import FailureCause

Found = tuple[LogRun, RunResult]
# A later attempt may be told to go further.
MAY_DIFFER = {a.PLANNED_STEPS}
# Relative distance, in the median, of what both tell of the same steps: printed digits, and sums in another order.
SAME_RATE, SAME_LOSS = 1e-3, 0.02
# Of the last attempt alone, and so not of the training.
OF_AN_ATTEMPT = {a.TRAINING_TIME, a.TIME_TO_TRAIN, a.INITIALIZATION_TIME}


def without_attempts(runs: Sequence[Found], result: Callable[[LogRun], RunResult]) -> list[RunResult]:
    """The runs, where the last of several attempts stands for the training and the others are not used.

    `result` works out what a joined run measured.
    """
    # One that may go on from two others is not guessed at.
    chains: dict[int, list[Found]] = {}
    notes: dict[int, str] = {}
    # A copy tells what its original tells.
    used = [item for item in runs if item[1].state != "copy"]
    resumed = sorted((item for item in used if resumption(item[0])), key=lambda item: order_of(item[0]))
    for item in resumed:
        before = [other for other in used if other is not item and continues(other[0], item[0])]
        rivals = [other for other in resumed if other is not item and same_start(other[0], item[0])]
        chain = chains.get(id(before[0][0]), [before[0]]) if before else []
        unsure = [each for each in before if all(each is not link for link in chain)]
        if not (before and chain) or (not unsure and follows(chain[-1][0], item[0], rivals)):
            if chain:
                chains |= {id(link[0]): [*chain, item] for link in (*chain, item)}
            continue
        candidates = sorted(each[1].name for each in {id(x): x for x in (*before, *rivals)}.values())
        notes[id(item[0])] = (
            f"{item[1].name} says that it goes on from step {first_step(item[0]) - 1:,.0f} of a training; it is left "
            f"apart, for nothing tells in which order it and {' and '.join(candidates)} belong together."
        )
    return [joined(item, chains.get(id(item[0])), notes.get(id(item[0])), result) for item in runs]


def joined(
    item: Found, chain: Sequence[Found] | None, note: str | None, result: Callable[[LogRun], RunResult]
) -> RunResult:
    """A run as the report has it: the last attempt with the steps of all, an earlier one unused, any other as it is."""
    run, found = item
    if chain is None:
        return with_losses(found, run, note)
    last = chain[-1][1].name
    if found.name != last:
        place = next(index for index, link in enumerate(chain, start=1) if link is item)
        reason = f"attempt {place} of {len(chain)} of the training that {last} ends; its steps count there"
        return replace(found, state="attempt", reason=reason)
    training = replace(run, attempts=attempts_of_all([link[0] for link in chain]))
    whole = result(training)
    values = {metric: value for metric, value in whole.values.items() if metric not in OF_AN_ATTEMPT}
    names = ", ".join(link[1].name for link in chain)
    said = (
        f"{last} holds the last of {len(chain)} attempts of one training ({names}), by where it says that it resumed."
    )
    return with_losses(replace(whole, energy=found.energy, values=values), training, said)


def with_losses(found: RunResult, run: LogRun, said: str | None) -> RunResult:
    """A run with what its attempts lost, where there were several, and with a note of that."""
    if run.starts < 2:
        return replace(found, log=replace(run.file, note=said)) if said else found
    said = said or f"{found.name} holds {run.starts} attempts of one training."
    losses = losses_of(run.attempts)
    if losses is None:
        return replace(found, log=replace(run.file, note=f"{said} How many steps they lost is not told."))
    steps = sum(loss.steps for loss in losses)
    times_s = [loss.time_s for loss in losses if loss.time_s is not None]
    known = len(times_s) == len(losses)
    time = f", {significant(sum(times_s), 3)} s" if known else ", whose time is not told"
    lost = f"Lost: {plural(int(steps), 'step')}{time}. They count once." if steps else "No step is lost."
    return replace(
        found,
        values={**found.values, m.LOST_STEPS: steps} | ({m.LOST_TIME: sum(times_s)} if known else {}),
        lost_to=[Loss(loss.cause, 1, loss.time_s) for loss in losses if loss.time_s],
        log=replace(run.file, note=f"{said} {lost}"),
    )


# --- which belong together -------------------------------------------------------------------------------------


def resumption(run: LogRun) -> Record | None:
    """What a file says before its first step of the checkpoint that it goes on from; None where it says nothing."""
    numbers = [records[0].line for (_, kind), records in run.file.records.items() if kind is Kind.step]
    told = [record for record in run.file.of(Kind.event) if record.texts.get(Text.event) == RESUMED]
    early = [record for record in told if not numbers or record.line < min(numbers)]
    usable = run.steps and all(m.STEP in step.values for step in run.steps) and first_step(run) > 1
    return early[-1] if early and usable else None


def first_step(run: LogRun) -> float:
    """The first step that a file tells."""
    return min(step.values[m.STEP] for step in run.steps)


def start_of(run: LogRun) -> float:
    """The step of the checkpoint that a file goes on from; where it says none, that before its first one."""
    told = resumption(run)
    return told.values[m.STEP] if told and m.STEP in told.values else first_step(run) - 1


def continues(one: LogRun, other: LogRun) -> bool:
    """Whether a file goes on, with the same settings, from a checkpoint at a step that the other one made."""
    if not one.steps or any(m.STEP not in step.values for step in one.steps):
        return False
    # A checkpoint may be written between two logged steps.
    wide = max(interval(one.steps), interval(other.steps))
    start, numbers = start_of(other), [step.values[m.STEP] for step in one.steps]
    reaches = min(numbers) <= start < max(numbers) + wide
    goes_on = start < first_step(other) <= start + wide
    told_alike = one.file.formats == other.file.formats and alike(one, other)
    return reaches and goes_on and told_alike and in_time(one, other) and computes_again(one, other)


def alike(one: LogRun, other: LogRun) -> bool:
    """Whether two files tell of one configuration: nothing differs, and something is the same."""
    numbers = (one.settings.keys() & other.settings.keys()) - MAY_DIFFER
    texts = one.texts.keys() & other.texts.keys()
    if any(one.settings[each] != other.settings[each] for each in numbers):
        return False
    if any(one.texts[each] != other.texts[each] for each in texts):
        return False
    saved = {record.texts.get(Text.checkpoint) for record in one.file.of(Kind.event) if is_saving(record)}
    told = resumption(other)
    loaded = told.texts.get(Text.checkpoint) if told else None
    if saved and loaded and other.file.formats == one.file.formats:
        return loaded in saved
    return bool(numbers or texts)


def computes_again(one: LogRun, other: LogRun) -> bool:
    """Whether steps that both files tell are the same work: a fork has other learning rates or losses."""
    before = max((step for step in one.steps if step.values[m.STEP] <= start_of(other)), key=lambda s: s.values[m.STEP])
    sizes = {step.values.get(a.GLOBAL_BATCH_SIZE) for step in (before, other.steps[0])} - {None}
    if len(sizes) > 1:
        return False
    made = {step.values[m.STEP]: step.values for step in one.steps}
    both = [(made[at], step.values) for step in other.steps if (at := step.values[m.STEP]) in made]
    for metric, most_apart in ((m.LEARNING_RATE, SAME_RATE), (m.LOSS, SAME_LOSS)):
        pairs = [(first[metric], again[metric]) for first, again in both if metric in first and metric in again]
        apart = [abs(first - again) / max(abs(first), abs(again)) for first, again in pairs if first or again]
        if apart and statistics.median(apart) > most_apart:
            return False
    return True


def is_saving(record: Record) -> bool:
    """Whether a record tells that a checkpoint was saved."""
    return record.texts.get(Text.event) == SAVED


def moments(run: LogRun) -> list[str]:
    """The times that a file's steps are stamped with, as written."""
    records = (record for record in run.file.of(Kind.step) if Text.timestamp in record.texts)
    return [record.texts[Text.timestamp] for record in records]


def in_time(one: LogRun, other: LogRun) -> bool:
    """Whether a file began after the other one, as far as their times tell."""
    earlier, later = moments(one), moments(other)
    return not (earlier and later) or earlier[0] < later[0]


def same_start(one: LogRun, other: LogRun) -> bool:
    """Whether two files go on from the same step of what may be the same training."""
    return start_of(one) == start_of(other) and alike(one, other)


def follows(last: LogRun, item: LogRun, rivals: Sequence[Found]) -> bool:
    """Whether a file comes after the last attempt so far, and nothing that may come instead makes it a guess."""
    known = bool(moments(last) and moments(item) and all(moments(rival[0]) for rival in rivals))
    return in_time(last, item) and (known or (not rivals and continues(last, item)))


def order_of(run: LogRun) -> tuple[str, float, str]:
    """When attempts are looked at: by their time where one is told, then by their first step."""
    return (next(iter(moments(run)), ""), start_of(run), str(run.file.path))


# --- what they did ---------------------------------------------------------------------------------------------


def attempts_of_all(chain: Sequence[LogRun]) -> list[Attempt]:
    """The attempts of these files in order, each with where it went on from and, as far as its file says, its end."""
    attempts: list[Attempt] = []
    for run in chain:
        first, *others = run.attempts
        its = [replace(first, resumed=True, start=start_of(run)) if attempts else first, *others]
        attempts += [*its[:-1], replace(its[-1], ended=cause_words(run.file.verdict))]
    return attempts


def cause_words(verdict: Verdict | None) -> str:
    """How an attempt ended."""
    return (verdict.cause if verdict else FailureCause.unknown).word.replace("_", " ")
