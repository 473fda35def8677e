"""The table of memory and communication per rank of every layout."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from analysis.formatting import ABSENT, shown, title, unit
from analysis.report.figures.layouts import in_words
from analysis.scaling.groups import Group, by_task
from analysis.scaling.layouts import MeasuredLayout, axes_of, layouts_by_ranks
from jobs import metrics as m
from jobs.parallelism import DATA_AXES, TABLE_AXES


def memory_and_communication(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows: one row per layout and number of ranks, one column per axis.

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
    """Return name, ranks, grid and parameters of a row."""
    grid = layout.grid
    degree = grid and (prod(grid[axis.name] for axis in DATA_AXES), *(grid[axis.name] for axis in TABLE_AXES))
    return [
        layout.name + (" (loss not believed)" if layout.point.doubtful else ""),
        f"{layout.point.ranks:,}",
        " x ".join(map(str, degree)) if degree else ABSENT,
        shown(m.PARAMETERS_HELD, layout.parameters_held),
    ]


def sent_cells(layout: MeasuredLayout, axes: Sequence[str]) -> list[str]:
    """Return the bytes of a row in total, then by axis; an axis without traffic shows 0."""
    collectives = layout.collectives
    if collectives is None:
        return [ABSENT] * (1 + len(axes))
    total = shown(m.COLLECTIVE_BYTES, sum(each.payload_bytes for each in collectives))
    return [total, *("\n".join(map(in_words, layout.over(axis))) or "0" for axis in axes)]
