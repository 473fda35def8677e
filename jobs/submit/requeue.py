"""What happens once the ranks of a run have ended: say why if they could not, and let the run go on where that helps.

The batch script calls this on its way out (`python -m jobs.submit.requeue SWEEP`), on the node where it runs, and
jobs.submit.local_queue does the same without Slurm. A run goes on in its own job, by `scontrol requeue`, so that its
id, what depends on it and its accounting stay.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit.core.utils import JobPaths
from submitit.helpers import clean_env

from jobs.errors import RunDirError, SubmitError
from jobs.failures import FailureCause, blames_node, cause_of_task, latest_attempt, record_failure, recorded_cause
from jobs.ranks import hosts, node_name, slurm_job_id
from jobs.rundir import BATCH_STARTED, RunDir, SweepDir, append_event, load_run, read_events
from jobs.submit import slurm_commands
from jobs.submit.backlog import move_on
from jobs.submit.submissions import Submission, events_since, latest_submissions, own_end

# A job may end before the shell that submitted it has written its record.
RECORD_WAIT_S = 20.0
# What another shell may take to submit what waits.
PATIENCE_S = 60.0
LONGEST_PAUSE_S = 1800
# A node is avoided from its second fault on, by all runs of the sweep.
FAULTS_OF_A_BAD_NODE = 2
TAIL_BYTES = 65536
# srun on tasks that ended badly, the first one first: "srun: error: node02: task 1: Killed", "... tasks 0-3: Exited
# with exit code 1".
DEATH = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
# On a node that stopped answering, where the job goes on without it.
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Again:
    """A run goes on by itself."""

    cause: FailureCause
    pause_s: int
    """Before it may start, so that what was wrong may pass."""
    avoided: list[str]
    """Nodes that have failed too often."""

    def words(self) -> str:
        """The same for a person."""
        pause = f", in {self.pause_s} s at the earliest" if self.pause_s else ""
        return f"the run goes on by itself after {self.cause.name}{pause}"

    def record(self, run: RunDir) -> None:
        """Tell the run's record."""
        append_event(run, "requeued", cause=self.cause.name, pause_s=self.pause_s, avoided=self.avoided or None)


def again(run: RunDir, submission: Submission, sweep: SweepDir, *, preempted: bool = False) -> Again | None:
    """Whether and how a run whose ranks have ended goes on by itself; None when it does not."""
    events = events_since(run, submission)
    end = own_end(run, submission)
    # Preemption does not count, as it does not for Slurm.
    requeues = [e for e in events if e["event"] == "requeued" and e["cause"] != FailureCause.preempted.name]
    if end is None or end["event"] == "finished" or submission.cancelled:
        return None
    launcher = load_run(run.config).launcher
    if preempted and end["event"] == "stopped" and launcher.requeues:
        return Again(FailureCause.preempted, 0, [])
    if len(requeues) >= launcher.requeues:
        return None
    cause = recorded_cause(end)
    if cause is None or not cause.retryable:
        return None
    if cause is FailureCause.time_limit:
        # From nothing but its beginning a run would reach the same limit again.
        advanced = any(event["event"] == "checkpoint" for event in latest_attempt(events))
        return Again(cause, 0, []) if advanced else None
    faults = 1 + sum(event["cause"] != FailureCause.time_limit.name for event in requeues)
    return Again(cause, min(launcher.requeue_pause_s * 2 ** (faults - 1), LONGEST_PAUSE_S), bad_nodes(sweep))


def bad_nodes(sweep: SweepDir) -> list[str]:
    """Nodes on which runs of this sweep have failed twice or more, by what the nodes did and not the program."""
    return failed_twice(event for run in sweep.runs() for event in read_events(run.status))


def failed_twice(events: Iterable[dict[str, Any]]) -> list[str]:
    """Nodes with two or more faults of their own among these events."""
    counts = Counter(str(e["node"]) for e in events if e["event"] == "failed" and "node" in e and blames_node(e))
    return sorted(node for node, faults in counts.items() if faults >= FAULTS_OF_A_BAD_NODE)


