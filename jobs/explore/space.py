"""The space of a tuning: every point of the sweep, the illegal ones counted by their refusals.

The first value of every swept key makes the baseline.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jobs.errors import ConfigError
from jobs.explore.campaign.trial_checks import KEPT, is_shared
from jobs.explore.folder import TRIALS, TuningFolder
from jobs.plan.compose import Point
from jobs.plan.keys import key_of
from jobs.plan.legality import only_memory_is_short, problems
from jobs.plan.predict.memory import memory
from jobs.plan.predict.speed import expected_s, speed
from jobs.plan.rules.memory import Verdict, chance_to_fit, verdict
from jobs.schema import Objective, Run, Tune
from jobs.work.work import work_of

NUMBERS = re.compile(r"\d[\d,.]*")
MOST_REASONS = 5
# Keys that a tuning sets for its runs.
GIVEN = {"name", "sweep", "runs_dir", "repeat", "job.steps", "job.epochs"}


@dataclass(frozen=True)
class Candidate:
    """A legal point of the space."""

    choices: tuple[str, ...]
    """The override of each swept key, in the order in which the user gave the keys."""
    point: Point
    tight: bool
    """True if its predicted memory may be larger than that of the GPU."""
    expected_s: float | None = None
    """Predicted time of a step over the chance that it fits the memory; None if the GPU's rates are not known."""

    @property
    def name(self) -> str:
        """The name of its runs, but for the steps."""
        return str(self.point.run.name)


@dataclass(frozen=True)
class Space:
    """The points of a tuning."""

    folder: TuningFolder
    settings: Tune
    overrides: list[str]
    """The user's overrides without those of `tune`."""
    candidates: Sequence[Candidate]
    """Legal points; the baseline is the first, those whose memory is tight are last."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Numbers of illegal points by the reason, with their own numbers left out."""
    too_large: Sequence[str] = ()
    """Names of the points that are predicted not to fit the memory of their GPU."""

    @property
    def baseline(self) -> Candidate:
        """The point of the first value of every swept key."""
        return self.candidates[0]

    @property
    def points(self) -> int:
        """The number of all points, illegal ones too."""
        return len(self.candidates) + sum(self.refused.values()) + len(self.too_large)

    @property
    def has_whole_runs(self) -> bool:
        """True if a trial is a whole run of a program, whatever its steps."""
        return are_whole(self.settings)

    def trial(self, candidate: Candidate, steps: int) -> Point:
        """Return the run of a candidate in the rung of so many steps."""
        run, settings = candidate.point.run, self.settings
        facts = {
            "choices": list(candidate.choices),
            "steps": steps,
            "baseline": candidate is self.baseline,
            "objective": settings.objective.name,
            "loss_tolerance": settings.loss_tolerance,
            "training_steps": run.job.steps,
        }
        short = replace(
            shortened(run, settings, steps),
            runs_dir=str(self.folder.path),
            sweep=TRIALS,
            name=run.name if self.has_whole_runs else f"{run.name}-{steps}steps",
        )
        return replace(candidate.point, run=short, facts={"trial": facts})


def shortened(run: Run, settings: Tune, steps: int) -> Run:
    """Return a run of fewer steps, without the rules of a contest, which require the whole training."""
    job = run.job if are_whole(settings) else replace(run.job, steps=steps, epochs=None)
    return replace(run, job=job, contest=None, tune=None)


def are_whole(settings: Tune) -> bool:
    """Return whether trials are whole runs of a program (Objective.merit)."""
    return settings.objective is Objective.merit and settings.steps == [1]


def space_of(points: Sequence[Point], overrides: Sequence[str]) -> Space:
    """Return the checked space of the composed points of some overrides; raise ConfigError if it cannot be tuned."""
    own = without_own(overrides)
    swept = [place for place in range(len(points[0].overrides)) if len({p.overrides[place] for p in points}) > 1]
    refuse_swept([key_of(points[0].overrides[place]) for place in swept])
    run = points[0].run
    assert run.tune is not None
    settings = run.tune
    refuse_settings(settings, run)
    if settings.objective is Objective.micro_batch:
        raise ConfigError(
            "tune.objective=micro_batch belongs to tune=batch_finder. Set tune=batch_finder, without tune.objective "
            "and tune.search."
        )
    choices = [tuple(point.overrides[place] for place in swept) for point in points]
    return checked(folder_of(run, own), settings, own, list(zip(choices, map(without_tune, points), strict=True)))


def checked(
    folder: TuningFolder, settings: Tune, own: list[str], points: Sequence[tuple[tuple[str, ...], Point]]
) -> Space:
    """Return the space of these points; raise ConfigError if the baseline is illegal, or no other point is legal."""
    refused: Counter[str] = Counter()
    too_large: list[str] = []
    legal: list[Candidate] = []
    for choices, point in points:
        run = shortened(point.run, settings, settings.steps[0])
        reasons = problems(run)
        if reasons and point is points[0][1]:
            raise ConfigError(
                f"The baseline, the first value of every key ({' '.join(choices)}), cannot run:\n    "
                + "\n    ".join(reasons)
                + "\nPut a legal value first in every list."
            )
        if not reasons:
            legal.append(candidate(choices, point, run))
        elif only_memory_is_short(run):
            too_large.append(str(run.name))
        else:
            refused[without_numbers(reasons[0])] += 1
    ordered = [legal[0], *sorted(legal[1:], key=lambda each: each.tight)]
    space = Space(folder, settings, own, ordered, dict(refused.most_common()), too_large)
    if len(legal) < 2:
        raise ConfigError(
            f"The space has {len(points)} point{'s' if len(points) > 1 else ''}, and {len(legal)} of them can run: "
            f"there is nothing to choose from. {'; '.join(excluded(space)) or 'Give several values: KEY=A,B,C'}."
        )
    return space


