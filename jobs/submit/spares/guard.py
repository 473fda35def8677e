"""The step that stands in for the batch script of a job with spare nodes, if the node of that script dies.

Such a job outlives its nodes (--no-kill), the one of its batch script included: Slurm would keep the others until the
time limit, with nobody to start the ranks. So jobs.submit.spares.job starts this on another node, where it does what
the end of the batch script would have done: Slurm starts the job again, or the job ends.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

from jobs.errors import RunDirError, SubmitError
from jobs.failure_causes import FailureCause, record_failure
from jobs.output import own_program
from jobs.ranks import hosts, scheduled_job_id
from jobs.run_events import events_or_failure
from jobs.rundir import RunDir
from jobs.submit import requeue
from jobs.submit.scheduler_call import BATCH_S, patience
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.call import ask

# One call of Slurm each time.
LOOK_S = 30.0


def dead_batch_host(job_id: str) -> str | None:
    """Return the node of the batch script if the job has lost it; None if it has not, or if Slurm does not answer."""
    with suppress(SubmitError):
        job = slurm_commands.shown_job(job_id)
        host = job.get("BatchHost")
        if job["JobState"] == "RUNNING" and host is not None and host not in hosts(job["NodeList"]):
            return host
    return None


def main(run_directory: str) -> None:
    """Wait until the node of the batch script has died; then record that, and requeue the job or end it."""
    job_id = scheduled_job_id()
    if job_id is None:
        raise RunDirError("jobs.submit.spares.guard runs as a step of a Slurm job.")
    run = RunDir(Path(run_directory))
    while (host := dead_batch_host(job_id)) is None:
        time.sleep(LOOK_S)
    restart = requeue.restarts_before(run, job_id)
    if not any(event["event"] == "finished" for event in events_or_failure(run)):
        error = f"{host}, the node of the batch script, died"
        rank = requeue.first_rank_on(run, host)
        record_failure(run, FailureCause.node_failure, rank=rank, node=host, error=error, restart=restart)
    with patience(BATCH_S):
        requeue.main(str(run.path.parent))
        if events_or_failure(run)[-1]["event"] != "requeued":
            ask("scancel", job_id)


if __name__ == "__main__":
    with own_program():
        main(sys.argv[1])
