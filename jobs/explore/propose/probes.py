"""`slurmscale calibrate --probes`: the few short runs that identify the constants of step time best.

Each is the legal layout that leaves the narrowest intervals of all layouts together, given the probes before it
(Chaloner and Verdinelli, Statistical Science 10, 1995): it identifies constants, and layouts like it are no longer
unlike all that is measured. Among layouts of nearly equal worth the cheapest is taken.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.answers import ProbeAnswer, ProbesAnswer
from jobs.console import console, shell_line
from jobs.errors import ConfigError
from jobs.explore.layouts import Layouts, read_layouts
from jobs.explore.propose.predicted import RankedLayout, ranked
from jobs.fitted_table import FittedTable
from jobs.plan.compose import Point, compose
from jobs.plan.keys import key_of
from jobs.plan.predict.calibration import STEP_TIME_PRIOR, Fit, calibration_of, with_unlike
from jobs.plan.predict.constants import StepTimeConstants, deviations
from jobs.plan.predict.fit import MOST_RUNS, Array, Quantity
from jobs.plan.predict.speed import START_S
from jobs.plan.predict.step_time import step_time_s, step_work
from jobs.plan.rules.rule import counted
from jobs.schema import Run

FEWEST, LEAST_GAIN = 3, 0.02
"""Probes after which one that narrows the interval by less is not worth its run."""
MOST_CANDIDATES = 300
"""Probes are chosen among so many layouts, evenly spaced."""
STEADY_STEPS = 16
LIKELY = 0.95
"""Least chance of fitting: a probe that runs out of memory measures nothing."""
LONGEST_S = 900
"""Longest predicted time of a probe."""
NEARLY = 0.8
"""Part of the largest worth that a cheaper probe must have."""
IDENTIFIED = 0.8
"""A probe identifies the constants whose deviation it lowers to this part or less."""


@dataclass(frozen=True)
class Probe:
    """A run to measure, and what is expected to be known with it and those before it."""

    candidate: RankedLayout
    identifies: Sequence[str]
    """Constants that become better known by it."""
    factor: float
    """Upper limit of a step time over its prediction, the median of all layouts."""


@dataclass(frozen=True)
class Proposal:
    """The probes of a space of layouts."""

    probes: Sequence[Probe]
    layouts: int
    factor: float
    """That of `Probe` before any probe."""


def propose(order: Sequence[RankedLayout]) -> Proposal:
    """Return the probes among some layouts; raise ConfigError if none is short and likely to fit."""
    known: Fit[StepTimeConstants] = calibration_of(order[0].layout.run).step_time or STEP_TIME_PRIOR
    works = [work for each in order if (work := step_work(each.layout.run)) is not None]
    names, spread = zip(*deviations(StepTimeConstants).items(), strict=True)
    slopes: Array = Quantity(step_time_s, known).derivatives(works, np.zeros(len(names)))
    usable = [place for place, each in enumerate(order) if each.chance >= LIKELY and duration_s(each) <= LONGEST_S]
    if not usable:
        raise ConfigError(
            f"None of {len(order):,} layouts likely fits and takes {LONGEST_S // 60} minutes or less for "
            f"{steps_of(order[0].layout.run)} steps. Set a smaller scaling.global_batch_size, or more nodes."
        )
    usable = usable[:: max(1, len(usable) // MOST_CANDIDATES)]
    prior = (slopes**2) @ np.array(spread) ** 2
    covariance: Array = np.array(known.covariance)
    distances: Array | None = None
    if known.runs:
        distances = np.min([np.linalg.norm(slopes - run, axis=1) for run in known.runs], axis=0)
    to_usable = np.stack([np.linalg.norm(slopes - slopes[place], axis=1) for place in usable], axis=1)

    def deviations_of(variance: Array, distance: Array | None) -> Array:
        """Return the deviations of predictions, as Fit.interval has them: a row for each layout."""
        if distance is not None:
            before = prior if variance.ndim == 1 else prior[:, None]
            variance = with_unlike(variance, before, distance)
        return np.asarray(np.sqrt(variance + known.noise**2))

    def factor() -> float:
        variance = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
        return math.exp(known.quantile * float(np.median(deviations_of(variance, distances))))

    before, probes = factor(), list[Probe]()
    while len(probes) < MOST_RUNS:
        joint = slopes @ covariance @ slopes[usable].T
        variance = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
        left = variance[:, None] - joint**2 / (variance[usable] + known.noise**2)
        nearest = to_usable if distances is None else np.minimum(distances[:, None], to_usable)
        worth = deviations_of(variance, distances).sum() - deviations_of(left, nearest).sum(axis=0)
        near = [i for i in range(len(usable)) if worth[i] >= worth.max() - (1 - NEARLY) * abs(worth.max())]
        place = min(near, key=lambda i: order[usable[i]].layout.run.ranks * duration_s(order[usable[i]]))
        chosen = usable[place]
        row = covariance @ slopes[chosen]
        after = covariance - np.outer(row, row) / (slopes[chosen] @ row + known.noise**2)
        parts = np.sqrt(np.diag(after) / np.diag(covariance))
        identified = [names[i] for i in np.argsort(parts) if parts[i] <= IDENTIFIED] or [names[int(np.argmin(parts))]]
        covariance, distances, last = after, nearest[:, place], probes[-1].factor if probes else before
        probes.append(Probe(order[chosen], identified, factor()))
        if len(probes) > FEWEST and last / probes[-1].factor < 1 + LEAST_GAIN:
            probes.pop()
            break
    return Proposal(probes, len(order), before)


def duration_s(candidate: RankedLayout) -> float:
    """Return the predicted time of a layout as a probe."""
    return START_S.point + steps_of(candidate.layout.run) * candidate.speed.point_s


def steps_of(run: Run) -> int:
    """Return the steps of a probe: some steady ones."""
    return run.job.unmeasured_steps + STEADY_STEPS


# --- the command ----------------------------------------------------------------------------------------------


def probes(overrides: list[str], *, submit: bool) -> tuple[ProbesAnswer, int]:
    """Return the probes of the overrides' layouts, submitted on request, and the exit code."""
    space = read_layouts(overrides)
    order = ranked(space.layouts())
    if not order:
        raise ConfigError(
            "No legal layout of these overrides has a predicted speed and may fit its GPU: `slurmscale plan --search` "
            "with the same overrides names the reason."
        )
    proposal = propose(order)
    found = [answer_of(space, number, each) for number, each in enumerate(proposal.probes, 1)]
    points = [composed(each.overrides) for each in (found if submit else found[:1])]
    run = points[0].run
    basis = order[0].speed.basis.partition(":")[0]
    answer = ProbesAnswer(basis, proposal.layouts, proposal.factor, found, f"{run.runs_dir}/{run.sweep}", submit)
    if not submit:
        return answer, 0
    from jobs.submit.commands import submit_points  # noqa: PLC0415 (only to submit)

    console().print(heading(answer), table(answer))
    return answer, submit_points(points, wait=None)