def candidate(choices: tuple[str, ...], point: Point, run: Run) -> Candidate:
    """Return a legal point with the predictions of its run."""
    held, found = memory(run), speed(run)
    expected = None if found is None else expected_s(found.point_s, chance_to_fit(run, held))
    return Candidate(choices, point, verdict(run, held) is Verdict.tight, expected)


def excluded(space: Space) -> list[str]:
    """Return a clause on each kind of points that are not tried."""
    clauses = [f"{count} refused: {reason}" for reason, count in list(space.refused.items())[:MOST_REASONS]]
    if len(space.refused) > MOST_REASONS:
        clauses.append(f"and {len(space.refused) - MOST_REASONS} other reasons")
    if space.too_large:
        names = ", ".join(space.too_large[:MOST_REASONS])
        more = f" and {len(space.too_large) - MOST_REASONS} more" if len(space.too_large) > MOST_REASONS else ""
        clauses.append(f"{len(space.too_large)} predicted not to fit the GPU: {names}{more}")
    return clauses


def without_numbers(reason: str) -> str:
    """Return the first sentence of a refusal with N for each number, equal for refusals of one rule."""
    return NUMBERS.sub("N", reason.partition(". ")[0].rstrip("."))


def is_of_tune(override: str) -> bool:
    """Return whether an override sets the tuning itself."""
    return key_of(override).partition(".")[0] == "tune"


def without_own(overrides: Sequence[str]) -> list[str]:
    """Return overrides without those of the tuning itself."""
    return [each for each in overrides if not is_of_tune(each)]


def without_tune(point: Point) -> Point:
    """Return a point without the settings of its tuning."""
    return replace(point, run=replace(point.run, tune=None), overrides=without_own(point.overrides))


def folder_of(run: Run, own: list[str]) -> TuningFolder:
    """Return the folder of a tuning; without a name the same overrides have the same one, so that they continue it."""
    name = run.sweep
    if not any(key_of(each) == "sweep" for each in own):
        digest = hashlib.sha256("\0".join(own).encode()).hexdigest()[:8]
        name = f"tune-{run.model.name}-{digest}"
    return TuningFolder(Path(run.runs_dir) / str(name))


# --- refusals --------------------------------------------------------------------------------------------------


def refuse_swept(keys: Sequence[str]) -> None:
    """Raise ConfigError for swept keys whose values are not choices of one task."""
    for key in keys:
        if key in GIVEN:
            raise ConfigError(f"{key}: slurmscale tune sets it for its runs, so it is no choice. Give it one value.")
        if is_of_tune(key) or is_shared(key):
            raise ConfigError(f"{key}: one tuning has one value of it. Give it one value.")
        if key == "program" or key.partition(".")[0] in {*KEPT, "scaling", "experiment", "cluster", "gpu"}:
            raise ConfigError(
                f"{key}: tuning compares configurations of one task on the same nodes, so model, data, ranks, "
                "global batch and machine are no choices. Give it one value, and tune once for each value."
            )


def refuse_settings(settings: Tune, run: Run) -> None:
    """Raise ConfigError for settings of a tuning that cannot be."""
    positive: dict[str, Any] = {
        key: getattr(settings, key) for key in ("runs", "gpu_hours", "wall_time_min", "parallel")
    }
    for key, value in positive.items():
        if value is not None and value <= 0:
            raise ConfigError(f"tune.{key}={value} is not positive. Set tune.{key} to 1 or more.")
    if not 0 < settings.memory_share <= 1 or (settings.memory_gb is not None and settings.memory_gb <= 0):
        raise ConfigError(
            f"tune.memory_share={settings.memory_share:g} and tune.memory_gb={settings.memory_gb}: the share must be "
            "above 0 and at most 1, the memory above 0. Set tune.memory_share=0.9 tune.memory_gb=null."
        )
    if settings.reduction < 2 or settings.pairs < 0:
        raise ConfigError("tune.reduction must be 2 or more and tune.pairs 0 or more.")
    steps = settings.steps
    if not steps or any(a >= b for a, b in zip([0, *steps], steps, strict=False)):
        raise ConfigError(
            f"tune.steps={steps} must be increasing numbers of steps. Set for instance tune.steps=[8,24]."
        )
    if settings.loss_tolerance is not None and settings.loss_tolerance <= 0:
        raise ConfigError(f"tune.loss_tolerance={settings.loss_tolerance} is not positive. Set 0.05 for 5 %.")
    refuse_objective(settings, run)


def refuse_objective(settings: Tune, run: Run) -> None:
    """Raise ConfigError for an objective that these runs do not measure."""
    name = settings.objective.name
    if (refusal := work_of(run).objective_refusal(run)) is not None:
        raise ConfigError(refusal)
    if settings.objective in {Objective.throughput, Objective.micro_batch, Objective.merit}:
        return
    if settings.loss_tolerance is None:
        raise ConfigError(
            f"tune.objective={name} needs a quality gate: a run that learns less is no faster training. Set "
            "tune.loss_tolerance=0.05."
        )
    if run.job.steps is None:
        raise ConfigError(f"tune.objective={name} is the time of job.steps steps, which is not set. Set job.steps=N.")
    if settings.objective is Objective.cost and run.cluster.service_units_per_node_hour is None:
        raise ConfigError(
            "tune.objective=cost is measured in service units, and cluster.service_units_per_node_hour is not set. Set "
            "it, or tune.objective=time_to_train."
        )
