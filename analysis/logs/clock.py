"""Step times from the clock, for logs whose program times no whole step, or times less than a step takes.

DeepSpeed's throughput, for instance, is that of its own timer, which misses what a program does between its calls: the
generation of RLHF, or the work of another engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from analysis.logs.file import LogFile
from analysis.logs.step import LogStep
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m

BY_CLOCK = "derived from the time stamps of its steps, without the intervals in which it evaluated"
BY_OWN_CLOCK = "derived from the training time so far that its program prints, without evaluations"
SMOOTHED = "derived from the smoothed step times of its progress bar"
# A step with one of these is timed by its program.
TIMED = {
    m.STEP_TIME,
    m.TOKENS_PER_S,
    m.TOKENS_PER_S_PER_RANK,
    a.SAMPLES_PER_S,
    a.SAMPLES_PER_S_PER_RANK,
    a.MICRO_BATCH_TIME,
}
TIMERS = {a.SAMPLES_PER_S_TIMED, a.SAMPLES_PER_S_TIMED_MEAN, a.STEP_TIME_SMOOTHED}
# An interval counts from so many units of the last printed digit on: shorter ones are rounded too much.
FEWEST_UNITS = 20
# Of clocks that programs print, the largest first.
UNITS_S = (1.0, 0.1, 0.01, 1e-3)


def with_derived_times(steps: list[LogStep], file: LogFile) -> list[LogStep]:
    """Return the steps with STEP_TIME by the clock, else by their bar; unchanged if their program times them."""
    if any(not TIMED.isdisjoint(step.values) for step in steps):
        return steps
    return (
        timed_by_own_clock(steps)
        or timed_by_clock(steps, file)
        or [
            replace(step, values=step.values | {m.STEP_TIME: step.values[a.STEP_TIME_SMOOTHED]}, derived=SMOOTHED)
            if a.STEP_TIME_SMOOTHED in step.values
            else step
            for step in steps
        ]
    )


def timed_by_own_clock(steps: Sequence[LogStep]) -> list[LogStep]:
    """Return the steps with STEP_TIME from the training time so far; empty if they do not report it."""
    readings_s = [step.values[a.STEPS_TIME] for step in steps if a.STEPS_TIME in step.values]
    unit = next((each for each in UNITS_S if all(is_multiple(value, each) for value in readings_s)), UNITS_S[-1])

    def passed_s(one: LogStep, other: LogStep) -> float | None:
        """Return the time between two steps; None if the program set its clock back, as it does after its warm-up."""
        readings = [step.values.get(a.STEPS_TIME) for step in (one, other)]
        time_s = readings[1] - readings[0] if readings[0] is not None and readings[1] is not None else -1.0
        return time_s if time_s > 0 else None

    return with_times(steps, (), passed_s, lambda _: unit, BY_OWN_CLOCK) if readings_s else []


def is_multiple(value: float, unit: float) -> bool:
    """Return True if a printed number may have been rounded to a unit."""
    return math.isclose(value / unit, round(value / unit), abs_tol=1e-6)


def timed_by_clock(steps: Sequence[LogStep], file: LogFile) -> list[LogStep]:
    """Return the steps with STEP_TIME from their time stamps; empty if they have none.

    The first step of an attempt has no time, nor has one after an evaluation, nor one so close to the last timed one
    that the rounding of the stamps matters: the next one then stands for both.
    """
    if not any(step.stamp for step in steps):
        return []
    evaluations = [record.line for record in file.of(Kind.evaluation)]
    return with_times(steps, evaluations, seconds_between, lambda step: unit_s(step.stamp), BY_CLOCK)


def with_times(
    steps: Sequence[LogStep],
    evaluations: Sequence[int],
    seconds: Callable[[LogStep, LogStep], float | None],
    unit: Callable[[LogStep], float],
    derived: str,
) -> list[LogStep]:
    """Return the steps with STEP_TIME from the seconds between them, which are rounded to a unit; empty without any.

    An interval with one of these lines of an evaluation is left out.
    """
    timed: list[LogStep] = []
    last: LogStep | None = None
    for step in steps:
        if last is None or last.attempt != step.attempt or any(last.line < line < step.line for line in evaluations):
            last = step
            continue
        count, time_s = steps_between(last, step), seconds(last, step)
        if count is None or time_s is None:
            last = step
        elif time_s >= FEWEST_UNITS * unit(step):
            timed.append(replace(step, values=step.values | {m.STEP_TIME: time_s / count}, derived=derived))
            last = step
    if not timed:
        return []
    found = {step.line: step for step in timed}
    # A rate of the program's own timer would count as the time of the others.
    return [found.get(step.line, without_timer(step)) for step in steps]


def without_timer(step: LogStep) -> LogStep:
    """Return a step without the rate of its program's timer."""
    return replace(step, values={metric: each for metric, each in step.values.items() if metric not in TIMERS})


def steps_between(one: LogStep, other: LogStep) -> float | None:
    """Return the number of steps from one to another; None if they are not numbered, or of two epochs."""
    for number in (m.STEP, a.ITERATION):
        if number in one.values and number in other.values:
            same_epoch = number is m.STEP or one.values.get(a.EPOCH) == other.values.get(a.EPOCH)
            count = other.values[number] - one.values[number]
            return count if same_epoch and count > 0 else None
    return None


def seconds_between(one: LogStep, other: LogStep) -> float | None:
    """Return the time between the stamps of two steps; None if it is not known or negative."""
    try:
        time_s = (datetime.fromisoformat(other.stamp or "") - datetime.fromisoformat(one.stamp or "")).total_seconds()
    except (ValueError, TypeError):
        return None
    return time_s if time_s >= 0 else None


def unit_s(stamp: str | None) -> float:
    """Return the unit of the last digit of a time stamp, in seconds."""
    digits = (stamp or "").replace(",", ".").partition(".")[2]
    return 10.0 ** -sum(char.isdigit() for char in digits)
