"""Layouts: the points of a task by number of ranks.

A layout is an engine with a parallelism on some ranks; it is a point of a group, so the group's label distinguishes
degrees, schedules and other differing settings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.identity import compared
from analysis.metrics.communication import Collective, axis_order, degrees
from analysis.scaling.groups import Group, Point
from jobs import metrics as m


@dataclass(frozen=True)
class MeasuredLayout:
    """A point, with the properties that distinguish it from other layouts on the same number of ranks."""

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
        """The degree of every axis; None if no plan contains them."""
        return next((grid for run in self.point.runs if (grid := degrees(run.plan))), None)

    @property
    def parameters_held(self) -> float | None:
        """PARAMETERS_HELD, which is the same in all repeats."""
        return next((run.values[m.PARAMETERS_HELD] for run in self.point.runs if m.PARAMETERS_HELD in run.values), None)

    @property
    def collectives(self) -> tuple[Collective, ...] | None:
        """The collectives of a rank in a step, which are the same in all repeats."""
        return next((run.collectives for run in self.point.runs if run.collectives is not None), None)

    def over(self, axis: str) -> list[Collective]:
        """Return the collectives over one axis; empty if they are not recorded."""
        return [each for each in self.collectives or () if each.axis == axis]


def layouts_by_ranks(groups: Sequence[Group]) -> dict[int, list[MeasuredLayout]]:
    """Return the layouts of one task by number of ranks: the fastest first, those whose loss is not believed last."""
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
    """Return the axes over which any of them sends, innermost first."""
    return sorted({each.axis for layout in layouts for each in layout.collectives or ()}, key=axis_order)
