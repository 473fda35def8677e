"""Checks of the job that a user holds, and of a run in it (launcher=here)."""

from __future__ import annotations

import math

from jobs.doctor.report import Finding, Verdict
from jobs.doctor.run_checks import layout_and_batch, split_remedy
from jobs.errors import SubmitError
from jobs.schema import Run
from jobs.submit.allocations.allocation import Allocation
from jobs.submit.launchers.here import refuse_unfit, too_long


def held_job_checks(allocation: Allocation) -> list[Finding]:
    """Return what the job has."""
    share, left_s = allocation.share(), allocation.time_left_s()
    amounts = {"CPUs": share.cpus, "GPUs": share.gpus}
    known = [f"{amount} {name}" for name, amount in amounts.items() if amount is not None]
    return [
        Finding("job", f"{allocation.job_id} of {allocation.scheduler}, which runs this command"),
        Finding("nodes", f"{len(allocation.nodes)}: {allocation.shown(allocation.nodes)}"),
        Finding("each node", ", ".join(known) or f"not shown by {allocation.scheduler}"),
        Finding("time left", "no limit is known" if left_s == math.inf else f"{left_s / 60:.0f} min"),
    ]


def held_run_checks(allocation: Allocation, run: Run) -> list[Finding]:
    """Return whether the run fits into the job."""
    found = list(layout_and_batch(run))
    try:
        left_s = refuse_unfit(allocation, [run])
    except SubmitError as error:
        problem, advice = split_remedy(str(error))
        return [*found, Finding("in the job", problem, Verdict.wrong, advice)]
    longer = [Finding("time limit", line, Verdict.warning) for line in too_long(allocation, [run], left_s)]
    return [*found, Finding("in the job", f"{run.nodes} nodes of {run.ranks_per_node} ranks fit"), *longer]
