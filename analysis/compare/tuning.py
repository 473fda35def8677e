"""The trials of `slurmscale tune`: figure of merit, quality gate and cost of each, and the effect of each choice.

A trial is a run whose provenance records its choices, its rung and the objective. It is compared with the baseline that
ran as many steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.compare.contest_rules import Baseline, Rules, did_the_task, did_the_work, reached_the_loss
from analysis.compare.core import Ratio
from analysis.failures.runs import Failure, failures
from analysis.metrics.cost import HOUR_S, recorded_s
from analysis.run import RunResult
from analysis.untrusted import as_list, as_number
from jobs import metrics as m
from jobs.failure_causes import FailureCause
from jobs.metrics import Better, DisplayUnit
from jobs.rundir import TUNING, read_records
from jobs.schema import Objective

UNITS = {
    Objective.throughput: "tokens/s",
    Objective.time_to_train: "s",
    Objective.cost: "service units",
    Objective.micro_batch: "sequences",
}
REPEATED = 1.2
"""A repeat elsewhere that is so many times as fast shows that the first run was disturbed."""


@dataclass(frozen=True)
class TrialRun:
    """One run of a configuration in one rung."""

    run: RunResult
    facts: Mapping[str, Any]
    """The field `trial` of its provenance: choices, steps, objective."""
    value: float | None = None
    """Figure of merit; None if it does not count."""
    reason: str | None = None
    """Reason why it does not count."""
    cause: FailureCause | None = None
    """Cause of its failure."""
    score_so_far: float | None = None
    """Score of a trial that was stopped early, by its steps until then. It does not count, but informs the sampler."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The override of each swept key."""
        return tuple(map(str, as_list(self.facts.get("choices"))))

    @property
    def steps(self) -> int:
        """The steps of its rung."""
        return int(as_number(self.facts.get("steps")) or 0)

    @property
    def is_baseline(self) -> bool:
        """True for the configuration that others are compared with."""
        return self.facts.get("baseline") is True

    @property
    def is_out_of_memory(self) -> bool:
        """True if it needed more memory than there is: so does all that needs more."""
        return self.cause is not None and self.cause.is_out_of_memory

    @property
    def repeats(self) -> str | None:
        """The name of the run that it repeats elsewhere, because that was slower than models allow."""
        found = self.facts.get("repeats")
        return None if found is None else str(found)

    @property
    def objective(self) -> Objective:
        """The figure of merit."""
        return Objective.__members__.get(str(self.facts.get("objective")), Objective.throughput)

    @property
    def more_is_better(self) -> bool:
        """True if the best figure of merit is the highest."""
        if self.objective is Objective.merit:
            return rules_of(self).metric.better is Better.high
        return self.objective in {Objective.throughput, Objective.micro_batch}

    @property
    def unit(self) -> DisplayUnit:
        """The unit in which its figure of merit is shown."""
        if self.objective is Objective.merit:
            return rules_of(self).metric.display
        return DisplayUnit(UNITS[self.objective], 1.0)

    @property
    def score(self) -> float | None:
        """The figure of merit, or its inverse where less is better; None if it does not count."""
        return self.value if self.value is None or self.more_is_better else 1 / self.value

    @property
    def rank_hours(self) -> float:
        """Hours of all ranks together: GPU-hours where they have GPUs."""
        known = self.run.values.get(m.RANK_TIME)
        return (recorded_s(self.run) * (self.run.ranks or 0) if known is None else known) / HOUR_S


def trial_runs(runs: Iterable[RunResult]) -> list[TrialRun]:
    """Return the trials among some runs in order of submission, judged against the baseline of their rung."""
    own = [run for run in runs if isinstance(run.provenance.get("trial"), Mapping)]
    found = [TrialRun(run, run.provenance["trial"]) for run in sorted(own, key=submitted)]
    baselines = {
        trial.steps: Baseline([trial.run], rules_of(trial)) for trial in found if trial.is_baseline and trial.run.used
    }
    causes = failures(own)
    early = {folder: stopped_early(folder) for folder in {run.path.parent.parent for run in own}}
    counted = [
        judged(trial, baselines.get(trial.steps), causes.get(trial.run.path), early[trial.run.path.parent.parent])
        for trial in found
    ]
    return without_repeated(counted)


