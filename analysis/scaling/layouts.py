"""Layouts: the points of a task by number of ranks, and a table of what a rank of each holds and sends.

A layout is an engine with a parallelism on some ranks; it is a point of a group, so that degrees, schedules and what
else differs are told apart by the group's label.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.formatting import ABSENT, shown, title, unit
from analysis.metrics.communication import Collective, axis_order, degrees
from analysis.report.headline import by_task
from analysis.scaling.groups import Group, Point, compared
from jobs import metrics as m
from jobs.layout import DP_REPLICATE, DP_SHARD, TABLE_AXES

# A loss or a norm that is reduced: its digits in MiB would only be wide.
SMALLEST_SHOWN_BYTES, TINY = 1024, "< 0.001"


@dataclass(frozen=True)
class MeasuredLayout:
    """A point with what tells it from other layouts of as many ranks."""

    group: Group
    point: Point

    @property
    def name(self) -> str:
        """The group's label, always with its engine: engines are different code."""
        group = self.group
        return group.label if group.engine in group.label.split() else f"{group.engine} {group.label}"

    @property
    def per_rank(self) -> list[float]:
        """TOKENS_PER_S_PER_RANK of every repeat, slowest first."""
        return sorted(run.values[m.TOKENS_PER_S_PER_RANK] for run in self.point.runs)

    @property
    def choice(self) -> str:
        """Engine and parallelism as chosen; two points that differ elsewhere only are one layout."""
        settings = compared(self.point.runs[0]).items()
        return str(sorted(item for item in settings if item[0].startswith(("engine.", "parallelism."))))

    @property
    def grid(self) -> dict[str, int] | None:
        """The degree of every axis; None when no plan holds them."""
        return next((grid for run in self.point.runs if (grid := degrees(run.plan))), None)

    @property
    def parameters_held(self) -> float | None:
        """PARAMETERS_HELD, of which repeats hold the same."""
        return next((run.values[m.PARAMETERS_HELD] for run in self.point.runs if m.PARAMETERS_HELD in run.values), None)

    @property
    def collectives(self) -> tuple[Collective, ...] | None:
        """What a rank sends in a step, of which repeats send the same."""
        return next((run.collectives for run in self.point.runs if run.collectives is not None), None)

    def over(self, axis: str) -> list[Collective]:
        """What a rank sends over one axis; nothing where it is not recorded."""
        return [each for each in self.collectives or () if each.axis == axis]


def layouts_by_ranks(groups: Sequence[Group]) -> dict[int, list[MeasuredLayout]]:
    """The layouts of one task by number of ranks: the fastest first, those whose loss is not believed last."""
    by_ranks: dict[int, list[MeasuredLayout]] = defaultdict(list)
    for group in groups:
        if group.rate is m.TOKENS_PER_S:
            for point in group.points:
                by_ranks[point.ranks].append(MeasuredLayout(group, point))
    return {
        ranks: sorted(by_ranks[ranks], key=lambda each: (each.point.doubtful, -each.point.throughput.median, each.name))
        for ranks in sorted(by_ranks)
    }


def axes_of(layouts: Sequence[MeasuredLayout]) -> list[str]:
    """The axes over which any of them sends, innermost first."""
    return sorted({each.axis for layout in layouts for each in layout.collectives or ()}, key=axis_order)


def memory_and_communication(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table: one row a layout and number of ranks, one column an axis.

    A cell of an axis has one line for each collective: `all_gather 12.5 (24)`. Layouts that recorded neither have
    no row.
    """
    tasks = [layouts_by_ranks(members) for members in by_task(groups).values()]
    counted = [
        layout
        for task in tasks
        for layouts in task.values()
        for layout in layouts
        if layout.parameters_held is not None or layout.collectives is not None
    ]
    axes = axes_of(counted)
    product = " x ".join(["DP", *(axis.heading for axis in TABLE_AXES)])
    headings = ["Layout", "Ranks", product, title(m.PARAMETERS_HELD)]
    if any(layout.collectives is not None for layout in counted):
        headings += [title(m.COLLECTIVE_BYTES), *(f"over {axis}: {unit(m.COLLECTIVE_BYTES)} (calls)" for axis in axes)]
    rows = [[*held_cells(layout), *sent_cells(layout, axes)][: len(headings)] for layout in counted]
    return headings, rows


def held_cells(layout: MeasuredLayout) -> list[str]:
    """Name, ranks, grid and parameters of a row."""
    grid = layout.grid
    degree = grid and (grid[DP_REPLICATE.name] * grid[DP_SHARD.name], *(grid[axis.name] for axis in TABLE_AXES))
    return [
        layout.name + (" (loss not believed)" if layout.point.doubtful else ""),
        f"{layout.point.ranks:,}",
        " x ".join(map(str, degree)) if degree else ABSENT,
        shown(m.PARAMETERS_HELD, layout.parameters_held),
    ]


def sent_cells(layout: MeasuredLayout, axes: Sequence[str]) -> list[str]:
    """Bytes of a row in all, then by axis; an axis over which nothing is sent says 0."""
    collectives = layout.collectives
    if collectives is None:
        return [ABSENT] * (1 + len(axes))
    total = shown(m.COLLECTIVE_BYTES, sum(each.payload_bytes for each in collectives))
    return [total, *("\n".join(map(in_words, layout.over(axis))) or "0" for axis in axes)]


def in_words(collective: Collective) -> str:
    """A collective with its bytes and, in parentheses, its calls."""
    payload = shown(m.COLLECTIVE_BYTES, collective.payload_bytes)
    tiny = 0 < collective.payload_bytes < SMALLEST_SHOWN_BYTES
    return f"{collective.collective} {TINY if tiny else payload} ({collective.calls:,.0f})"
