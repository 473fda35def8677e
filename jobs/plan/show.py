"""`slurmscale plan`: print the points of the overrides and their layout; prepare nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from hydra.core.global_hydra import GlobalHydra

from jobs.console import console
from jobs.engines.engine import engine_of
from jobs.frozen import dump_run
from jobs.layout import linked_ranks
from jobs.plan.compose import Point, compose
from jobs.plan.configuration_files import composing
from jobs.plan.mesh import WIDTH, draw
from jobs.plan.overrides import single
from jobs.plan.pipeline_stages import held_layers
from jobs.plan.predicted_table import energy_lines, predicted_table, step_time_table
from jobs.plan.table import memory_table, plan_notes, plan_table
from jobs.schema import Run
from jobs.work.work import work_of

# Names above a mesh that many runs share.
MOST_NAMES = 4


def planned(overrides: list[str], *, multirun: bool, skip_illegal: bool) -> tuple[list[Point], list[str]]:
    """Return the composed points, and with `skip_illegal` lines on those that are left out."""
    left_out: list[str] | None = [] if skip_illegal else None
    points = compose(overrides, multirun=multirun, to_submit=False, left_out=left_out)
    return points, left_out or []


def show(
    overrides: list[str],
    *,
    multirun: bool,
    skip_illegal: bool = False,
    values: bool = False,
    why: bool = False,
    further: Callable[[Sequence[Point]], list[str]] | None = None,
) -> int:
    """Print every value of each run if `values`, LitGPT's calls, then the plan table, warnings and each mesh once.

    With `why` also the terms of the predictions; with `skip_illegal` the points that are left out; `further` returns
    notes of what stands above the plan.
    """
    points, left_out = planned(overrides, multirun=multirun, skip_illegal=skip_illegal)
    runs = [point.run for point in points]
    out = console()
    for line in left_out:
        out.print(line, highlight=False, soft_wrap=True)
    if values:
        for run in runs:
            out.print(*([f"# {run.name}"] if len(runs) > 1 else []), dump_run(run), sep="\n")
    for run in runs:
        if (call := engine_of(run).described_call(run)) is not None:
            out.print(f"{call}\n", soft_wrap=True)
    out.print(plan_table(runs))
    if (predicted := predicted_table(runs)) is not None:
        out.print(predicted)
    for note in [*plan_notes(runs), *(further(points) if further else [])]:
        out.print(note)
    if why:
        print_terms(runs)
    unset = dict.fromkeys(key for point in points for key in point.unset)
    if unset:
        out.print(f"to submit, set also {' '.join(f'{key}=VALUE' for key in unset)}")
    for mesh, names in meshes(runs, min(WIDTH, out.width)).items():
        heading = f"\n{listed(names)}:\n" if len(runs) > 1 else "\n"
        # soft_wrap: a drawing that a narrow terminal breaks is better than one that is cut.
        out.print(heading + mesh, soft_wrap=True)
    return 0


def print_terms(runs: list[Run]) -> None:
    """Print the terms of the predictions; nothing of what no run has."""
    out = console()
    if (held := memory_table(runs)) is not None:
        out.print("\npredicted memory of the GPU with the most:", held, sep="\n")
    if (terms := step_time_table(runs)) is not None:
        out.print("\npredicted step time of the pipeline rank with the most work:", terms, sep="\n")
    for line in energy_lines(runs):
        out.print(line)


def meshes(runs: list[Run], width: int) -> dict[str, list[str]]:
    """Return every drawing once, with the names of its runs."""
    drawn = cache(draw)
    found: dict[str, list[str]] = {}
    for run in (each for each in runs if work_of(each).has_grid(each)):
        layout, heading = work_of(run).drawn_layout(run)
        drawing = heading + drawn(layout, held_layers(run), width, linked_ranks(run))
        found.setdefault(drawing, []).append(run.name or "")
    return found


def listed(names: list[str]) -> str:
    """Return names, or the first of them and the number of the others."""
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more} more of this layout" if more > 0 else shown


def show_as_hydra(
    overrides: list[str], *, cfg: str | None, package: str | None, resolve: bool, info: str | None
) -> int:
    """Print what Hydra prints for --cfg, a composed configuration in YAML, or for --info; prepare nothing."""
    with composing(overrides):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        lines = single(overrides)
        if cfg is not None:
            hydra.show_cfg("config", lines, cfg_type=cfg, package=package, resolve=resolve)
        else:
            hydra.show_info(info or "all", "config", lines)
    return 0
