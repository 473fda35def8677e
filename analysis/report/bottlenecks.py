"""What holds it back, in sentences, as far as records tell: slower steps, traffic, time without steps, restarts.

Of each task the point is told that the answer is about: the one with the most ranks of its line, else the fastest. What
was not recorded has no sentence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.formatting import plural, shown, significant, unit
from analysis.report.headline import farthest, fastest, prefix, told_line
from analysis.report.sections.goodput import lost_words
from analysis.report.sections.stragglers import cost, who
from analysis.run import RunResult
from analysis.scaling.groups import STRONG, Group, Point, by_task
from analysis.scaling.layouts import MeasuredLayout, axes_of
from jobs import metrics as m
from jobs.layout import AXES, Layout
from jobs.metrics import Metric
from jobs.schema import ScalingMode

# A step of the slowest tenth that takes this much longer than the median is worth a sentence.
SLOW_STEP_RATIO = 1.1
# What is less of the wall time is not named.
SMALLEST_SHARE = 0.01
LATER_STEPS = (m.WARMUP_TIME, m.STEADY_TIME)
OTHER_PARTS = (
    (m.FIRST_STEP_TIME, "first step"),
    (m.STARTUP_TIME, "start-up"),
    (m.CHECKPOINT_TOTAL_TIME, "waiting for checkpoints"),
    (m.OTHER_TIME, "logging, export and closing"),
)


@dataclass(frozen=True)
class Told:
    """The point to tell of, with its line, and the reference where the line has one."""

    group: Group
    point: Point
    reference: Point | None


@dataclass(frozen=True)
class Limits:
    """What holds a task back; the heading starts with the hardware."""

    heading: str
    sentences: Sequence[str]


def limits(groups: Sequence[Group]) -> list[Limits]:
    """What is known of each task; a task of which nothing is has none."""
    tasks = by_task(groups).values()
    found = []
    for members in tasks:
        told = point_told(members)
        if told is None:
            continue
        sentences = [said for rule in RULES if (said := rule(told))] + restarts(members)
        start = prefix(members, name_task=len(tasks) > 1)
        if sentences:
            found.append(Limits(f"{start}what holds {told.group.label} on {told.point.place} back", sentences))
    return found


def point_told(groups: Sequence[Group]) -> Told | None:
    """What the answer of a task is about; None where all losses disagree."""
    line = told_line(groups)
    point = line and farthest(line)
    if line and point:
        return Told(line, point, line.reference)
    best = fastest(groups)
    return Told(*best, None) if best else None


# --- one sentence each -----------------------------------------------------------------------------------------


def growth(told: Told) -> str | None:
    """How much longer a step takes than ideal scaling from the reference would make it."""
    now = told.point.spread(m.STEP_TIME_MEDIAN)
    before = told.reference.spread(m.STEP_TIME_MEDIAN) if told.reference else None
    if told.reference is None or now is None or before is None:
        return None
    if told.group.mode == STRONG:
        ideal_s = before.median * told.reference.ranks / told.point.ranks
    elif told.group.mode == ScalingMode.weak.name:
        ideal_s = before.median
    else:
        return None
    return (
        f"A step takes {shown(m.STEP_TIME_MEDIAN, now.median)} s, {significant(now.median / ideal_s, 3)} times the "
        f"{shown(m.STEP_TIME_MEDIAN, ideal_s)} s of ideal {told.group.mode} scaling from {told.reference.place}."
    )


def traffic(told: Told) -> str | None:
    """What a rank sends in a step, and over which axes that cross nodes."""
    layout = MeasuredLayout(told.group, told.point)
    if not layout.collectives:
        return None
    sent = {axis: sum(each.payload_bytes for each in layout.over(axis)) for axis in axes_of([layout])}
    crossing = [axis for axis in sent if crosses_nodes(layout, axis)]
    total = in_unit(sum(sent.values()))
    if crossing:
        part = sum(sent[axis] for axis in crossing)
        much = "all" if part == sum(sent.values()) else in_unit(part)
        where = f", {much} of it over axes that cross nodes ({', '.join(crossing)})"
    elif told.point.nodes == 1:
        where = ", all inside a node"
    else:
        where = ""
    return (
        f"A rank sends {total} a step{where}. How much of the step that takes is not recorded: part of it may "
        "hide behind computation."
    )


def slow_steps(told: Told) -> str | None:
    """Whether some steps are much slower than the median one."""
    ratios = [
        run.values[m.STEP_TIME_P90] / run.values[m.STEP_TIME_MEDIAN]
        for run in told.point.runs
        if m.STEP_TIME_P90 in run.values and m.STEP_TIME_MEDIAN in run.values
    ]
    if not ratios or statistics.median(ratios) < SLOW_STEP_RATIO:
        return None
    ratio = significant(statistics.median(ratios), 3)
    return f"Steps are uneven: the slowest tenth takes at least {ratio} times the median step."


def straggler(told: Told) -> str | None:
    """The rank or node that the others wait for, of the run that it costs most."""
    found = [(run.stragglers[0], run) for run in told.point.runs if run.stragglers]
    if not found:
        return None
    worst, run = max(found, key=lambda each: each[0].share)
    where = f", in {run.name}" if len(told.point.runs) > 1 else ""
    return f"The others wait for {who(worst)}{where}: {cost(worst)}."


def time_without_steps(told: Told) -> str | None:
    """The share of the wall time that steps have, and what takes the rest."""
    runs = [run for run in told.point.runs if run.values.get(m.TOTAL_TIME)]
    total_s = math.fsum(run.values[m.TOTAL_TIME] for run in runs)
    if not total_s:
        return None

    def share(*metrics: Metric) -> float:
        return math.fsum(run.values.get(metric, 0.0) for run in runs for metric in metrics) / total_s

    rest = [(share(metric), name) for metric, name in OTHER_PARTS]
    named = [f"{name} {percent(part)}" for part, name in sorted(rest, reverse=True) if part >= SMALLEST_SHARE]
    mean_s = significant(total_s / len(runs), 3)
    return f"Steps after the first have {percent(share(*LATER_STEPS))} of the wall time ({mean_s} s a run)" + (
        f"; {', '.join(named)}." if named else "."
    )


RULES = (growth, straggler, traffic, slow_steps, time_without_steps)


def restarts(groups: Sequence[Group]) -> list[str]:
    """What it cost that runs were started more than once, by the run that lost most."""
    runs = every_run(groups)
    known = [run for run in runs if run.attempts > 1 and m.GOODPUT in run.values]
    if not known:
        return []
    worst = min(known, key=lambda run: (run.values[m.GOODPUT], run.name))
    why = f", lost to {lost_words(worst.lost_to)}" if worst.lost_to else ""
    return [
        f"{plural(len(known), 'run')} of {len(runs):,} {'was' if len(known) == 1 else 'were'} started more than once; "
        f"the lowest goodput is {percent(worst.values[m.GOODPUT])} ({worst.name}{why})."
    ]


# --- words -----------------------------------------------------------------------------------------------------


def every_run(groups: Iterable[Group]) -> list[RunResult]:
    """The runs of all points, believed or not, each once."""
    return [run for group in groups for point in group.points for run in dict.fromkeys(point.runs + point.doubted)]


def crosses_nodes(layout: MeasuredLayout, axis: str) -> bool:
    """Whether ranks on different nodes meet on an axis; no where the plan does not tell."""
    point, grid = layout.point, layout.grid
    if point.nodes is None:
        return False
    if axis == "world":
        return (point.nodes or 1) > 1
    parts = axis.split("+")
    if not grid or not point.nodes or point.ranks % point.nodes or math.prod(grid.values()) != point.ranks:
        return False
    if not set(parts) <= grid.keys():
        return False
    placed = Layout(nodes=point.nodes, ranks_per_node=point.ranks // point.nodes, **grid)
    return any(placed.crosses_nodes(axis) for axis in AXES if axis.name in parts)


def in_unit(payload_bytes: float) -> str:
    """Bytes that are sent, with their unit."""
    return f"{shown(m.COLLECTIVE_BYTES, payload_bytes)} {unit(m.COLLECTIVE_BYTES)}"


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{significant(100 * share, 3)} %"
