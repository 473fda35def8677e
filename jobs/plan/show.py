"""`slurmscale plan`: what the overrides come to, without preparing anything."""

from __future__ import annotations

from jobs.compose import compose
from jobs.engines.support import unsupported
from jobs.plan.table import console, plan_notes, plan_table
from jobs.rundir import dump_run


def show(overrides: list[str], *, multirun: bool) -> int:
    """Print the plan table with its warnings and, of a single run, every value."""
    runs = [point.run for point in compose(overrides, multirun=multirun)]
    out = console()
    out.print(plan_table(runs))
    reasons = [reason for run in runs if (reason := unsupported(run))]
    for note in plan_notes(runs, dict.fromkeys(f"submit will refuse: {reason}" for reason in reasons)):
        out.print(note, markup=False)
    if len(runs) == 1:
        out.print("", dump_run(runs[0]), sep="\n", markup=False, highlight=False)
    return 0
