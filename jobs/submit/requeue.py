"""After the ranks of a run have ended: record the cause if they could not, and requeue the run if a restart may help.

The batch script runs this when it exits (`python -m jobs.submit.requeue SWEEP`), on its node; jobs.submit.local_queue
does the same without Slurm. A run restarts in its own job, with `scontrol requeue`: job id, dependencies and accounting
stay.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import Timeout

from jobs.errors import RunDirError, SubmitError, SuiteError
from jobs.failure_causes import (
    FailureCause,
    blames_node,
    cause_of_task,
    latest_attempt,
    record_failure,
    recorded_cause,
)
from jobs.lease import successor
from jobs.output import own_program
from jobs.ranks import hosts, node_name, restart_count, scheduled_job_id
from jobs.run_events import events_or_failure
from jobs.rundir import RunDir, SweepDir, append_event, load_run
from jobs.schema import Run
from jobs.submit.decision.decide import decide, repeated_step
from jobs.submit.job_state import SUSPENDED
from jobs.submit.notices import tell_end, tell_restart
from jobs.submit.scheduler_call import BATCH_S, AwayError, patience
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.job_log import DEATH, EXECVE, NODE_FAILURE, not_started, own_lines, printed_since_start
from jobs.submit.sweeps.backlog import submit_backlog
from jobs.submit.sweeps.intents import adopt_own
from jobs.submit.sweeps.ledger import held
from jobs.submit.sweeps.submissions import Submission, events_since, intents, latest_submissions, own_end, own_mark
from jobs.work.work import work_of

# A job may end before the shell that submitted it has recorded it.
RECORD_WAIT_S = 20.0
# Another shell may need this long to submit the backlog.
PATIENCE_S = 60.0
LONGEST_PAUSE_S = 1800
# Ends by a signal, which Slurm may have sent.
BY_SIGNAL = {FailureCause.killed, FailureCause.cancelled, FailureCause.time_limit}
# All runs of the sweep avoid a node from its second fault on.
FAULTS_OF_A_BAD_NODE = 2
LATE = "reached its time limit before the ranks reached a step boundary"


@dataclass(frozen=True)
class Restart:
    """A restart of a run without the user."""

    cause: FailureCause
    pause_s: int
    """Seconds before the restart, so that a transient fault may pass."""
    avoided: list[str]
    """Nodes with too many faults."""
    fault_time: str | None = field(default=None, compare=False)
    """When the first rank recorded that it failed; None if none did."""
    in_job: str | None = None
    """The job in which it takes place, without the queue; None: Slurm starts the job again."""
    left_out: Sequence[str] = ()
    """The nodes that a restart in the job leaves out."""
    instead: Sequence[str] = ()
    """The spare nodes that take their place."""

    def sentence(self) -> str:
        """Return a sentence for the log."""
        pause = f", in {self.pause_s} s at the earliest" if self.pause_s else ""
        spares = f": {', '.join(self.instead)} instead of {', '.join(self.left_out)}" if self.instead else ""
        here = f", in this job{spares}" if self.in_job else ""
        return f"the run restarts by itself after {self.cause.name}{pause}{here}"

    def record(self, run: RunDir) -> None:
        """Append the restart to the events of the run."""
        event: dict[str, Any] = {"cause": self.cause.name, "pause_s": self.pause_s, "avoided": self.avoided or None}
        event |= {"fault_time": self.fault_time} if self.fault_time else {}
        if self.in_job:
            event |= {"in_job": self.in_job, "left_out": list(self.left_out), "instead": list(self.instead)}
        append_event(run, "requeued", **event)


def planned_restart(
    run: RunDir, submission: Submission, sweep: SweepDir, *, preempted: bool = False, unasked: bool = False
) -> Restart | None:
    """Return how a run whose ranks have ended restarts; None if it does not.

    Slurm's own record of the job decides: with `preempted` it ended the ranks, whatever they could record; with
    `unasked` neither Slurm nor a user has asked it to end, so a signal to end must not be the last word.
    """
    events = events_since(run, submission)
    end = own_end(run, submission)
    # Preemptions do not count, as in Slurm.
    requeues = [e for e in events if e["event"] == "requeued" and e["cause"] != FailureCause.preempted.name]
    if submission.cancelled or (end is not None and end["event"] == "finished"):
        return None
    try:
        launcher = load_run(run.config).launcher
    except SuiteError:
        # Its configuration was damaged since: every start would be refused.
        return None
    # Whatever the ranks recorded while they were killed. The nodes are needed by others, not at fault: no pause.
    if preempted and launcher.requeues:
        return Restart(FailureCause.preempted, 0, [])
    if end is None or len(requeues) >= launcher.requeues:
        return None
    cause = FailureCause.killed if unasked and was_asked_to_end(end) else recorded_cause(end)
    if cause is None or not decide(cause, repeated_step(run, events)).restart:
        return None
    if cause is FailureCause.time_limit:
        # Without a new checkpoint the run would reach the same limit again.
        advanced = any(event["event"] == "checkpoint" for event in latest_attempt(events))
        return Restart(cause, 0, []) if advanced else None
    # A time limit is not a fault. With each fault the pause doubles: a file system or switch that is away for minutes
    # would otherwise use up all restarts within seconds.
    faults = 1 + sum(event["cause"] != FailureCause.time_limit.name for event in requeues)
    pause_s = min(launcher.requeue_pause_s * 2 ** (faults - 1), LONGEST_PAUSE_S)
    failures = (event for event in latest_attempt(events) if event["event"] == "failed")
    return Restart(cause, pause_s, bad_nodes(sweep), fault_time=next((event.get("time") for event in failures), None))


def restarts_before(run: RunDir, job_id: str) -> int:
    """Return the restarts before the present start of a run in this job: by Slurm, and inside the job."""
    return restart_count() + sum(1 for event in events_or_failure(run) if event.get("in_job") == job_id)


def was_asked_to_end(end: Mapping[str, Any]) -> bool:
    """Return True for an end after a signal whose sender is not known, such as SIGTERM."""
    cause = recorded_cause(end)
    return cause is FailureCause.cancelled or (end["event"] == "stopped" and cause is None)


def end_by_slurm(job: Mapping[str, str]) -> FailureCause | None:
    """Return the reason for which Slurm ends a job, from the fields of `scontrol show job`; None if it does not.

    While the batch script still runs, a job that Slurm ends is COMPLETING, and one that is preempted with a grace time
    is RUNNING.
    """
    state, at = job["JobState"], job.get("PreemptTime", "None")
    # Slurm writes both in local time. A requeued job may keep the time of an earlier preemption.
    if state == "PREEMPTED" or (at[:1].isdigit() and at >= job.get("StartTime", "")):
        return FailureCause.preempted
    if state in {"TIMEOUT", "DEADLINE"} or job.get("Reason") == "TimeLimit":
        return FailureCause.time_limit
    if state == "NODE_FAIL":
        return FailureCause.node_failure
    if state in {"COMPLETING", "CANCELLED"}:
        return FailureCause.cancelled
    return None if state in {"RUNNING", *SUSPENDED} else FailureCause.requeued


def bad_nodes(sweep: SweepDir) -> list[str]:
    """Return the nodes with two or more faults in this sweep; errors of the program do not count."""
    return failed_twice(event for run in sweep.runs() for event in events_or_failure(run))


def failed_twice(events: Iterable[dict[str, Any]]) -> list[str]:
    """Return the nodes with two or more faults of their own among these events."""
    counts = Counter(str(e["node"]) for e in events if e["event"] == "failed" and "node" in e and blames_node(e))
    return sorted(node for node, faults in counts.items() if faults >= FAULTS_OF_A_BAD_NODE)


def record_silent_end(
    run: RunDir,
    submission: Submission,
    printed: str,
    restart: int | None = None,
    by_slurm: FailureCause | None = None,
) -> None:
    """Record the end that the ranks could not write: a failed set-up or start, or the first lost rank or node.

    `by_slurm` is the reason for which Slurm ended the ranks, if its record has one: a signal is then no node's fault.
    """
    if ranks_named_cause(run, submission):
        return
    unstarted = not_started(printed)
    if unstarted is not None:
        record_failure(run, FailureCause.launch_failure, rank=0, node=node_name(), error=unstarted, restart=restart)
        return
    # Before single deaths: srun ends all other tasks after a node failure, and their lines would blame healthy nodes.
    lost = NODE_FAILURE.search(printed)
    if lost is not None:
        node = hosts(lost[1])[0]
        error = "srun reports: Node failure"
        record_failure(
            run, FailureCause.hardware, rank=first_rank_on(run, node), node=node, error=error, restart=restart
        )
        return
    # The end of a rank that recorded its lost peer is a consequence, whichever end srun reports first.
    recorded = {str(event.get("rank")) for event in latest_attempt(events_since(run, submission))}
    deaths = [
        (node, rank, how, cause_of_task(how)) for node, rank, how in DEATH.findall(printed) if rank not in recorded
    ]
    if not deaths:
        return
    # After the first death srun asks the other tasks to end; their lines may come first.
    node, rank, how, cause = min(deaths, key=lambda death: death[3] is FailureCause.cancelled)
    error = f"rank {rank} ended without recording a cause; srun reports: {how}"
    missing = EXECVE.search(printed)
    if missing is not None:
        cause = FailureCause.launch_failure
        error = (
            f"srun cannot start {missing[1]} ({missing[2]}). Set cluster.python to a Python that every node has, or "
            "load it in cluster.modules or cluster.setup"
        )
    elif by_slurm is not None and cause in BY_SIGNAL:
        cause = by_slurm
        error = f"Slurm ended the ranks ({cause.word}) before they could record it; srun reports: {how}"
    elif rank == "0" and cause is FailureCause.code and (lines := own_lines(printed)):
        error += f"; the last line of its log: {lines[-1]}"
    record_failure(run, cause, rank=int(rank), node=node, error=error, restart=restart)


def record_exit_codes(
    run: RunDir,
    submission: Submission,
    exit_codes: Sequence[int | None],
    nodes: Mapping[int, str] | None = None,
    restart: int | None = None,
) -> None:
    """Record the end that the ranks could not write, from their exit codes; `nodes` are those of ranks elsewhere.

    A code is -N after signal N, and None if the rank still ran at the time limit; without codes their parent died.
    """
    if ranks_named_cause(run, submission):
        return
    at = nodes or {}

    def record(cause: FailureCause, rank: int, error: str) -> None:
        record_failure(run, cause, rank=rank, node=at.get(rank, node_name()), error=error, restart=restart)

    # A rank that lost its peer may abort itself, so SIGABRT comes last; one that starts exits with 128 and the signal.
    ended = [(rank, code) for rank, code in enumerate(exit_codes) if code]
    signalled = [(code == -signal.SIGABRT, rank, number) for rank, code in ended if (number := signal_of(code))]
    if signalled:
        _, rank, number = min(signalled)
        how = signal.strsignal(number) or "unknown"
        error = f"rank {rank} ended without recording a cause: signal {number} ({how})"
        record(cause_of_task(how), rank, error)
    elif own_end(run, submission) is not None:
        return  # a rank lost a peer that ended by itself
    elif None in exit_codes:
        record(FailureCause.time_limit, exit_codes.index(None), LATE)
    elif exit_codes:
        rank, code = next(iter(ended), (0, 0))
        error = f"rank {rank} ended without recording a cause: exit code {code}"
        record(FailureCause.code, rank, error)
    else:
        record(
            FailureCause.killed, 0, "ended without recording a cause: the process that had started the ranks was killed"
        )


def signal_of(exit_code: int) -> int:
    """Return the signal that ended a process, or that it reports by 128 and its number; 0 for another exit code."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if number in set(signal.Signals) else 0


