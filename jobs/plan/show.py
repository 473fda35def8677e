"""`slurmscale plan`: what the overrides come to, without preparing anything."""

from __future__ import annotations

from functools import cache

from jobs.layout import layout_of
from jobs.plan.compose import compose
from jobs.plan.litgpt_arguments import described
from jobs.plan.mesh import WIDTH, draw
from jobs.plan.pipeline_stages import held_layers
from jobs.plan.table import console, plan_notes, plan_table
from jobs.rundir import dump_run
from jobs.schema import EngineKind, Run

# Names above a mesh that many runs share.
MOST_NAMES = 4


def show(overrides: list[str], *, multirun: bool) -> int:
    """Print the plan table with its warnings, every mesh once, calls of LitGPT and, of a single run, every value."""
    runs = [point.run for point in compose(overrides, multirun=multirun)]
    out = console()
    out.print(plan_table(runs))
    for note in plan_notes(runs):
        out.print(note, markup=False)
    for mesh, names in meshes(runs, min(WIDTH, out.width)).items():
        heading = f"\n{listed(names)}:\n" if len(runs) > 1 else "\n"
        # soft_wrap: a drawing that a narrow terminal breaks is better than one that is cut.
        out.print(heading + mesh, markup=False, highlight=False, soft_wrap=True)
    for run in runs:
        if run.engine.kind is EngineKind.litgpt:
            out.print(f"\n{described(run)}", markup=False, highlight=False, soft_wrap=True)
    if len(runs) == 1:
        out.print("", dump_run(runs[0]), sep="\n", markup=False, highlight=False)
    return 0


def meshes(runs: list[Run], width: int) -> dict[str, list[str]]:
    """Every drawing once, with the names of the runs it is of."""
    drawn = cache(draw)
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(drawn(layout_of(run), held_layers(run), width), []).append(run.name or "")
    return found


def listed(names: list[str]) -> str:
    """Names, or the first of them and how many more."""
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more} more of this layout" if more > 0 else shown
