"""When the ranks of a PBS job have ended: record the cause if they could not, and decide whether the run starts again.

The script of the job runs this on its first node (`python -m jobs.submit.pbs.job_end SWEEP SECONDS`), unless PBS asked
the job to end: then PBS has the cause. SECONDS are left until the ranks are asked to stop. Users have no right to
requeue a job of PBS, so the script itself starts the run again if this exits with AGAIN. Nothing is asked of PBS here,
unless cluster.pbs_resubmit says that compute nodes reach the server.
"""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

from filelock import Timeout

from jobs.errors import RunDirError, SubmitError, SuiteError
from jobs.failure_causes import FailureCause, latest_attempt, record_failure
from jobs.lease import successor
from jobs.output import own_program
from jobs.ranks import node_name
from jobs.rundir import RunDir, SweepDir, load_run, load_to_launch
from jobs.schema import LauncherKind, Stages
from jobs.submit.launch import launch
from jobs.submit.notices import tell_end, tell_restart
from jobs.submit.pbs import commands
from jobs.submit.pbs.batch_script import AGAIN
from jobs.submit.pbs.states import jobs_after
from jobs.submit.requeue import PATIENCE_S, its_submission, planned_restart, record_exit_codes
from jobs.submit.slurm.job_log import not_started, own_lines, printed_since_start, restarts
from jobs.submit.sweeps.ledger import held
from jobs.submit.sweeps.submissions import Submission, events_since, latest_submissions, own_end

# A start that has less time would hardly reach its next checkpoint.
LEAST_S = 60
# A rank that failed, as the script reports it.
ENDED = re.compile(r"^slurmscale: error: (\S+): rank (\d+): exit code (\d+)$", re.MULTILINE)


def main(sweep_path: str, left_s: float) -> int:
    """Record the end of this job's run, if its ranks recorded none; return AGAIN, after a pause, if it starts again."""
    job = re.match(r"\d+", os.environ.get("PBS_JOBID", ""))
    if job is None:
        raise RunDirError("jobs.submit.pbs.job_end runs in a job script, inside a PBS job.")
    job_id = job[0]
    sweep = SweepDir(Path(sweep_path))
    submission = its_submission(sweep, job_id)
    if submission is None:
        # The ledger no longer names the job of a run that was submitted or started again.
        return 0
    run, log = sweep.run(submission.run), sweep.output(job_id)
    restart = restarts(log)
    if owner := successor(run, job_id, restart):
        print(f"slurmscale: {owner.name} has taken over {run.name}; this job neither records nor restarts it")
        return 0
    record_end(run, submission, printed_since_start(log), restart)
    # PBS did not ask the job to end.
    found = planned_restart(run, submission, sweep, unasked=True)
    if found is not None and left_s - found.pause_s < LEAST_S:
        if load_run(run.config).cluster.pbs_resubmit and resubmitted(run, submission, sweep):
            return 0
        print(f"slurmscale: {run.name} does not restart in this job, which has {max(left_s, 0):.0f} s left; "
              f"`slurmscale resume {sweep.quoted}` continues it")  # fmt: skip
        found = None
    if found is None:
        tell_end(sweep, run)
        return 0
    print(f"slurmscale: {found.sentence()}", flush=True)
    # The job keeps its nodes, and has no others.
    replace(found, avoided=[]).record(run)
    tell_restart(run)
    time.sleep(found.pause_s)
    return AGAIN


def resubmitted(run: RunDir, submission: Submission, sweep: SweepDir) -> bool:
    """Submit the rest of a run as another job, and return True; False without a new checkpoint, or if PBS refuses.

    Without a new checkpoint the next job would end where this one did.
    """
    if not any(event["event"] == "checkpoint" for event in latest_attempt(events_since(run, submission))):
        return False
    try:
        with held(sweep, patience_s=PATIENCE_S):
            # Without stages, which are in the queue.
            lines = launch(sweep, [(replace(load_to_launch(run), stages=Stages()), run)], LauncherKind.pbs)
    except (SuiteError, Timeout) as error:
        print(f"slurmscale: {run.name} cannot be submitted from this node: {error}")
        return False
    print(f"slurmscale: {run.name} goes on in another job: {', '.join(lines)}", flush=True)
    try:
        hand_over(submission.job_id, latest_submissions(sweep)[run.name].job_id)
    except SubmitError as error:
        print(f"slurmscale: what waits for the end of {run.name} starts when this job has ended: {error}; "
              f"`slurmscale resume {sweep.quoted}` submits the stages that started too early again")  # fmt: skip
    return True


def hand_over(job_id: str, next_id: str) -> None:
    """Let the jobs that wait for the end of a job, stages and runs, wait for that of the next one; this one still runs.

    Raises SubmitError if PBS refuses.
    """
    waiting = [each for job in commands.jobs([job_id]).values() for each in jobs_after(job)]
    if waiting:
        commands.wait_instead({job_id: [next_id]}, waiting)


def record_end(run: RunDir, submission: Submission, printed: str, restart: int) -> None:
    """Record the end that the ranks could not write; `printed` is the output of the job since the start."""
    if unstarted := not_started(printed):
        record_failure(run, FailureCause.launch_failure, rank=0, node=node_name(), error=unstarted, restart=restart)
    elif ends := ended_ranks(printed):
        codes = [ends.get(rank, ("", 0))[1] for rank in range(load_run(run.config).ranks)]
        at = {rank: node for rank, (node, _) in ends.items()}
        record_exit_codes(run, submission, codes, nodes=at, restart=restart)
    elif own_end(run, submission) is None:
        lines = own_lines(printed)
        last = f"; the last line of its log: {lines[-1]}" if lines else ""
        error = f"the script of the job ended, and no rank recorded an end{last}"
        record_failure(run, FailureCause.launch_failure, rank=0, node=node_name(), error=error, restart=restart)


def ended_ranks(printed: str) -> dict[int, tuple[str, int]]:
    """Return node and exit code of each rank that failed, as the script printed them."""
    return {int(rank): (node, int(code)) for node, rank, code in ENDED.findall(printed)}


if __name__ == "__main__":
    with own_program():
        sys.exit(main(sys.argv[1], float(sys.argv[2])))
