"""Attempts of one training, in one log or in a file each (requeued jobs, job arrays), merged with their lost work.

A file continues another one if it reports a resume from a checkpoint at a step of the other one and its steps follow
that checkpoint; if the settings that both report are equal, and at least one setting or the checkpoint's path is equal;
and if steps in both files have the same learning rate and losses. File names are not considered, except the folders
`version_N` of one experiment that Lightning makes: it reports no resume, but a version that does not begin at the first
step continues another one with the same hyperparameters. Ambiguous files (two candidates for the earlier attempt, or no
times to order them by) are not merged, and the report lists them.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from filecmp import cmp

from analysis.failures.verdict import Verdict, in_words
from analysis.formatting import plural, significant
from analysis.logs.steps import Attempt, LogRun, interval, losses_of
from analysis.metrics.goodput import Loss
from analysis.parsers import log_metrics as a
from analysis.parsers.base import RESUMED, SAVED, Kind, Record, Text
from analysis.parsers.trainings import lightning_csv
from analysis.run import RunResult
from jobs import metrics as m
from jobs.failure_causes import FailureCause

Found = tuple[LogRun, RunResult]
# A later attempt may be configured with more steps.
MAY_DIFFER = {a.PLANNED_STEPS}
# Largest median relative difference of values that both files report for the same steps. They differ by printed digits
# and by the order of summation.
SAME_RATE, SAME_LOSS = 1e-3, 0.02
# Lightning's folders and file.
VERSION, HYPERPARAMETERS = re.compile(r"version_\d+"), "hparams.yaml"
# Metrics that cover only the last attempt, not the training.
OF_AN_ATTEMPT = {a.TRAINING_TIME, a.TIME_TO_TRAIN, a.INITIALIZATION_TIME}


def without_attempts(runs: Sequence[Found], result: Callable[[LogRun], RunResult]) -> list[RunResult]:
    """Return the runs; the last of several attempts represents the training, and the earlier ones are not used.

    `result` computes the measured values of a merged run.
    """
    # A file that may continue either of two others is not merged.
    chains: dict[int, list[Found]] = {}
    notes: dict[int, str] = {}
    # A copy adds nothing to its original.
    used = [item for item in runs if item[1].state != "copy"]
    resumed = sorted((item for item in used if resumption(item[0])), key=lambda item: order_of(item[0]))
    for item in resumed:
        before = [other for other in used if other is not item and continues(other[0], item[0])]
        rivals = [
            other
            for other in resumed
            if other is not item and start_of(other[0]) == start_of(item[0]) and alike(other[0], item[0])
        ]
        chain = chains.get(id(before[0][0]), [before[0]]) if before else []
        unsure = [each for each in before if all(each is not link for link in chain)]
        if not (before and chain) or (not unsure and follows(chain[-1][0], item[0], rivals)):
            if chain:
                chains |= {id(link[0]): [*chain, item] for link in (*chain, item)}
            continue
        candidates = sorted(each[1].name for each in {id(x): x for x in (*before, *rivals)}.values())
        notes[id(item[0])] = (
            f"{item[1].name} resumes a training from step {first_step(item[0]) - 1:,.0f}; it is not merged with "
            f"{' and '.join(candidates)}, because their order is ambiguous."
        )
    return [joined(item, chains.get(id(item[0])), notes.get(id(item[0])), result) for item in runs]


def joined(
    item: Found, chain: Sequence[Found] | None, note: str | None, result: Callable[[LogRun], RunResult]
) -> RunResult:
    """Return a run for the report: the last attempt with the steps of all, an earlier one unused, any other as is."""
    run, found = item
    if chain is None:
        return with_losses(found, run, note)
    last = chain[-1][1].name
    if found.name != last:
        place = next(index for index, link in enumerate(chain, start=1) if link is item)
        reason = f"attempt {place} of {len(chain)} of the training that ends in {last}; its steps count there"
        return replace(found, state="attempt", reason=reason)
    training = replace(run, attempts=attempts_of_all([link[0] for link in chain]))
    whole = result(training)
    values = {metric: value for metric, value in whole.values.items() if metric not in OF_AN_ATTEMPT}
    names = ", ".join(link[1].name for link in chain)
    by = "its first step and its experiment" if is_version(run) else "its resume line"
    note = f"{last} contains the last of {len(chain)} attempts of one training ({names}), according to {by}."
    return with_losses(replace(whole, energy=found.energy, values=values), training, note)


def with_losses(found: RunResult, run: LogRun, note: str | None) -> RunResult:
    """Return a run with a note and, if it has several attempts, with the steps and time that they lost."""
    if run.starts < 2:
        return replace(found, log=replace(run.file, note=note)) if note else found
    note = note or f"{found.name} contains {run.starts} attempts of one training."
    losses = losses_of(run.attempts)
    if losses is None:
        return replace(found, log=replace(run.file, note=f"{note} The number of lost steps is not known."))
    steps = sum(loss.steps for loss in losses)
    times_s = [loss.time_s for loss in losses if loss.time_s is not None]
    known = len(times_s) == len(losses)
    time = f", {significant(sum(times_s), 3)} s" if known else ", time not known"
    lost = f"Lost: {plural(int(steps), 'step')}{time}. Repeated steps count once." if steps else "No steps were lost."
    return replace(
        found,
        values={**found.values, m.LOST_STEPS: steps} | ({m.LOST_TIME: sum(times_s)} if known else {}),
        lost_to=[Loss(loss.cause, 1, loss.time_s) for loss in losses if loss.time_s],
        log=replace(run.file, note=f"{note} {lost}"),
    )


# --- files of one training --------------------------------------------------------------------------------------


def resumption(run: LogRun) -> Record | None:
    """Return the last resume record before the first step of a file; None if there is none.

    A Lightning version that begins later than its first logged step has one without a step.
    """
    numbers = [records[0].line for (_, kind), records in run.file.records.items() if kind is Kind.step]
    resumed = [record for record in run.file.of(Kind.event) if record.texts.get(Text.event) == RESUMED]
    early = [record for record in resumed if not numbers or record.line < min(numbers)]
    usable = run.steps and all(m.STEP in step.values for step in run.steps) and first_step(run) > 1
    if usable and not early and is_version(run) and first_step(run) > 1 + interval(run.steps):
        return Record(Kind.event, 0, {}, {Text.event: RESUMED})
    return early[-1] if early and usable else None


def first_step(run: LogRun) -> float:
    """Return the lowest step number of a file."""
    return min(step.values[m.STEP] for step in run.steps)


def start_of(run: LogRun) -> float:
    """Return the step of the checkpoint that a file resumed from; if not reported, the step before its first one."""
    record = resumption(run)
    return record.values[m.STEP] if record and m.STEP in record.values else first_step(run) - 1


def continues(one: LogRun, other: LogRun) -> bool:
    """Return True if `other` resumes, with the same settings, from a checkpoint at a step of `one`."""
    if not one.steps or any(m.STEP not in step.values for step in one.steps):
        return False
    # A checkpoint may be written between two logged steps.
    wide = max(interval(one.steps), interval(other.steps))
    start, numbers = start_of(other), [step.values[m.STEP] for step in one.steps]
    reaches = min(numbers) <= start < max(numbers) + wide
    goes_on = start < first_step(other) <= start + wide
    same_settings = one.file.formats == other.file.formats and alike(one, other)
    return reaches and goes_on and same_settings and in_time(one, other) and computes_again(one, other)


def alike(one: LogRun, other: LogRun) -> bool:
    """Return True if two files have one configuration: no shared setting differs, and at least one is equal."""
    numbers = (one.settings.keys() & other.settings.keys()) - MAY_DIFFER
    texts = one.texts.keys() & other.texts.keys()
    if any(one.settings[each] != other.settings[each] for each in numbers):
        return False
    if any(one.texts[each] != other.texts[each] for each in texts):
        return False
    saved = {
        record.texts.get(Text.checkpoint) for record in one.file.of(Kind.event) if record.texts.get(Text.event) == SAVED
    }
    record = resumption(other)
    loaded = record.texts.get(Text.checkpoint) if record else None
    if saved and loaded and other.file.formats == one.file.formats:
        return loaded in saved
    return bool(numbers or texts) or same_experiment(one, other)


def is_version(run: LogRun) -> bool:
    """Return True if a file is that of a version of a Lightning experiment."""
    return lightning_csv.FORMAT.name in run.file.formats and VERSION.fullmatch(run.file.path.parent.name) is not None


def same_experiment(one: LogRun, other: LogRun) -> bool:
    """Return True if two files are versions of one Lightning experiment with equal hyperparameters."""
    folders = [run.file.path.parent for run in (one, other)]
    if not (is_version(one) and is_version(other)) or folders[0].parent != folders[1].parent:
        return False
    first, second = (folder / HYPERPARAMETERS for folder in folders)
    if not (first.exists() and second.exists()):
        # They need not be saved.
        return first.exists() == second.exists()
    return cmp(first, second, shallow=False)


def computes_again(one: LogRun, other: LogRun) -> bool:
    """Return True if steps in both files are the same work; a fork has other learning rates or losses."""
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


def moments(run: LogRun) -> list[str]:
    """Return the timestamps of a file's steps as text."""
    records = (record for record in run.file.of(Kind.step) if Text.timestamp in record.texts)
    return [record.texts[Text.timestamp] for record in records]