def record_silent_end(run: RunDir, submission: Submission, printed: str, restart: int | None = None) -> None:
    """Add to a run's record what its ranks could not say: which of them was killed, or ended before it could write."""
    end = own_end(run, submission)
    if end is not None and end.get("cause") != FailureCause.lost_peer.name:
        return
    lost = NODE_FAILURE.search(printed)
    if lost is not None:
        node = hosts(lost[1])[0]
        error = "srun says: Node failure"
        record_failure(
            run, FailureCause.hardware, rank=first_rank_on(run, node), node=node, error=error, restart=restart
        )
        return
    death = DEATH.search(printed)
    if death is None:
        return
    node, rank, how = death.groups()
    cause = cause_of_task(how)
    error = f"rank {rank} ended without a word of its own; srun says: {how}"
    record_failure(run, cause, rank=int(rank), node=node, error=error, restart=restart)


def first_rank_on(run: RunDir, node: str) -> int:
    """The first rank that was on a node when the ranks last met; 0 where that is not known."""
    starts = [event for event in read_events(run.status) if event["event"] == "started"]
    nodes = starts[-1]["nodes"] if starts else []
    return nodes.index(node) * (starts[-1]["ranks"] // len(nodes)) if node in nodes else 0


def main(sweep_path: str) -> None:
    """What the batch script calls."""
    job_id = slurm_job_id()
    if job_id is None:
        raise RunDirError("jobs.submit.requeue is called by a batch script, inside a Slurm job.")
    sweep = SweepDir(Path(sweep_path))
    submission = its_submission(sweep, job_id)
    if submission is None:
        raise RunDirError(f"{sweep.submissions} has no run for job {job_id}: it cannot go on by itself.")
    run = sweep.run(submission.run)
    job = slurm_commands.shown_job(job_id)
    # What is cancelled stays so, and Slurm itself starts again what somebody requeued and what lost a node.
    if job["JobState"] not in {"RUNNING", "TIMEOUT"}:
        return
    if job["JobState"] == "TIMEOUT" and own_end(run, submission) is None:
        error = "reached its time limit before the ranks came to a step boundary"
        record_failure(run, FailureCause.time_limit, rank=0, node=node_name(), error=error)
    record_silent_end(run, submission, printed_since_start(Path(JobPaths(sweep.logs, job_id, 0).stdout)))
    # A preempted job that ends within its time of grace, as ours do, is over for Slurm.
    found = again(run, submission, sweep, preempted=job.get("PreemptTime", "None") != "None")
    if found is None:
        if job["JobState"] == "RUNNING":
            send_next(sweep)
        return
    # Requeueing ends this very script.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"slurmscale: {found.words()}", flush=True)
    found.record(run)
    try:
        slurm_commands.requeue(job_id)
    except SubmitError as error:
        said = f"ended by {found.cause.name}, and Slurm does not requeue its job: {error}"
        record_failure(run, found.cause, rank=0, node=node_name(), error=said)
        raise
    # Avoiding more nodes than the job can spare would let it wait for ever.
    spare = int(slurm_commands.partitions()[job["Partition"]]["TotalNodes"]) - load_run(run.config).nodes
    slurm_commands.postpone(job_id, pause_s=found.pause_s, avoid=found.avoided if len(found.avoided) <= spare else [])


def send_next(sweep: SweepDir) -> None:
    """Let the sweep's own queue move on; the place of this very job is free only when it is over."""
    configuration = os.environ.get("SLURM_CONF")
    # A job submitted from a job would inherit its resources.
    with clean_env():
        if configuration is not None:
            os.environ["SLURM_CONF"] = configuration
        for line in move_on(sweep, patience_s=PATIENCE_S):
            print(f"slurmscale: {line}", flush=True)


def its_submission(sweep: SweepDir, job_id: str) -> Submission | None:
    """The submission that has this job id; waits for it to be on record."""
    deadline = time.monotonic() + RECORD_WAIT_S
    while True:
        found = [each for each in latest_submissions(sweep).values() if each.job_id == job_id]
        if found or time.monotonic() > deadline:
            return found[0] if found else None
        time.sleep(1)


def printed_since_start(file: Path) -> str:
    """What the batch script printed since it was last started."""
    try:
        with file.open("rb") as output:
            output.seek(max(0, file.stat().st_size - TAIL_BYTES))
            return output.read().decode(errors="replace").rpartition(BATCH_STARTED)[2]
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (RunDirError, SubmitError) as error:
        sys.exit(f"slurmscale: {error}")