def show(found: ProbesAnswer) -> None:
    """Print proposed probes as a table, and as commands to type."""
    out = console()
    out.print(heading(found), table(found))
    for each in found.probes:
        out.print(f"slurmscale submit {shell_line(each.overrides)}", soft_wrap=True)
    out.print(f"when they have ended: slurmscale calibrate {shlex.quote(found.directory)}", soft_wrap=True)


def answer_of(space: Layouts, number: int, probe: Probe) -> ProbeAnswer:
    """Return the record of a probe."""
    run, seconds = probe.candidate.layout.run, duration_s(probe.candidate)
    typed = typed_probe(space, number, probe)
    return ProbeAnswer(typed, run.nodes, seconds, run.ranks * seconds, probe.factor, list(probe.identifies))


def heading(found: ProbesAnswer) -> str:
    """Return the line above the table."""
    return f"{found.basis}: {counted(len(found.probes))} to measure, chosen among {found.layouts:,} layouts"


def typed_probe(space: Layouts, number: int, probe: Probe) -> list[str]:
    """Return the overrides that make a probe."""
    run = probe.candidate.layout.run
    short: dict[str, Any] = {
        "job.steps": steps_of(run),
        "job.epochs": "null",
        "job.checkpoint_every_steps": "null",
        "wall_time_min": math.ceil((START_S.high + steps_of(run) * probe.candidate.speed.step_time_s.high) / 60),
        "sweep": f"probes-{run.model.name}",
        "name": f"probe-{number}",
    }
    given = {key: value for key, value in short.items() if key not in {"sweep"} & space.given}
    others = [each for each in space.common if key_of(each) not in given]
    return [*others, *probe.candidate.layout.overrides.split(), *(f"{key}={value}" for key, value in given.items())]


def composed(overrides: list[str]) -> Point:
    """Return the point of a probe, checked like any other."""
    (point,) = compose(overrides, multirun=False)
    return point


def table(found: ProbesAnswer) -> FittedTable:
    """Return a row per probe: its cost, and what is expected to be known after it."""
    made = FittedTable()
    for column in ("probe", "nodes", "minutes", "GPU-hours", "step time within (90 %, median layout)"):
        made.number(column)
    made.text("identifies")
    made.add_row("before", "", "", "", limits(found.interval_factor), "")
    for number, probe in enumerate(found.probes, 1):
        cost = (f"{probe.nodes}", f"{probe.duration_s / 60:.1f}", f"{probe.gpu_s / 3600:.2f}")
        made.add_row(str(number), *cost, limits(probe.interval_factor), ", ".join(probe.identifies))
    return made


def limits(factor: float) -> str:
    """Return an interval as shares of the prediction."""
    return f"{100 / factor - 100:+.0f} to {100 * factor - 100:+.0f} %"