def in_time(one: LogRun, other: LogRun) -> bool:
    """Return True if `other` began after `one`, or if either has no timestamps."""
    earlier, later = moments(one), moments(other)
    return not (earlier and later) or earlier[0] < later[0]


def follows(last: LogRun, item: LogRun, rivals: Sequence[Found]) -> bool:
    """Return True if a file follows the last attempt so far, and no rival makes their order ambiguous."""
    known = bool(moments(last) and moments(item) and all(moments(rival[0]) for rival in rivals))
    return in_time(last, item) and (known or (not rivals and continues(last, item)))


def order_of(run: LogRun) -> tuple[str, float, str]:
    """Return the sort key of attempts: first timestamp (empty if none), step of resumption, path."""
    return (next(iter(moments(run)), ""), start_of(run), str(run.file.path))


# --- merged attempts --------------------------------------------------------------------------------------------


def attempts_of_all(chain: Sequence[LogRun]) -> list[Attempt]:
    """Return the attempts of these files in order, each with its start step and the cause of its end, if known."""
    attempts: list[Attempt] = []
    for run in chain:
        first, *others = run.attempts
        its = [replace(first, resumed=True, start=start_of(run)) if attempts else first, *others]
        attempts += [*its[:-1], replace(its[-1], ended=cause_words(run.file.verdict))]
    return attempts


def cause_words(verdict: Verdict | None) -> str:
    """Return the cause of an attempt's end as text."""
    return in_words(verdict.cause, verdict.possible) if verdict else in_words(FailureCause.unknown, None)
