"""Whether a run did what the baseline did: every rule that it broke, in words, by what the run recorded.

A fast run that trained on less, on something else, or to another loss is no faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.compare.published import measured
from analysis.formatting import significant
from analysis.parsers import metrics as a
from analysis.run import RunResult
from analysis.untrusted import as_number
from jobs import metrics as m
from jobs.metrics import Metric
from jobs.schema import Contest, Counted

# What the ranks compute with: the model, and the rules they are judged by.
SAME = ("model.", "contest.")
COUNTS = (
    (m.SAMPLES_PER_STEP, "samples per optimizer step"),
    (m.SAMPLES_TRAINED, "samples"),
    (m.TOKENS_TRAINED, "tokens"),
)


@dataclass(frozen=True)
class Rules:
    """How attempts are judged: the contest's values, or the schema's where there is none."""

    counted: Counted
    loss_steps: int
    loss_tolerance: float
    loss_spreads: float
    wall_time_min: int | None

    @classmethod
    def of(cls, run: RunResult) -> Rules:
        """The rules that a run was composed with."""

        def value(key: str, default: float) -> float:
            known = as_number(run.setting(f"contest.{key}"))
            return default if known is None else known

        limit = as_number(run.setting("contest.wall_time_min"))
        return cls(
            Counted.__members__.get(str(run.setting("contest.counted")), Contest.counted),
            max(1, int(value("loss_steps", Contest.loss_steps))),
            value("loss_tolerance", Contest.loss_tolerance),
            value("loss_spreads", Contest.loss_spreads),
            None if limit is None else int(limit),
        )

    @property
    def metric(self) -> Metric:
        """The time that is compared."""
        return a.TRAINING_TIME if self.counted is Counted.training else m.TOTAL_TIME

    def time_s(self, run: RunResult) -> float | None:
        """The time of a run that counts; None where it was not measured."""
        return measured(run, self.metric)

    def loss(self, run: RunResult) -> float:
        """The mean loss of the last steps of a used run."""
        last = sorted(run.losses)[-self.loss_steps :]
        return statistics.fmean(run.losses[step] for step in last)


@dataclass(frozen=True)
class Reference:
    """What the repeats of a baseline come to, at least one of which is used."""

    runs: Sequence[RunResult]
    rules: Rules

    @property
    def run(self) -> RunResult:
        """The first of them, with whose settings others are compared."""
        return self.runs[0]

    @property
    def band(self) -> tuple[float, float]:
        """Which losses are the baseline's: its mean, give or take what the rules allow."""
        losses = [self.rules.loss(run) for run in self.runs]
        middle = statistics.fmean(losses)
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        allowed = max(self.rules.loss_tolerance * abs(middle), self.rules.loss_spreads * spread)
        return middle - allowed, middle + allowed


def breaches(run: RunResult, reference: Reference) -> list[str]:
    """Why a run does not count, the plainest first; empty when it does."""
    if not run.used:
        return [str(run.reason)]
    found = [
        did_the_task(run, reference),
        did_the_work(run, reference),
        reached_the_loss(run, reference),
        kept_the_time_limit(run, reference.rules),
        started_once(run),
    ]
    return [sentence for sentence in found if sentence]


def did_the_task(run: RunResult, reference: Reference) -> str | None:
    """Model and rules as the baseline's, by the frozen configuration; ranks and data by the record."""
    both: list[tuple[str, Any, Any]] = [
        (key, run.settings.get(key), reference.run.settings.get(key))
        for key in sorted({*run.settings, *reference.run.settings})
        if key.startswith(SAME)
    ]
    facts: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("ranks", run.started, reference.run.started),
        ("data", run.started, reference.run.started),
    )
    both += [(key, own.get(key), wanted.get(key)) for key, own, wanted in facts]
    both += [(key, run.setting(key), reference.run.setting(key)) for key in ("nodes", "job.sequence_length")]
    differing = [f"{key} {own}, the baseline has {wanted}" for key, own, wanted in both if own != wanted]
    return f"another task: {'; '.join(differing[:3])}" if differing else None


def did_the_work(run: RunResult, reference: Reference) -> str | None:
    """As many samples a step, samples and tokens as the baseline, by what each step recorded; padding is no token."""
    both = [(words, run.values.get(key), reference.run.values.get(key)) for key, words in COUNTS]
    differing = [
        f"{counted(own)} {words}, the baseline {counted(wanted)}" for words, own, wanted in both if own != wanted
    ]
    if not differing:
        return None
    own, wanted = (each.values.get(m.SAMPLES_TRAINED) for each in (run, reference.run))
    cut = own is not None and wanted is not None and own < wanted
    return f"{'trained on less' if cut else 'other work'}: {'; '.join(differing)}"


def kept_the_time_limit(run: RunResult, rules: Rules) -> str | None:
    """Within the contest's wall time."""
    limit, total_s = rules.wall_time_min, run.values.get(m.TOTAL_TIME)
    if limit is not None and total_s is not None and total_s > limit * 60:
        return f"took {significant(total_s, 4)} s, the contest's limit is {limit} min"
    return None


def reached_the_loss(run: RunResult, reference: Reference) -> str | None:
    """A run that did not learn what the baseline learned may be as fast as it likes."""
    low, high = reference.band
    loss = reference.rules.loss(run)
    if low <= loss <= high:
        return None
    return (
        f"loss {significant(loss, 4)} is outside the baseline's {significant(low, 4)} to {significant(high, 4)} "
        f"(mean of the last {reference.rules.loss_steps} steps)"
    )


def started_once(run: RunResult) -> str | None:
    """A restarted run has several start-ups and first steps."""
    return None if run.attempts == 1 else f"was started {run.attempts} times: its time is not that of one run"


def counted(value: float | None) -> str:
    """A number of samples or tokens, which may not have been recorded."""
    return "an unrecorded number of" if value is None else f"{value:,.10g}"
