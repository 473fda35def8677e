"""The table of points: one row per point of a line, its metrics as medians with the smallest and largest repeat.

It is the ranking, too: lines of a task are in the order of their highest throughput, and that row has the place of the
line by the one rule of analysis.scaling.places. Page, Markdown and LaTeX show this one table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.formatting import ABSENT, listed, shown, shown_spread, title
from analysis.intervals import FEWEST_FOR_MEDIAN, Spread, coverage, interval_rank
from analysis.parsers import log_metrics as a
from analysis.scaling.groups import Group, Point, by_task, preference
from analysis.scaling.places import highest, places, span_of_run
from jobs import metrics as m
from jobs.metrics import DeclaredMetric, Metric

PLACE, SOURCE = "Place", "Source"
MOST_SOURCES, MOST_PARTLY = 2, 3
PLACE_COLUMNS: Mapping[str, Callable[[Group, Point], str]] = {
    "Line": lambda group, point: group.label + (" (loss not believed)" if point.doubtful else ""),
    "Scaling": lambda group, _: group.stated_mode or ABSENT,
    "Nodes": lambda _, point: f"{point.nodes:,}" if point.nodes else ABSENT,
    "Ranks": lambda _, point: f"{point.ranks:,}",
    "GBS": lambda _, point: f"{point.global_batch_size:,}" if point.global_batch_size else ABSENT,
    "n": lambda _, point: f"{len(point.runs):,}",
}
POINT_METRICS = (
    m.TOKENS_PER_S,
    m.TOKENS_PER_S_PER_RANK,
    a.SAMPLES_PER_S,
    a.SAMPLES_PER_S_PER_RANK,
    a.STEPS_PER_S,
    m.STEP_TIME_MEDIAN,
    m.SPEEDUP,
    m.EFFICIENCY,
    m.MEMORY_PEAK,
    m.FINAL_LOSS,
)


@dataclass(frozen=True)
class PointRow:
    """A point in the table of points."""

    group: Group
    point: Point
    cells: Sequence[str]


def point_table(groups: Sequence[Group], *, of_steps: bool = True) -> tuple[Sequence[str], Sequence[PointRow]]:
    """Return headings and rows of all points: medians with the smallest and largest repeat, without empty columns.

    `of_steps`: the throughput of a single run has the interval of its steps.
    """
    points = [(group, point) for group in in_order(groups) for point in group.points]
    columns = {heading: [cell(*each) for each in points] for heading, cell in PLACE_COLUMNS.items()}
    standing, sources = standings(groups), {group.label: source(group) for group in groups}
    columns[PLACE] = [standing.get((group.label, point.place), ABSENT) for group, point in points]
    declared = (metric for group in groups for run in group.runs for metric in run.values)
    for metric in dict.fromkeys([*POINT_METRICS, *(each for each in declared if isinstance(each, DeclaredMetric))]):
        columns[title(metric)] = [
            shown_spread(metric, spread_at(*each, metric)) + (steps_in_words(metric, each[1]) if of_steps else "")
            for each in points
        ]
    if len(set(sources.values())) > 1:
        columns[SOURCE] = [sources[group.label] or ABSENT for group, _ in points]
    filled = {heading: cells for heading, cells in columns.items() if set(cells) != {ABSENT}}
    rows = [PointRow(*each, [cells[i] for cells in filled.values()]) for i, each in enumerate(points)]
    return list(filled), rows


def in_order(groups: Sequence[Group]) -> list[Group]:
    """Return the lines by task, in a task by unit and highest throughput; those without a believed point last."""

    def order(group: Group) -> tuple[int, float, str]:
        best = highest(group.points)
        return preference(group.rate), -best.throughput.median if best else math.inf, group.label

    return [group for task in by_task(groups).values() for group in sorted(task, key=order)]


def standings(groups: Sequence[Group]) -> dict[tuple[str, str], str]:
    """Return the place of each line at its highest point, among the lines of its task and unit: `1 to 2 of 3`."""
    found: dict[tuple[str, str], str] = {}
    for task in by_task(groups).values():
        by_unit: dict[Metric, list[tuple[Group, Point]]] = defaultdict(list)
        for group in task:
            if point := highest(group.points):
                by_unit[group.rate].append((group, point))
        for lines in by_unit.values():
            if len(lines) == 1:
                continue
            for (group, point), (best, worst) in zip(lines, places([point for _, point in lines]), strict=True):
                which = f"{best}" if best == worst else f"{best} to {worst}"
                found[group.label, point.place] = f"{which} of {len(lines)}"
    return found


def source(group: Group) -> str:
    """Return the submitters of a line, or the directories of its logs; empty for runs of ours."""
    logs = [run for run in group.runs if run.log is not None]
    known = {str(run.setting("system.organization") or run.path.parent.name) for run in logs}
    return listed(sorted(name for name in known if name not in group.model), MOST_SOURCES)


def steps_in_words(metric: Metric, point: Point) -> str:
    """Return the span that the steps of a single run leave to its rate: ` (steps 5,200 to 5,400)`."""
    if metric is not point.rate or len(point.runs) > 1:
        return ""
    found = span_of_run(point.runs[0], point.throughput.median)
    ends = [shown(metric, end) for end in found or ()]
    return f" (steps {ends[0]} to {ends[1]})" if ends and ends[0] != ends[1] else ""


def spread_at(group: Group, point: Point, metric: Metric) -> Spread | None:
    """Return a metric of a point over its repeats; None if unknown."""
    if metric is m.SPEEDUP:
        return group.speedup(point)
    if metric is m.EFFICIENCY:
        return group.efficiency(point)
    # Steps are compared only where nothing else is known.
    return None if metric is a.STEPS_PER_S and group.rate is not metric else point.spread(metric)


def results_note(groups: Sequence[Group]) -> str:
    """Return the note of the table: rows, places, intervals, parts of nodes."""
    ranked = ""
    if len(groups) > 1:
        ranked = " Place: of the line at its highest point, in its task; lines that share places cannot be told apart."
    return (
        "One row per point: the median over n repeats, below it the smallest and the largest; of a single run the span "
        "that its steps leave. Speedup and efficiency are against the point with the fewest ranks of the same line. A "
        f"line contains runs that differ only in ranks and repeats.{ranked} {interval_words(groups)}"
        f"{parts_of_nodes(groups)}"
    )


def parts_of_nodes(groups: Iterable[Group]) -> str:
    """Return the points that used a part of their nodes; no log and no run records the reason."""
    partly: dict[str, dict[str, None]] = defaultdict(dict)
    for group in groups:
        for run in group.runs:
            used, of = run.setting("ranks_per_node"), run.setting("cluster.ranks_per_node")
            if isinstance(used, int) and isinstance(of, int) and used < of:
                partly[f"{used} of {of} ranks of a node"][group.label] = None
    if not partly:
        return ""
    facts = [f"{fact}: {listed(list(lines), MOST_PARTLY)}" for fact, lines in partly.items()]
    return f" Not the whole machine ({'; '.join(facts)}): give the reason where you publish this."


def interval_words(groups: Iterable[Group]) -> str:
    """Return the confidence interval of the medians and its coverage, by number of repeats."""
    counts = sorted({len(point.runs) for group in groups for point in group.points})
    if not counts:
        return ""
    coverages = [
        f"n = {n}: repeats {k} to {n + 1 - k} by size, {100 * coverage(n, k):.1f} %"
        for n in counts
        if (k := interval_rank(n))
    ]
    if not coverages:
        return (
            f"Medians have no confidence interval: without an assumed distribution that takes {FEWEST_FOR_MEDIAN} "
            f"repeats, and no point has more than {counts[-1]}."
        )
    return (
        "CI: confidence interval of the median, by order statistics, which assumes that repeats are independent and no "
        f"distribution: {'; '.join(coverages)}; not shown where it is smallest to largest. Points of fewer than "
        f"{FEWEST_FOR_MEDIAN} repeats have none. That of a speedup or efficiency takes the reference's median as exact."
    )
