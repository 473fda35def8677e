"""Bottlenecks in sentences: slower steps, stragglers, communication, time without steps, restarts.

The sentences of a task are about the point of its headline: the one with the most ranks of its line, else the fastest.
A quantity that was not recorded has no sentence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.formatting import plural, shown, significant, unit
from analysis.report.headline import farthest, fastest, headline_line, prefix
from analysis.report.sections.goodput import lost_words
from analysis.report.sections.stragglers import cost, who
from analysis.scaling.groups import STRONG, Group, Point, by_task
from analysis.scaling.layouts import MeasuredLayout, axes_of
from jobs import metrics as m
from jobs.layout import Layout
from jobs.metrics import Metric
from jobs.parallelism import AXES
from jobs.schema import ScalingMode

# Steps are uneven if the slowest tenth takes this many times the median step.
SLOW_STEP_RATIO = 1.1
# A smaller share of the wall time is not listed.
SMALLEST_SHARE = 0.01
LATER_STEPS = (m.WARMUP_TIME, m.STEADY_TIME)
OTHER_PARTS = (
    (m.FIRST_STEP_TIME, "first step"),
    (m.STARTUP_TIME, "start-up"),
    (m.CHECKPOINT_TOTAL_TIME, "waiting for checkpoints"),
    (m.OTHER_TIME, "logging, export and closing"),
)


@dataclass(frozen=True)
class Focus:
    """The point that the sentences are about, with its line, and the reference if the line has one."""

    group: Group
    point: Point
    reference: Point | None


@dataclass(frozen=True)
class Bottlenecks:
    """The bottlenecks of a task; the heading starts with the hardware."""

    heading: str
    sentences: Sequence[str]


def bottlenecks(groups: Sequence[Group]) -> list[Bottlenecks]:
    """Return the bottlenecks of each task for which any is known."""
    tasks = by_task(groups).values()
    found = []
    for members in tasks:
        focus = focus_of(members)
        if focus is None:
            continue
        sentences = [sentence for rule in RULES if (sentence := rule(focus))] + restarts(members)
        start = prefix(members, name_task=len(tasks) > 1)
        if sentences:
            what = "bottlenecks" if start else "Bottlenecks"
            found.append(Bottlenecks(f"{start}{what} of {focus.group.label} on {focus.point.place}", sentences))
    return found


def focus_of(groups: Sequence[Group]) -> Focus | None:
    """Return the point of a task's headline; None if all losses disagree."""
    line = headline_line(groups)
    point = line and farthest(line)
    if line and point:
        return Focus(line, point, line.reference)
    best = fastest(groups)
    return Focus(*best, None) if best else None


# --- one sentence each -----------------------------------------------------------------------------------------


def growth(focus: Focus) -> str | None:
    """Compare the step time with ideal scaling from the reference."""
    now = focus.point.spread(m.STEP_TIME_MEDIAN)
    before = focus.reference.spread(m.STEP_TIME_MEDIAN) if focus.reference else None
    if focus.reference is None or now is None or before is None:
        return None
    if focus.group.mode == STRONG:
        ideal_s = before.median * focus.reference.ranks / focus.point.ranks
    elif focus.group.mode == ScalingMode.weak.name:
        ideal_s = before.median
    else:
        return None
    return (
        f"A step takes {shown(m.STEP_TIME_MEDIAN, now.median)} s, {significant(now.median / ideal_s, 3)} times the "
        f"{shown(m.STEP_TIME_MEDIAN, ideal_s)} s of ideal {focus.group.mode} scaling from {focus.reference.place}."
    )


def traffic(focus: Focus) -> str | None:
    """Report the bytes that a rank sends in a step, and how many of them over axes that cross nodes."""
    layout = MeasuredLayout(focus.group, focus.point)
    if not layout.collectives:
        return None
    sent = {axis: sum(each.payload_bytes for each in layout.over(axis)) for axis in axes_of([layout])}
    crossing = [axis for axis in sent if crosses_nodes(layout, axis)]
    total = in_unit(sum(sent.values()))
    if crossing:
        part = sum(sent[axis] for axis in crossing)
        much = "all" if part == sum(sent.values()) else in_unit(part)
        where = f", {much} of it over axes that cross nodes ({', '.join(crossing)})"
    elif focus.point.nodes == 1:
        where = ", all inside a node"
    else:
        where = ""
    return (
        f"A rank sends {total} a step{where}. The time of it is not recorded, and a part may overlap with computation."
    )


def slow_steps(focus: Focus) -> str | None:
    """Report steps that are much slower than the median one."""
    ratios = [
        run.values[m.STEP_TIME_P90] / run.values[m.STEP_TIME_MEDIAN]
        for run in focus.point.runs
        if m.STEP_TIME_P90 in run.values and m.STEP_TIME_MEDIAN in run.values
    ]
    if not ratios or statistics.median(ratios) < SLOW_STEP_RATIO:
        return None
    ratio = significant(statistics.median(ratios), 3)
    return f"Steps are uneven: the slowest tenth takes at least {ratio} times the median step."


def straggler(focus: Focus) -> str | None:
    """Report the rank or node that the others wait for, in the run with the largest share."""
    found = [(run.stragglers[0], run) for run in focus.point.runs if run.stragglers]
    if not found:
        return None
    worst, run = max(found, key=lambda each: each[0].share)
    where = f", in {run.name}" if len(focus.point.runs) > 1 else ""
    return f"The others wait for {who(worst)}{where}: {cost(worst)}."


def time_without_steps(focus: Focus) -> str | None:
    """Split the wall time into steps and the rest."""
    runs = [run for run in focus.point.runs if run.values.get(m.TOTAL_TIME)]
    total_s = math.fsum(run.values[m.TOTAL_TIME] for run in runs)
    if not total_s:
        return None

    def share(*metrics: Metric) -> float:
        return math.fsum(run.values.get(metric, 0.0) for run in runs for metric in metrics) / total_s

    rest = [(share(metric), name) for metric, name in OTHER_PARTS]
    named = [f"{name} {percent(part)}" for part, name in sorted(rest, reverse=True) if part >= SMALLEST_SHARE]
    mean_s = significant(total_s / len(runs), 3)
    return f"Steps after the first take {percent(share(*LATER_STEPS))} of the wall time ({mean_s} s a run)" + (
        f"; {', '.join(named)}." if named else "."
    )


RULES = (growth, straggler, traffic, slow_steps, time_without_steps)


def restarts(groups: Sequence[Group]) -> list[str]:
    """Report the restarts and the lowest goodput."""
    runs = [run for group in groups for run in group.repeats]
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


def crosses_nodes(layout: MeasuredLayout, axis: str) -> bool:
    """Return True if an axis has ranks on different nodes; False if the plan has no whole grid."""
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
    placed = Layout.by_name(point.nodes, point.ranks // point.nodes, grid)
    return any(placed.crosses_nodes(axis) for axis in AXES if axis.name in parts)


def in_unit(payload_bytes: float) -> str:
    """Return sent bytes with their unit."""
    return f"{shown(m.COLLECTIVE_BYTES, payload_bytes)} {unit(m.COLLECTIVE_BYTES)}"


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{significant(100 * share, 3)} %"