def ranks_named_cause(run: RunDir, submission: Submission) -> bool:
    """Return True if the ranks recorded how they ended, and more than that they lost a peer."""
    end = own_end(run, submission)
    return end is not None and end.get("cause") != FailureCause.lost_peer.name


def first_rank_on(run: RunDir, node: str) -> int:
    """Return the first rank of a node at the latest start of the ranks; 0 if it is not known."""
    starts = [event for event in events_or_failure(run) if event["event"] == "started"]
    nodes = starts[-1]["nodes"] if starts else []
    return nodes.index(node) * (starts[-1]["ranks"] // len(nodes)) if node in nodes else 0


def main(sweep_path: str) -> None:
    """Record the end of this job's run; requeue the run, or submit the backlog of the sweep.

    In this order: another start may own the run by now; Slurm's record shows who ended the ranks, and whether Slurm
    restarts the job itself; then the end is recorded that the ranks could not write; then a restart is decided.
    """
    job_id = scheduled_job_id()
    if job_id is None:
        raise RunDirError("jobs.submit.requeue runs in a batch script, inside a Slurm job.")
    sweep = SweepDir(Path(sweep_path))
    submission = its_submission(sweep, job_id)
    # The ledger no longer names the job of a run that was submitted or started again.
    for run in sweep.runs() if submission is None else [sweep.run(submission.run)]:
        if owner := successor(run, job_id, restarts_before(run, job_id)):
            print(f"slurmscale: {owner.name} has taken over {run.name}; this job neither records nor restarts it")
            return
    if submission is None:
        raise RunDirError(f"{sweep.submissions} has no run for job {job_id}: it cannot be requeued.")
    run = sweep.run(submission.run)
    printed, restart = printed_since_start(sweep.output(job_id)), restarts_before(run, job_id)
    job = shown_or_recorded(run, submission, printed, job_id)
    by_slurm = end_by_slurm(job)
    # A cancelled job stays cancelled. Slurm itself restarts a job that was requeued or lost a node; it may already run
    # again if this node was cut off.
    if by_slurm not in {None, FailureCause.preempted, FailureCause.time_limit} or is_restarted(job):
        return
    if by_slurm is FailureCause.time_limit and own_end(run, submission) is None:
        record_failure(run, FailureCause.time_limit, rank=0, node=node_name(), error=LATE, restart=restart)
    record_silent_end(run, submission, printed, restart=restart, by_slurm=by_slurm)
    # Slurm does not requeue a preempted job that ends within its grace time, as ours do.
    found = planned_restart(
        run, submission, sweep, preempted=by_slurm is FailureCause.preempted, unasked=by_slurm is None
    )
    if found is None:
        end = own_end(run, submission)
        if end is not None and end["event"] == "failed":
            reason, _, _ = end["error"].partition("\n")
            print(f"slurmscale: {run.name} does not restart: {reason}", flush=True)
            cause = recorded_cause(end)
            decision = cause and decide(cause, repeated_step(run, events_since(run, submission)))
            if decision and not decision.restart:
                print(f"slurmscale: {decision.words}", flush=True)
        tell_end(sweep, run)
        if by_slurm is None:
            send_next(sweep)
        return
    # A job that avoids more nodes than it can spare would wait for ever.
    avoid = found.avoided
    if avoid:
        avoid = avoid if len(avoid) <= nodes_to_spare(load_run(run.config), job["Partition"]) else []
    # Requeueing ends this script with SIGTERM, and KillWait later with SIGKILL: in between the job is postponed, which
    # Slurm allows only once it is pending again.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"slurmscale: {found.sentence()}", flush=True)
    # On record before the requeue, after which this script may end at any moment: restarts are counted by these events.
    found.record(run)
    tell_restart(run)
    try:
        slurm_commands.requeue(job_id, restart=restart_count())
    except SubmitError as error:
        reason = f"ended by {found.cause.name}, and Slurm does not requeue its job: {error}"
        record_failure(run, found.cause, rank=0, node=node_name(), error=reason, restart=restart)
        raise
    slurm_commands.postpone(job_id, pause_s=found.pause_s, avoid=avoid)


def nodes_to_spare(run: Run, partition: str) -> int:
    """Return how many nodes of its partition the job of a run can do without; of several partitions the least."""
    known = slurm_commands.partitions()
    first, *others = work_of(run).components(run)
    components = [replace(first, partition=partition), *others]
    return min(int(known[each.partition or partition]["TotalNodes"]) - each.nodes for each in components)


def shown_or_recorded(run: RunDir, submission: Submission, printed: str, job_id: str) -> dict[str, str]:
    """Return Slurm's record of this job. If Slurm does not answer, first record the end by what srun printed.

    A controller that restarts is away for minutes, and a batch script that ends without a record and a requeue would
    leave the run lost.
    """
    try:
        with patience(0):
            return slurm_commands.shown_job(job_id)
    except SubmitError as error:
        record_silent_end(run, submission, printed, restart=restarts_before(run, job_id))
        if not isinstance(error, AwayError):
            raise
    return slurm_commands.shown_job(job_id)


def is_restarted(job: Mapping[str, str]) -> bool:
    """Return True if Slurm has started this job again, on other nodes, or is about to."""
    return job.get("Restarts", "0") != str(restart_count())


def send_next(sweep: SweepDir) -> None:
    """Submit the backlog of the sweep; the place of this job itself is free only after its end."""
    for line in submit_backlog(sweep, patience_s=PATIENCE_S):
        print(f"slurmscale: {line}", flush=True)


def its_submission(sweep: SweepDir, job_id: str) -> Submission | None:
    """Return the submission with this job id; adopts the job if the shell that submitted it died before its record.

    Waits RECORD_WAIT_S for a shell that still submits; returns None for a job that no intent names.
    """
    deadline = time.monotonic() + RECORD_WAIT_S
    while True:
        found = [each for each in latest_submissions(sweep).values() if each.job_id == job_id]
        incomplete = any(intent.mark == own_mark() for intent in intents(sweep))
        if (found and not incomplete) or time.monotonic() > deadline:
            return found[0] if found else None
        with suppress(Timeout), held(sweep, patience_s=1):
            adopt_own(sweep, job_id)


if __name__ == "__main__":
    with own_program(), patience(BATCH_S):
        main(sys.argv[1])
