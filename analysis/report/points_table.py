"""The table of points: a row a point of a line, its metrics as medians with the smallest and largest repeat.

Page, Markdown, LaTeX and data frames show this one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.formatting import ABSENT, shown_spread, title
from analysis.intervals import FEWEST_FOR_MEDIAN, Spread, coverage, interval_rank
from analysis.parsers import log_metrics as a
from analysis.scaling.groups import Group, Point
from jobs import metrics as m
from jobs.metrics import Metric

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


def point_table(groups: Sequence[Group]) -> tuple[Sequence[str], Sequence[PointRow]]:
    """Return headings and rows of all points: medians with the smallest and largest repeat, without empty columns."""
    points = [(group, point) for group in groups for point in group.points]
    columns = {heading: [cell(*each) for each in points] for heading, cell in PLACE_COLUMNS.items()}
    for metric in POINT_METRICS:
        columns[title(metric)] = [shown_spread(metric, spread_at(*each, metric)) for each in points]
    filled = {heading: cells for heading, cells in columns.items() if set(cells) != {ABSENT}}
    rows = [PointRow(*each, [cells[i] for cells in filled.values()]) for i, each in enumerate(points)]
    return list(filled), rows


def spread_at(group: Group, point: Point, metric: Metric) -> Spread | None:
    """Return a metric of a point over its repeats; None if unknown."""
    if metric is m.SPEEDUP:
        return group.speedup(point)
    if metric is m.EFFICIENCY:
        return group.efficiency(point)
    return point.spread(metric)


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
            f"Medians have no confidence interval: that takes {FEWEST_FOR_MEDIAN} repeats, and no point has more than "
            f"{counts[-1]}."
        )
    return (
        "CI: confidence interval of the median, by order statistics, which assumes that repeats are independent and no "
        f"distribution: {'; '.join(coverages)}; not shown where it is smallest to largest. Points of fewer than "
        f"{FEWEST_FOR_MEDIAN} repeats have none. That of a speedup or efficiency takes the reference's median as exact."
    )
