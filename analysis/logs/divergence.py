"""Steps of a log that did not train: losses and gradient norms that are NaN or infinite, and skipped updates.

A loss that every step reports and then none does may have been printed in a way that is not read, such as `None`.

A loss that is not finite is a doubt wherever it stands. A gradient norm that is not finite is normal while dynamic loss
scaling searches its scale, for such an update is skipped and a later norm is finite again; a norm that stays so has
diverged. Work of skipped steps is thrown away: a run that skipped most of its steady steps has no useful rate.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from analysis.formatting import plural
from analysis.logs.step import LogStep
from analysis.logs.steps import LogRun, interval
from analysis.parsers import log_metrics as a
from analysis.parsers.base import DIVERGING, Kind, Text
from analysis.parsers.trainings.deepspeed import OVERFLOWED
from jobs import metrics as m
from jobs.metrics import Metric

# Shares of the steady steps. In the steady state of dynamic loss scaling, fewer than one of 100 updates overflows.
DOUBTFUL_SHARE, USELESS_SHARE = 0.05, 0.5
# Steps with a loss before, and steps without one after: the last line of a killed job is torn.
FEWEST_SILENT = 3


@dataclass(frozen=True)
class Trust:
    """The reasons not to believe a log by its own lines; each is empty without one."""

    diverged: str = ""
    silent: str = ""
    """The step from which on no loss can be read, although every step before reports one."""
    skipped: str = ""
    useless: str = ""
    """The reason that its rates are not those of a training."""

    @property
    def doubt(self) -> str:
        """Return the reasons as one clause."""
        return "; ".join(filter(None, (self.diverged or self.silent, self.useless or self.skipped)))


def trust_in(run: LogRun, counted: Sequence[LogStep]) -> Trust:
    """Return what speaks against a log; `counted` are its steady steps."""
    skipped, steps = skipped_steps(run, counted)
    share = skipped / steps if steps else 0.0
    words = f"{skipped:,.0f} of {plural(round(steps), 'steady step')} skipped their update (overflow)"
    return Trust(
        diverged(run),
        silent(run),
        words if share > DOUBTFUL_SHARE else "",
        f"{words}, so no throughput of it is useful" if share >= USELESS_SHARE else "",
    )


def is_finite(steps: Sequence[LogStep], metric: Metric) -> bool:
    """Return True if the last step that reports a loss or a norm reports a number, or if none reports it."""
    last = next((step for step in reversed(steps) if {metric, DIVERGING[metric]} & step.values.keys()), None)
    return last is None or DIVERGING[metric] not in last.values


def steps_without_loss(steps: Sequence[LogStep]) -> Sequence[LogStep]:
    """Return the last steps if none of them reports a loss and every step before does; else none."""
    reports = [not {m.LOSS, a.LOSS_NOT_FINITE}.isdisjoint(step.values) for step in steps]
    first = sum(takewhile(bool, reports))
    last = steps[first:]
    return () if any(reports[first:]) or min(first, len(last)) < FEWEST_SILENT else last


def silent(run: LogRun) -> str:
    """Return where the losses of a log end before its steps do; empty if they do not."""
    if not (last := steps_without_loss(run.steps)):
        return ""
    of_all = f"{len(last):,} of {plural(len(run.steps), 'logged step')}"
    return f"no loss can be read from {name_of(last[0], run)} on ({of_all})"


def diverged(run: LogRun) -> str:
    """Return where the loss or the gradient norm of a log stopped being a number; empty if it did not."""
    losses = [step for step in run.steps if a.LOSS_NOT_FINITE in step.values or step.values.get(a.NAN_STEPS, 0) > 0]
    if losses:
        later = run.steps[next(i for i, each in enumerate(run.steps) if each is losses[0]) :]
        lasts = len(losses) == len(later)
        where = f"from {name_of(losses[0], run)} on" if lasts else f"first at {name_of(losses[0], run)}"
        return f"the loss is NaN or infinite {where} ({len(losses):,} of {plural(len(run.steps), 'logged step')})"
    if not is_finite(run.steps, m.GRADIENT_NORM):
        reporting = [step for step in run.steps if {m.GRADIENT_NORM, a.NORM_NOT_FINITE} & step.values.keys()]
        streak = list(takewhile(lambda step: a.NORM_NOT_FINITE in step.values, reversed(reporting)))
        return f"the gradient norm is NaN or infinite from {name_of(streak[-1], run)} on"
    for kind, words in ((Kind.evaluation, "an evaluation"), (Kind.summary, "its mean")):
        if any(a.LOSS_NOT_FINITE in record.values for record in run.file.of(kind)):
            return f"the loss of {words} is NaN or infinite" if kind is Kind.evaluation else "its mean loss is NaN"
    return ""


def name_of(step: LogStep, run: LogRun) -> str:
    """Return the number of a step, else its line."""
    if m.STEP in step.values:
        return f"step {step.values[m.STEP]:,.0f}"
    number = 1 + next(index for index, each in enumerate(run.steps) if each is step)
    return f"logged step {number:,}"


def skipped_steps(run: LogRun, counted: Sequence[LogStep]) -> tuple[float, float]:
    """Return the skipped steps and all steps that the lines of the steady steps cover; (0, 0) without steps."""
    wide, overflows = interval(run.steps), overflow_lines(run)
    steady = {id(step) for step in counted}
    skipped = covered = 0.0
    before: LogStep | None = None
    for step in run.steps:
        number, earlier = (each.values.get(m.STEP) if each else None for each in (step, before))
        width = number - earlier if number is not None and earlier is not None and number > earlier else wide
        if id(step) in steady:
            covered += width
            skipped += min(width, skipped_at(step, before, overflows, width))
        before = step
    return skipped, covered


def skipped_at(step: LogStep, before: LogStep | None, overflows: Sequence[int], width: float) -> float:
    """Return the steps that were skipped since the line before a step."""
    if a.SKIPPED_STEPS in step.values:
        return step.values[a.SKIPPED_STEPS]
    if a.SKIPPED_STEPS_SO_FAR in step.values:
        earlier = before.values.get(a.SKIPPED_STEPS_SO_FAR, 0.0) if before else 0.0
        return max(0.0, step.values[a.SKIPPED_STEPS_SO_FAR] - earlier)
    if a.NORM_NOT_FINITE in step.values:
        return width
    return float(bisect_left(overflows, step.line) - bisect_right(overflows, before.line if before else 0))


def overflow_lines(run: LogRun) -> list[int]:
    """Return the lines of the rank that reports most overflows; several ranks report the same ones."""
    found = [record for record in run.file.of(Kind.event) if record.texts.get(Text.event) == OVERFLOWED]
    ranks = Counter(record.rank for record in found)
    most = ranks.most_common(1)
    return [record.line for record in found if record.rank == most[0][0]] if most else []
