"""Judgements on trials by their speed: one that runs and cannot win, one that ended slower than models of it allow."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.compare.tuning import TrialRun
from analysis.formatting import significant
from analysis.untrusted import as_number, lookup
from jobs import metrics as m
from jobs.explore.space import Candidate, Space
from jobs.plan.compose import Point
from jobs.schema import Run
from jobs.submit.slurm.commands import partitions

FEWEST_STEPS = 4
"""A step of a trial as fast as the best is slower than nine of ten of the best's with a chance of 1 in 10; that all of
four are happens once in 10,000 trials, if steps are independent."""
SURELY_SLOWER = 1.5
"""Steps of one run are not independent, and neighbours on a node disturb for minutes. Repeats of published runs differ
by 1.15 in the median (huggingface/nanotron, its published sweep)."""
FEWEST_ALIKE = 3


def hopeless(own: Sequence[float], best: Sequence[float]) -> str | None:
    """Return why a trial with these tokens/s of its last steady steps cannot win against the best; None if it can.

    Every one of its steps is slower than nine of ten steps of the best, and their median SURELY_SLOWER times.
    """
    if min(len(own), len(best)) < FEWEST_STEPS:
        return None
    slowest = statistics.quantiles(best, n=10, method="inclusive")[0]
    middle = statistics.median(own)
    if max(own) >= slowest or middle * SURELY_SLOWER > statistics.median(best):
        return None
    return (
        f"stopped early: its last {len(own)} steps have {significant(middle, 3)} tokens/s in the median and at most "
        f"{significant(max(own), 3)}, nine of ten steps of the best trial at least {significant(slowest, 3)}"
    )


def slower_than_models(trial: TrialRun, trials: Sequence[TrialRun]) -> str | None:
    """Return by how much a trial is slower than every model of it allows; None if one allows it, or none exists."""
    step_s, rate = (trial.run.values.get(key) for key in (m.STEP_TIME_MEDIAN, m.TOKENS_PER_S))
    if trial.value is None or not step_s or not rate:
        return None
    limits = limits_s(trial, step_s * rate, trials)
    if not limits or step_s <= max(limits.values()):
        return None
    allowed = "; ".join(f"at most {significant(limit, 3)} s by {model}" for model, limit in limits.items())
    where = ", ".join(nodes_of(trial)) or "its machine"
    return f"{significant(step_s, 3)} s a step ({allowed}) on {where}: node, network or fault?"


def limits_s(trial: TrialRun, tokens: float, trials: Sequence[TrialRun]) -> Mapping[str, float]:
    """Return the longest step time that each model of a trial with so many tokens a step allows.

    A shorter run of the same configuration is the best model. Without one these are: the upper end of the prediction,
    where that is of the device that the trial ran on, and the slowest trial that differs in one choice only.
    """
    rates = [(each, each.run.values.get(m.TOKENS_PER_S)) for each in trials if each.value is not None]
    shorter = [rate for each, rate in rates if rate and each.choices == trial.choices and each.steps < trial.steps]
    if shorter:
        return {"its shorter run": SURELY_SLOWER * tokens / min(shorter)}
    found = {}
    predicted = as_number(lookup(trial.run.plan, f"speed.{m.STEP_TIME.name}.high"))
    if predicted and trial.run.started.get("device_name") == lookup(trial.run.config, "gpu.device_name"):
        found["the prediction"] = predicted
    others = [(each.choices, rate) for each, rate in rates if rate and each.steps == trial.steps]
    alike = [rate for choices, rate in others if sum(map(operator.ne, choices, trial.choices)) == 1]
    if len(alike) >= FEWEST_ALIKE:
        found[f"{len(alike)} trials that differ in one choice"] = SURELY_SLOWER * tokens / min(alike)
    return found


def nodes_of(trial: TrialRun) -> list[str]:
    """Return the nodes that a trial ran on."""
    nodes = trial.run.started.get("nodes")
    return [str(each) for each in nodes] if isinstance(nodes, list) else []


def repeat_elsewhere(space: Space, trial: TrialRun, candidate: Candidate, spare: int) -> Point:
    """Return a repeat of a trial, on other nodes if Slurm has so many `spare` ones."""
    point = space.trial(candidate, trial.steps)
    run, nodes = replace(point.run, name=f"{point.run.name}-again"), nodes_of(trial)
    if nodes and spare >= len(nodes):
        excluded = ",".join(filter(None, [run.cluster.sbatch.get("exclude"), *nodes]))
        run = replace(run, cluster=replace(run.cluster, sbatch=run.cluster.sbatch | {"exclude": excluded}))
    return replace(point, run=run, facts={"trial": {**point.facts["trial"], "repeats": trial.run.name}})


def spare_nodes(run: Run) -> int:
    """Return the nodes beyond those of a run from which Slurm may choose: 0 where it does not choose for each run.

    A job that excludes more nodes than its partition can spare would wait for ever.
    """
    if not run.launcher.kind.has_arrays:
        return 0
    known = partitions()
    names = (run.cluster.partition or "").split(",")
    return max(int(known.get(name, {}).get("TotalNodes", 0)) for name in names) - run.nodes
