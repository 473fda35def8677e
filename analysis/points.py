"""The table of points: a row a point of a line, its metrics as medians with the smallest and largest repeat.

Page, Markdown, LaTeX and data frames show this one table. Called by analysis.report, latex and data_frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.formats import ABSENT, shown_spread, title
from analysis.parsers import metrics as a
from analysis.scaling import Group, Point, Spread
from jobs import metrics as m
from jobs.metrics import Metric

PLACE_HEADINGS = ("Line", "Scaling", "Nodes", "Ranks", "GBS", "n")
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
POINT_HEADINGS = (*PLACE_HEADINGS, *map(title, POINT_METRICS))


def spread_at(group: Group, point: Point, metric: Metric) -> Spread | None:
    """A metric of a point over its repeats; None where it is not known."""
    if metric is m.SPEEDUP:
        return group.speedup(point)
    if metric is m.EFFICIENCY:
        return group.efficiency(point)
    return point.spread(metric)


def point_cells(group: Group, point: Point) -> list[str]:
    """A point's cells under POINT_HEADINGS: medians, with the smallest and largest of several repeats."""
    return [
        group.label + (" (loss not believed)" if point.doubtful else ""),
        group.mode,
        f"{point.nodes:,}" if point.nodes else ABSENT,
        f"{point.ranks:,}",
        f"{point.global_batch_size:,}" if point.global_batch_size else ABSENT,
        f"{len(point.runs):,}",
        *(shown_spread(metric, spread_at(group, point, metric)) for metric in POINT_METRICS),
    ]


@dataclass(frozen=True)
class PointRow:
    """A point in the table that a page shows."""

    group: Group
    point: Point
    cells: Sequence[str]


def point_table(groups: Sequence[Group]) -> tuple[Sequence[str], Sequence[PointRow]]:
    """Headings and rows of all points, without the columns that no point has."""
    points = [(group, point) for group in groups for point in group.points]
    rows = [point_cells(group, point) for group, point in points]
    told = [i for i in range(len(POINT_HEADINGS)) if any(row[i] != ABSENT for row in rows)]
    return [POINT_HEADINGS[i] for i in told], [
        PointRow(group, point, [row[i] for i in told]) for (group, point), row in zip(points, rows, strict=True)
    ]
