"""`slurmscale tune tune=batch_finder`: the largest micro-batch that fits the memory, by bracketing and bisection.

The size is doubled until a trial runs out of memory, or is predicted to, and then the middle of the bracket is tried:
what ran out of memory is the upper end. The search ends with a trial that used `tune.memory_share` of the memory, or
with a size whose successor does not fit. If the user's runs have several micro-batches a step, a trial has two: the
second is computed next to the gradients of the first. On a CPU the memory of a rank is what its process holds, out of
`tune.memory_gb` or its part of the node's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from analysis.compare.tuning import TrialRun
from jobs import metrics as m
from jobs.errors import ConfigError, SubmitError
from jobs.explore.propose.bracket import next_value
from jobs.explore.space import Candidate, Space, folder_of, refuse_settings, without_own, without_tune
from jobs.explore.tuning import Tuning
from jobs.layout import accumulation, data_degree
from jobs.plan.compose import Point
from jobs.plan.keys import value_of
from jobs.plan.legality import only_memory_is_short, problems
from jobs.plan.rules.memory import GIB
from jobs.schema import Objective, Run, ScalingMode

CHOICE = "tune=batch_finder"
KEY = "job.micro_batch_size"


@dataclass(frozen=True)
class Bracket:
    """The sizes between which the largest one that fits lies."""

    fits: int | None
    """The largest size that ran; None if none did."""
    share: float
    """The share of the memory that it used."""
    too_large: int | None
    """The smallest size that did not fit; None if none is known."""
    reason: str = ""

    def next_size(self, first: int, wanted: float) -> int | None:
        """Return the size to try next; None at the end."""
        return None if self.share >= wanted else next_value(self.fits or 0, self.too_large, first)


class BatchFinder(Tuning):
    """A search for the largest micro-batch."""

    @classmethod
    def of(cls, points: Sequence[Point], overrides: Sequence[str]) -> Self:
        """Return the search of the size; raise ConfigError for several points, or if no share of memory is known."""
        return cls(space_of_one(points, overrides), 1)

    @property
    def size(self) -> int:
        """The first size."""
        return self.space.baseline.point.run.job.micro_batch_size

    def introduction(self) -> Iterable[str]:
        """Return the first size, and the share of the memory at which the search ends."""
        share = f"{self.space.settings.memory_share:.0%}".replace("%", " %")
        return [f"Largest {KEY} from {self.size}, up to {share} of the memory"]

    def preview(self) -> Iterable[str]:
        """Return the trial of the first size."""
        return [f"First trial: {sized(self.space, self.size).run.name}; each next one has twice the size"]

    def explore(self) -> int:
        """Try sizes until the end of the search."""
        space, settings = self.space, self.space.settings
        predicted: int | None = None
        while True:
            trials = self.trials()
            found = bracket_of(trials, space, predicted)
            size = found.next_size(self.size, settings.memory_share)
            if size is None or len(trials) >= settings.runs or self.spent(trials).is_late():
                return self.conclude(found, ended=size is None)
            point = sized(space, size)
            if reasons := problems(point.run):
                if not only_memory_is_short(point.run):
                    raise ConfigError(f"{KEY}={size} cannot run: {reasons[0]}")
                predicted = size
                print(f"{KEY}={size}: {reasons[0]}")
            elif code := self.run([point], space.folder.trials):
                return code

    def conclude(self, found: Bracket, *, ended: bool) -> int:
        """Write the experiment of the size that was found, and the report; return the exit code."""
        if found.fits is None:
            raise SubmitError(
                f"No size fits the memory: {KEY}={found.too_large} is {found.reason}. "
                "Set parallelism=fsdp_full, more ranks, or engine.activation_checkpointing=full."
            )
        used = f"{found.share:.1%} of the {memory_of(self.space) / GIB:g} GiB of a rank".replace("%", " %")
        beyond = f"{found.too_large} does not fit ({found.reason})" if found.too_large else "no larger one was tried"
        verdict = f"{KEY}={found.fits} uses {used}; {beyond}."
        if not ended:
            verdict += " The budget ended the search; the same command with a larger one goes on."
        return self.end(experiment_of(self.space, found.fits), verdict, [verdict], next=[])


def space_of_one(points: Sequence[Point], overrides: Sequence[str]) -> Space:
    """Return the space of the one size that the overrides have; raise ConfigError if they have several points."""
    run = points[0].run
    assert run.tune is not None
    if len(points) > 1:
        raise ConfigError(
            f"{CHOICE} finds the size for one configuration; these are {len(points)}. Give single values."
        )
    if run.tune.objective is not Objective.micro_batch:
        raise ConfigError(
            f"tune.search=batch_finder finds the largest micro-batch, and tune.objective={run.tune.objective.name} is "
            f"another objective. Set {CHOICE}, without tune.objective and tune.search."
        )
    if rank_bytes(run) is None:
        raise ConfigError(
            f"The memory of gpu={run.gpu.name} is not known, so no share of it is. Set tune.memory_gb to the memory "
            "of a rank in GiB, or on CPU nodes cluster.memory_gb_per_node."
        )
    refuse_settings(run.tune, run)
    own = without_own(overrides)
    candidate = Candidate((f"{KEY}={run.job.micro_batch_size}",), without_tune(points[0]), tight=False)
    return Space(folder_of(run, own), run.tune, own, [candidate])


def bracket_of(trials: Sequence[TrialRun], space: Space, predicted: int | None) -> Bracket:
    """Return what some trials show; raise SubmitError if one failed for another reason than memory."""
    total = memory_of(space)
    fits: int | None = None
    share, too_large, reason = 0.0, predicted, "predicted not to fit"
    for trial in sorted(trials, key=size_of):
        size = size_of(trial)
        if trial.is_out_of_memory:
            if too_large is None or size < too_large:
                too_large, reason = size, str(trial.reason).partition(" (")[0]
        elif trial.score is None:
            raise SubmitError(
                f"{trial.run.name} ended for another reason than memory: {trial.reason}. Correct the cause, remove "
                f"{trial.run.path} and run the same command."
            )
        elif too_large is None or size < too_large:
            used = used_bytes(trial) / total
            if used <= 1:
                fits, share = size, used
            else:  # nothing enforces the limit: launcher=local, or a memory that the user sets
                too_large, reason = size, f"it used {used:.0%} of the memory".replace("%", " %")
    return Bracket(fits, share, too_large, reason)


def size_of(trial: TrialRun) -> int:
    """Return the micro-batch of a trial."""
    return int(value_of(trial.choices[0]))


def used_bytes(trial: TrialRun) -> float:
    """Return the memory of the fullest rank: what its allocator held, or a process on a CPU."""
    values = trial.run.values
    return values.get(m.MEMORY_RESERVED_PEAK) or values.get(m.MEMORY_PEAK) or 0.0


def rank_bytes(run: Run) -> float | None:
    """Return the memory of a rank: what the user sets, else its GPU's, else its part of a CPU node's."""
    given = None if run.tune is None else run.tune.memory_gb
    node = run.cluster.memory_gb_per_node
    part = node / run.ranks_per_node if node and not run.cluster.gpus else None
    size = given or run.gpu.memory_gb or part
    return None if size is None else size * GIB


def memory_of(space: Space) -> float:
    """Return the memory of a rank."""
    found = rank_bytes(replace(space.baseline.point.run, tune=space.settings))
    assert found is not None, "space_of_one refuses it"
    return found


def sized(space: Space, size: int) -> Point:
    """Return the trial of a size, with no more micro-batches a step than show its memory."""
    own = space.baseline.point
    micro_batches = max(1, min(accumulation(own.run), max(2, own.run.parallelism.pipeline)))
    rows = size * data_degree(own.run) * micro_batches
    scaling = replace(own.run.scaling, mode=ScalingMode.strong, global_batch_size=rows, sequences_per_rank=None)
    run = replace(own.run, job=replace(own.run.job, micro_batch_size=size), scaling=scaling)
    name = f"{own.run.name}-micro_batch_size={size}"
    candidate = Candidate((f"{KEY}={size}",), replace(own, run=replace(run, name=name)), tight=False)
    return space.trial(candidate, space.settings.steps[0])


def experiment_of(space: Space, size: int) -> Candidate:
    """Return the configuration with a size; its global batch is the user's, or the next larger one that is legal."""
    own = space.baseline.point
    unit = size * data_degree(own.run)
    rows = -(-own.run.global_batch_size // unit) * unit
    choices = [f"{KEY}={size}"]
    scaling = own.run.scaling
    if rows != own.run.global_batch_size:
        scaling = replace(scaling, mode=ScalingMode.strong, global_batch_size=rows, sequences_per_rank=None)
        choices.append(f"scaling.global_batch_size={rows}")
    run = replace(own.run, job=replace(own.run.job, micro_batch_size=size), scaling=scaling)
    return Candidate(tuple(choices), replace(own, run=run), tight=False)


SEARCH = BatchFinder
