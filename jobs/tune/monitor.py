"""Judgements on trials by their step times: one that runs and cannot win, one that ended slower than models allow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.compare.tuning import TrialRun
from analysis.formatting import significant
from analysis.untrusted import as_number, lookup
from jobs import metrics as m
from jobs.plan.compose import Point
from jobs.tune.sampler import Landscape
from jobs.tune.space import Candidate, Space

FEWEST_STEPS = 4
"""Of steps as fast as the best trial's, each has a chance of 1 in 10 to be slower than nine of ten of its steps: that
all of four are happens once in 10,000 trials, if steps are independent."""
SURELY_SLOWER = 1.5
"""Steps of one configuration are not independent: repeats of published runs differ by 1.15 in the median, in the worst
case by 4.7 (huggingface/nanotron, its published sweep). A trial that may recover is not stopped."""
DEVIATIONS = 3
"""Standard deviations below its expected score from which a trial is a fault rather than a bad choice."""
FEWEST_TRIALS = 5


def hopeless(own_s: Sequence[float], best_s: Sequence[float]) -> str | None:
    """Return why a trial with these steady step times so far cannot win against the best of its rung; None if it can.

    Every one of its steps is slower than nine of ten steps of the best, and their median is SURELY_SLOWER times the
    best's.
    """
    if len(own_s) < FEWEST_STEPS or len(best_s) < FEWEST_STEPS:
        return None
    limit_s = statistics.quantiles(best_s, n=10, method="inclusive")[-1]
    own, best = statistics.median(own_s), statistics.median(best_s)
    if min(own_s) <= limit_s or own < SURELY_SLOWER * best:
        return None
    return (
        f"stopped early: its {len(own_s)} last steps take {significant(own, 3)} s in the median and at least "
        f"{significant(min(own_s), 3)} s, nine of ten of the best trial's at most {significant(limit_s, 3)} s"
    )


def slower_than_models(trial: TrialRun, trials: Sequence[TrialRun], candidates: Sequence[Candidate]) -> str | None:
    """Return by how much a trial is slower than every model of it allows; None where one allows it, or there is none.

    Models are the prediction, by the upper end of its interval, where it is of the device that the trial ran on, and
    the speeds of the other trials of its rung, by DEVIATIONS.
    """
    step_s = trial.run.values.get(m.STEP_TIME_MEDIAN)
    if trial.score is None or step_s is None:
        return None
    limits = limits_s(trial, step_s, trials, candidates)
    if not limits or step_s <= max(limits.values()):
        return None
    allowed = ", ".join(f"at most {significant(limit, 3)} s by {model}" for model, limit in limits.items())
    nodes = ", ".join(nodes_of(trial)) or "its machine"
    return (
        f"slower than any model of it allows ({significant(step_s, 3)} s a step, {allowed}): node, network or fault? "
        f"It ran on {nodes}"
    )


def limits_s(
    trial: TrialRun, step_s: float, trials: Sequence[TrialRun], candidates: Sequence[Candidate]
) -> Mapping[str, float]:
    """Return the longest step time that each model of a trial allows."""
    found: dict[str, float] = {}
    predicted = as_number(lookup(trial.run.plan, f"speed.{m.STEP_TIME.name}.high"))
    if predicted and trial.run.started.get("device_name") == lookup(trial.run.config, "gpu.device_name"):
        found["the prediction"] = predicted
    beside = {each.choices: each.score for each in trials if each.steps == trial.steps and each is not trial}
    point = next((each for each in candidates if each.choices == trial.choices), None)
    if point is not None and trial.score and sum(score is not None for score in beside.values()) >= FEWEST_TRIALS:
        means, deviations = Landscape(candidates, beside).expected([point])
        slowest = means[0] - max(DEVIATIONS * deviations[0], math.log(SURELY_SLOWER))
        found["the other trials"] = step_s * trial.score / math.exp(slowest)
    return found


def nodes_of(trial: TrialRun) -> list[str]:
    """Return the nodes that a trial ran on."""
    nodes = trial.run.started.get("nodes")
    return [str(each) for each in nodes] if isinstance(nodes, list) else []


def repeat_elsewhere(space: Space, trial: TrialRun, candidate: Candidate) -> Point:
    """Return a repeat of a trial, on other nodes where Slurm chooses them."""
    point = space.trial(candidate, trial.steps)
    run = replace(point.run, name=f"{point.run.name}-again")
    if run.launcher.kind.job_per_run and (nodes := nodes_of(trial)):
        excluded = ",".join(filter(None, [run.cluster.sbatch.get("exclude"), *nodes]))
        run = replace(run, cluster=replace(run.cluster, sbatch=run.cluster.sbatch | {"exclude": excluded}))
    return replace(point, run=run, facts={"trial": {**point.facts["trial"], "repeats": trial.run.name}})