def stopped_early(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the records of the trials that a tuning stopped early, by the names of their runs."""
    with suppress(OSError):
        records = [record for record in read_records(folder / TUNING) if record.get("event") == "stopped_early"]
        return {str(record.get("run")): record for record in records}
    return {}


def without_repeated(trials: Sequence[TrialRun]) -> list[TrialRun]:
    """Return trials of which one that was repeated elsewhere does not count: its repeat stands for it."""
    repeats = {trial.repeats: trial for trial in trials if trial.repeats and trial.score}
    return [
        replace(trial, value=None, reason=repeated_words(trial, repeats[trial.run.name]))
        if trial.run.name in repeats and trial.score
        else trial
        for trial in trials
    ]


def repeated_words(trial: TrialRun, repeat: TrialRun) -> str:
    """Return what the repeat of a suspicious trial shows."""
    ratio = (repeat.score or 0) / (trial.score or 1)
    shows = (
        f"its node, the network or a fault cost {ratio:.2f} times its time" if ratio > REPEATED else "as slow there too"
    )
    return f"slower than models allow, repeated as {repeat.run.name}: {shows}"


def submitted(run: RunResult) -> tuple[str, str]:
    """Return the sort key of submission."""
    return str(run.provenance.get("time")), run.name


def rules_of(trial: TrialRun) -> Rules:
    """Return the rules of the quality gate: the tolerance of the tuning, infinite without a gate."""
    tolerance = as_number(trial.facts.get("loss_tolerance"))
    return replace(Rules.of(trial.run), loss_tolerance=float("inf") if tolerance is None else tolerance)


def judged(
    trial: TrialRun, baseline: Baseline | None, failure: Failure | None, early: Mapping[str, Mapping[str, Any]]
) -> TrialRun:
    """Return a trial with its figure of merit, or with the reason why it does not count."""
    run = trial.run
    if not run.used and (record := early.get(run.name)):
        return replace(trial, reason=str(record.get("reason")), score_so_far=as_number(record.get("score")))
    if failure is not None:
        proof = f" ({failure.proof})" if failure.proof else ""
        return replace(trial, reason=f"{failure.words}{proof}", cause=failure.cause)
    if not run.used:
        return replace(trial, reason=str(run.reason))
    if trial.objective is Objective.micro_batch:
        # Sizes have their own global batches, so that there is no task to compare.
        return replace(trial, value=as_number(run.setting("job.micro_batch_size")))
    if baseline is None:
        return replace(trial, reason="no baseline of as many steps has finished")
    gate = (did_the_task(run, baseline), did_the_work(run, baseline), reached_the_loss(run, baseline))
    if reasons := [reason for reason in gate if reason]:
        return replace(trial, reason="; ".join(reasons))
    value = figure_of_merit(trial)
    reason = f"recorded nothing that {trial.objective.name} follows from" if value is None else None
    return replace(trial, value=value, reason=reason)


def figure_of_merit(trial: TrialRun) -> float | None:
    """Return the figure of merit of a trial; None if it was not measured."""
    if trial.objective is Objective.merit:
        return rules_of(trial).value(trial.run)
    values, steps = trial.run.values, as_number(trial.facts.get("training_steps"))
    rate, tokens = values.get(m.TOKENS_PER_S), values.get(m.TOKENS_PER_STEP)
    if trial.objective is Objective.throughput or not rate:
        return rate
    startup_s, first_s = values.get(m.STARTUP_TIME), values.get(m.FIRST_STEP_TIME)
    if startup_s is None or first_s is None or tokens is None or steps is None:
        return None
    time_s = startup_s + first_s + (steps - 1) * tokens / rate
    units, nodes = (as_number(trial.run.setting(key)) for key in ("cluster.service_units_per_node_hour", "nodes"))
    if trial.objective is Objective.time_to_train:
        return time_s
    return None if units is None or nodes is None else units * nodes * time_s / HOUR_S


def tunings(runs: Iterable[RunResult]) -> dict[Path, list[TrialRun]]:
    """Return the trials by the folder of their tuning, in order of submission."""
    found: dict[Path, list[TrialRun]] = defaultdict(list)
    for trial in trial_runs(runs):
        found[trial.run.path.parent.parent].append(trial)
    return dict(found)


def best(trials: Sequence[TrialRun]) -> TrialRun | None:
    """Return the best trial of the longest rung in which any counts."""
    counting = [trial for trial in trials if trial.score is not None]
    longest = max((trial.steps for trial in counting), default=0)
    return max((trial for trial in counting if trial.steps == longest), key=lambda each: each.score or 0, default=None)


# --- ablation --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """A choice against the baseline's choice of the same key, over pairs of trials that differ in nothing else."""

    choice: str
    against: str
    ratio: Ratio | None
    """Score with the choice divided by that without; None without such a pair."""


def effects(trials: Sequence[TrialRun]) -> list[Effect]:
    """Return the effect of every choice that was tried and is not the baseline's."""
    first = next((trial.choices for trial in trials if trial.is_baseline), ())
    scores = {(trial.steps, trial.choices): trial.score for trial in trials if trial.score}
    return [
        Effect(choice, own, Ratio.of_pairs(ratios) if ratios else None)
        for place, own in enumerate(first)
        for choice in dict.fromkeys(trial.choices[place] for trial in trials if len(trial.choices) == len(first))
        if choice != own
        for ratios in [ratios_of(scores, place, choice, own)]
    ]


def ratios_of(
    scores: Mapping[tuple[int, tuple[str, ...]], float | None], place: int, choice: str, own: str
) -> list[float]:
    """Return the ratios of scores of equal steps and choices but that at `place`; of equal choices the longest rung."""
    found: dict[tuple[str, ...], float] = {}
    for (steps, choices), score in sorted(scores.items(), key=lambda item: item[0]):
        beside = scores.get((steps, (*choices[:place], own, *choices[place + 1 :])))
        if choices[place] == choice and score and beside:
            found[choices] = score / beside
    return list(found.values())
