"""Record the end of a run that its ranks could not record, when the script of its PBS job exits.

The script runs this on its first node (`python -m jobs.submit.pbs.job_end SWEEP`), unless PBS asked the job to end:
then PBS has the cause. Nothing is asked of PBS here: on some sites compute nodes cannot reach the server.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from jobs.errors import RunDirError
from jobs.failure_causes import FailureCause, record_failure
from jobs.lease import successor
from jobs.output import own_program
from jobs.ranks import node_name
from jobs.rundir import RunDir, SweepDir, load_run
from jobs.submit.job_log import not_started, own_lines, printed_since_start, restarts
from jobs.submit.notices import tell_end
from jobs.submit.requeue import its_submission, record_exit_codes
from jobs.submit.submissions import Submission, own_end

# A rank that failed, as the script reports it.
ENDED = re.compile(r"^slurmscale: error: (\S+): rank (\d+): exit code (\d+)$", re.MULTILINE)


def main(sweep_path: str) -> None:
    """Record the end of this job's run, if its ranks recorded none."""
    job = re.match(r"\d+", os.environ.get("PBS_JOBID", ""))
    if job is None:
        raise RunDirError("jobs.submit.pbs.job_end runs in a job script, inside a PBS job.")
    job_id = job[0]
    sweep = SweepDir(Path(sweep_path))
    submission = its_submission(sweep, job_id)
    if submission is None:
        # The ledger no longer names the job of a run that was submitted or started again.
        return
    run, log = sweep.run(submission.run), sweep.output(job_id)
    restart = restarts(log)
    if owner := successor(run, job_id, restart):
        print(f"slurmscale: {owner.name} has taken over {run.name}; this job does not record its end")
        return
    record_end(run, submission, printed_since_start(log), restart)
    tell_end(sweep, run)


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
        main(sys.argv[1])
