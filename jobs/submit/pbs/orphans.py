"""Jobs of a sweep that wait for one that was deleted before it ran: PBS would hold them for ever.

PBS releases what waits for the end of a job when that job has run, and deletes what waits for one that was itself held.
A job that waited for nodes and is deleted by hand (`qdel`) does neither. So the commands of whoever submitted the sweep
do what Slurm does with a dependency that cannot be met: they cancel the stages of that run, and runs whose data nobody
prepares, and let all others no longer wait for it.
"""

from __future__ import annotations

from typing import Any

from jobs.plan.rules.stages import OF_EACH_RUN
from jobs.rundir import SweepDir
from jobs.submit.pbs import commands
from jobs.submit.pbs.cancel import cancel_jobs
from jobs.submit.pbs.states import dependencies, never_ran, state_of
from jobs.submit.stage_states import latest_stages
from jobs.submit.sweeps.ledger import record_cancelled
from jobs.submit.sweeps.submissions import latest_submissions


def settle_orphans(sweep: SweepDir) -> list[str]:
    """Cancel or release the jobs of a sweep that would wait for ever; return sentences for the user."""
    stages = {each.job_id: key.stage for key, each in latest_stages(sweep).items() if each.launcher == "pbs"}
    runs = [each.job_id for each in latest_submissions(sweep).values() if each.launcher == "pbs"]
    # In the order of the chain: prepare, runs, and what follows each.
    order = [job_id for job_id in {**stages, **dict.fromkeys(runs)} if stages.get(job_id) == "prepare"]
    order = list(dict.fromkeys(each for each in [*order, *runs, *stages] if each.isdecimal()))
    if len(order) < 2:
        return []
    known: dict[str, dict[str, Any]] = commands.jobs(order)
    deleted = {job_id for job_id, job in known.items() if never_ran(job)}
    waiting = {job_id: dependencies(known[job_id]) for job_id in order if job_id in known and is_held(known[job_id])}
    because: dict[str, str] = {}
    for job_id, needs in waiting.items():
        kinds = ("afterok", "afterany") if stages.get(job_id) in OF_EACH_RUN else ("afterok",)
        found = [each for kind in kinds for each in needs.get(kind, []) if each in deleted or each in because]
        if found:
            because[job_id] = found[0]
    gone = deleted | because.keys()
    freed = {
        job_id: sorted(gone & set(needs.get("afterany", ())), key=int)
        for job_id, needs in waiting.items()
        if job_id not in because and gone & set(needs.get("afterany", ()))
    }
    if because:
        # From the end of the chain: none starts at the end of another one.
        cancel_jobs(sweep, reversed(because))
        record_cancelled(sweep, list(because))
    commands.wait_instead(dict.fromkeys(gone, ()), freed)
    lines = [
        f"cancelled job {job_id}, which waited for job {before}: that was deleted before it ran, so PBS would never "
        "start it"
        for job_id, before in because.items()
    ]
    for before in sorted(deleted, key=int):
        if those := [job_id for job_id, found in freed.items() if before in found]:
            lines.append(f"job {', '.join(those)} no longer wait for job {before}, which was deleted before it ran")
    return lines


def is_held(job: dict[str, Any]) -> bool:
    """Return True if a job waits for others."""
    return state_of(job).waits and bool(dependencies(job))
