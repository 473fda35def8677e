"""Jobs of a sweep that wait for one that was deleted before it ran: PBS would hold them for ever.

PBS releases what waits for the end of a job when that job has run, and deletes what waits for one that was itself held.
A job that waited for nodes and is deleted by hand (`qdel`) does neither. So the commands of whoever submitted the sweep
do what Slurm does with a dependency that cannot be met: they cancel the stages of that run, and runs whose data nobody
prepares, and let all others no longer wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.errors import SubmitError
from jobs.plan.rules.stages import OF_EACH_RUN
from jobs.rundir import SweepDir
from jobs.submit.pbs import commands
from jobs.submit.pbs.cancel import cancel_jobs
from jobs.submit.pbs.states import dependencies, jobs_before, never_ran
from jobs.submit.stage_states import StageState, latest_stages, stage_states
from jobs.submit.states import RunState, State
from jobs.submit.sweeps.ledger import record_cancelled


def settle_orphans(sweep: SweepDir, runs: Iterable[RunState]) -> list[str]:
    """Cancel or release the jobs of a sweep that would wait for ever; return sentences for the user."""
    has_stages = any(each.launcher == "pbs" for each in latest_stages(sweep).values())
    stages = {item.job_id: item.stage for item in (stage_states(sweep) if has_stages else ()) if is_queued(item)}
    queued = [*(str(item.job_id) for item in runs if is_queued(item)), *stages]
    try:
        known = commands.jobs(queued)
        before = commands.jobs({each for job in known.values() for each in jobs_before(job)} - known.keys())
    except SubmitError:
        # The states of the runs say that PBS does not answer.
        return []
    deleted = {job_id for job_id, job in before.items() if never_ran(job)}
    because = to_cancel({each: known[each] for each in queued if each in known}, stages, deleted)
    gone = deleted | because.keys()
    freed = {
        job_id: [each for each in dependencies(job).get("afterany", []) if each in deleted]
        for job_id, job in known.items()
        if job_id not in because and not gone.isdisjoint(dependencies(job).get("afterany", []))
    }
    if because:
        # From the end of the chain: none starts at the end of another one.
        cancel_jobs(sweep, reversed(because))
        record_cancelled(sweep, list(because))
    commands.wait_instead(dict.fromkeys(gone, ()), freed)
    cancelled = [
        f"cancelled job {job_id}, which waited for job {each}: that was deleted before it ran, and PBS never starts it"
        for job_id, each in because.items()
    ]
    return cancelled + [
        f"job {job_id} no longer waits for job {', '.join(those)}, deleted before it ran"
        for job_id, those in freed.items()
        if those
    ]


def is_queued(item: RunState | StageState) -> bool:
    """Return True for a job of PBS that waits; an interrupted submission may have none yet."""
    return item.launcher == "pbs" and item.state is State.queued and str(item.job_id).isdecimal()


def to_cancel(
    queued: Mapping[str, Mapping[str, Any]], stages: Mapping[str, str], deleted: Iterable[str]
) -> dict[str, str]:
    """Return the jobs that have nothing to do without a job that was deleted, each with the one that it waited for."""
    gone, because = set(deleted), {}
    for job_id, job in queued.items():
        kinds = ("afterok", "afterany") if stages.get(job_id) in OF_EACH_RUN else ("afterok",)
        for each in (each for kind in kinds for each in dependencies(job).get(kind, []) if each in gone):
            because[job_id] = each
            gone.add(job_id)
    return because
