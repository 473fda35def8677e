"""The program inside the job of launcher=pilot: gives its nodes to waiting runs until none is left or time is over.

The batch script (jobs.submit.launchers.pilot, pbs_pilot) starts it on the first node; each run has nodes of its own, on
Slurm as a step of the job. The script names the code of each run on standard input; that of a PBS job also passes the
seconds that are left of it. Its state is the ledger and the records of the runs: a pilot that its scheduler restarts
continues with the runs that have not ended. In an allocation that a user holds, held.py does the same.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.errors import RunDirError, SubmitError, SuiteError
from jobs.failure_causes import FailureCause, blames_node, record_failure, recorded_cause
from jobs.lease import successor
from jobs.output import open_to_append, own_program
from jobs.plan.time_limit import stop_before_limit_s
from jobs.ranks import LOCAL_RESTART_COUNT, hosts, node_name, restart_count, scheduled_job_id
from jobs.rundir import RunDir, SweepDir, append_event, append_record, event_record, read_events
from jobs.schema import Run
from jobs.submit.allocations import allocation
from jobs.submit.allocations.allocation import Allocation, SlurmAllocation
from jobs.submit.allocations.packing import Point, pack
from jobs.submit.allocations.pbs import PbsAllocation
from jobs.submit.launchers.pilot import whole
from jobs.submit.notices import tell_end, tell_restart
from jobs.submit.requeue import failed_twice, its_submission, planned_restart
from jobs.submit.scheduler_call import BATCH_S, patience
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.job_log import printed_since_start
from jobs.submit.sweeps.submissions import Submission, events_since, latest_submissions, own_end
from jobs.submit.trust.integrity import refuse_changed, submitted_run

POLL_S = 0.5


@dataclass
class Turn:
    """A run that waits for nodes."""

    run: Run
    directory: RunDir
    launches: int
    not_before: float = 0.0
    failed_on: frozenset[str] = frozenset()

    @property
    def until_stop_s(self) -> float:
        """Seconds after its start at which it is asked to stop at the latest."""
        return self.run.wall_time_min * 60 - stop_before_limit_s(self.run)

    def has_time(self, now: float, stop_at: float) -> bool:
        """Return True if its whole time limit fits before all runs are asked to stop."""
        return max(now, self.not_before) + self.until_stop_s <= stop_at


@dataclass
class Step:
    """A run that has nodes."""

    turn: Turn
    started_as: allocation.Turn
    process: subprocess.Popen[bytes]
    output: Path
    started: float = field(default_factory=time.monotonic)
    asked: bool = False
    """True if it was asked to stop."""

    @property
    def nodes(self) -> list[str]:
        """The nodes that it has."""
        return self.started_as.nodes


class Pilot:
    """One job, its nodes, and the runs that wait for them and run on them."""

    def __init__(self, sweep: SweepDir, allocation: Allocation, codes: Mapping[str, str]) -> None:
        self.sweep = sweep
        self.codes = codes
        self.allocation = allocation
        self.job_id = job_id = allocation.job_id
        self.running: dict[str, Step] = {}
        self.waiting = {turn.directory.name: turn for turn in unfinished(sweep, job_id, codes)}
        # A restarted pilot counts on, so that no start writes into the log of an earlier one.
        self.launches = sum(
            record["event"] == "launched" and record["log_id"].startswith(f"{job_id}-")
            for record in read_events(sweep.submissions)
        )
        self.bad_nodes = self.failed_twice()
        runs = [turn.run for turn in self.waiting.values()]
        self.stop_at = time.monotonic() + allocation.time_left_s() - (self.spare_s(runs) if runs else 0)
        self.cancellations_read = 0
        self.ending = False
        """No run is started any more, and running ones are asked to stop."""
        self.taken = False
        """The scheduler ends the job with all its runs, and decides about a restart."""

    def spare_s(self, runs: list[Run]) -> float:
        """Return the seconds before its end at which all runs are asked to stop."""
        return stop_before_limit_s(whole(runs))

    def work(self) -> None:
        """Start runs and record their ends until none runs and none that waits can still start."""
        while True:
            for name in [name for name, step in self.running.items() if step.process.poll() is not None]:
                step = self.running.pop(name)
                if not self.taken:
                    self.end(step)
            self.heed_cancellations()
            self.ending = self.ending or time.monotonic() >= self.stop_at
            if not self.ending:
                self.start()
            for step in self.running.values():
                self.ask_in_time(step)
            if not self.running and (self.ending or not any(map(self.can_still_start, self.waiting.values()))):
                return
            time.sleep(POLL_S)

    def start(self) -> None:
        """Start the runs that fit on the free nodes."""
        now = time.monotonic()
        ready = [turn for turn in self.waiting.values() if turn.not_before <= now and self.can_still_start(turn)]
        points = [Point(turn.directory.name, turn.run.nodes, turn.failed_on) for turn in ready]
        busy = {node for step in self.running.values() for node in step.nodes}
        free = [node for node in self.allocation.nodes if node not in busy and node not in self.bad_nodes]
        most = ready[0].run.launcher.max_running if ready else None
        for name, nodes in pack(points, free, most and max(0, most - len(self.running))).items():
            self.launch(self.waiting.pop(name), nodes)

    def can_still_start(self, turn: Turn) -> bool:
        """Return True if there are enough nodes for a run, and enough time."""
        enough = turn.run.nodes <= len(set(self.allocation.nodes) - self.bad_nodes)
        return enough and self.has_time(turn)

    def has_time(self, turn: Turn) -> bool:
        """Return True if there is time for the whole limit of a run."""
        return turn.has_time(time.monotonic(), self.stop_at)

    def heed_cancellations(self) -> None:
        """Stop runs, and leave out waiting ones, that the ledger has as cancelled."""
        size = self.sweep.submissions.stat().st_size
        if size == self.cancellations_read:
            return
        self.cancellations_read = size
        for name, each in latest_submissions(self.sweep).items():
            if not each.cancelled or each.job_id != self.job_id:
                continue
            if turn := self.waiting.pop(name, None):
                self.record("ended", turn)
            elif step := self.running.get(name):
                self.ask(step)

    def launch(self, turn: Turn, nodes: list[str]) -> None:
        """Start a run as a step on these nodes."""
        try:
            code, turn.run = submitted_run(turn.directory, self.codes.get(turn.directory.name, "no code"))
            refuse_changed(self.sweep.path, turn.run.cluster.trusted_group, [code], [turn.directory.path])
        except RunDirError as refusal:
            cause, restart = FailureCause.launch_failure, turn.launches
            record_failure(turn.directory, cause, rank=0, node=nodes[0], error=str(refusal), restart=restart)
            self.record("ended", turn)
            print(f"{turn.directory.name}: {refusal}", flush=True)
            return
        self.launches += 1
        log_id = f"{self.job_id}-{self.launches}"
        place = self.allocation.shown(nodes)
        self.record("launched", turn, log_id=log_id, place=place)
        # The job's own SLURM_RESTART_COUNT counts restarts of the pilot, not of this run.
        environment = self.allocation.environment(code) | {LOCAL_RESTART_COUNT: str(turn.launches)}
        # The messages of srun go to the file of rank 0.
        output = self.sweep.output(log_id)
        start = allocation.Turn(self.sweep, turn.run, turn.directory, code, nodes, log_id, turn.launches)
        command = self.allocation.command(start)
        with open_to_append(output) as log:
            process = subprocess.Popen(
                ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self.running[turn.directory.name] = Step(turn, start, process, output)
        print(f"{turn.directory.name}: started on {place}", flush=True)

    def ask_in_time(self, step: Step) -> None:
        """Ask a run to stop when its time, or that of the pilot, is over."""
        if time.monotonic() >= step.started + step.turn.until_stop_s or self.ending:
            self.ask(step)

    def ask(self, step: Step) -> None:
        """Ask a run to stop, once."""
        if not step.asked and not self.taken:
            step.asked = True
            self.allocation.ask_to_stop(step.process, step.started_as)

    def end(self, step: Step) -> None:
        """Record the end of a step, and let its run wait again if another start may help."""
        turn, directory = step.turn, step.turn.directory
        if owner := successor(directory, self.job_id, turn.launches):
            self.record("ended", turn)
            print(f"{directory.name}: {owner.name} has taken it over", flush=True)
            return
        submission = latest_submissions(self.sweep)[directory.name]
        end = own_end(directory, submission)
        if end is None or end["event"] != "finished":
            self.look_at_job()
        if end is None and submission.cancelled:
            # Ranks that still start are ended by the signal that asks them to stop: that is no failure.
            self.record("ended", turn)
            return
        if end is None and self.ending:
            # The ranks had not met yet: this start leaves no record.
            self.record("nodes_returned", turn)
            self.waiting[directory.name] = turn
            return
        end = self.recorded_end(step, submission)
        preempted = self.allocation.preempted
        may_restart = not self.ending or preempted
        found = planned_restart(directory, submission, self.sweep, preempted=preempted) if may_restart else None
        if found is None:
            self.record("ended", turn)
            print(f"{directory.name}: {end['event']}", flush=True)
            tell_end(self.sweep, directory)
            return
        print(f"{directory.name}: {found.sentence()}", flush=True)
        found.record(directory)
        tell_restart(directory)
        self.record("nodes_returned", turn)
        turn.launches += 1
        turn.not_before = time.monotonic() + found.pause_s
        if end["event"] == "failed":
            # If the failure names no node, any of them may be the cause.
            turn.failed_on |= {self.allocation.node_of(end["node"])} if blames_node(end) else set(step.nodes)
            self.bad_nodes = self.failed_twice()
        self.waiting[directory.name] = turn

    def look_at_job(self) -> None:
        """Update the nodes that the job still has, and whether it is preempted."""
        try:
            self.allocation.look()
        except SubmitError as error:
            # The runs do not need the controller of Slurm; it may answer again at the next end.
            print(f"{self.allocation.scheduler} does not answer: {error}", flush=True)
        self.ending = self.ending or self.allocation.preempted

    def recorded_end(self, step: Step, submission: Submission) -> Mapping[str, Any]:
        """Return the recorded end of a step, after adding the end that the ranks could not record."""
        directory, restart, printed = step.turn.directory, step.turn.launches, printed_since_start(step.output)
        over = time.monotonic() >= step.started + step.turn.run.wall_time_min * 60
        if own_end(directory, submission) is None and over:
            error = "reached its time limit before the ranks reached a step boundary"
            record_failure(directory, FailureCause.time_limit, rank=0, node=step.nodes[0], error=error, restart=restart)
        self.allocation.record_silent_end(directory, submission, printed, restart)
        if own_end(directory, submission) is None:
            how = f"{self.allocation.starter} ended with exit code {step.process.returncode}"
            error = f"{how}; the last output: {printed.strip()[-200:]}"
            record_failure(directory, FailureCause.lost_peer, rank=0, node=step.nodes[0], error=error, restart=restart)
        end = own_end(directory, submission)
        assert end is not None
        return end

    def failed_twice(self) -> set[str]:
        """Return the nodes of this pilot on which its runs failed twice or more."""
        mine = [each for each in latest_submissions(self.sweep).values() if each.job_id == self.job_id]
        events = (event for each in mine for event in events_since(self.sweep.run(each.run), each))
        return set(map(self.allocation.node_of, failed_twice(events))) & set(self.allocation.nodes)

    def record(self, event: str, turn: Turn, **fields: Any) -> None:
        """Append to the ledger."""
        append_record(self.sweep.submissions, event_record(event, run=turn.directory.name, **fields))


def unfinished(sweep: SweepDir, job_id: str, codes: Mapping[str, str]) -> list[Turn]:
    """Return the runs of this job that have not ended, in their order."""
    turns = []
    for submission in latest_submissions(sweep).values():
        if submission.job_id != job_id or submission.ended:
            continue
        if submission.cancelled:
            append_record(sweep.submissions, event_record("ended", run=submission.run))
            continue
        directory = sweep.run(submission.run)
        end = own_end(directory, submission)
        cause = None if end is None else recorded_cause(end)
        may_recover = cause is not None and cause.retryable
        over = end is not None and (end["event"] == "finished" or (end["event"] == "failed" and not may_recover))
        try:
            _, run = submitted_run(directory, codes.get(directory.name, "no code"))
        except SuiteError as error:
            print(f"{directory.name} is not started: {error}", flush=True)
            if not over:
                cause, restart = FailureCause.launch_failure, submission.launches
                record_failure(directory, cause, rank=0, node=node_name(), error=str(error), restart=restart)
            over = True
        if over or submission.place is not None:
            word = "ended" if over else "nodes_returned"
            append_record(sweep.submissions, event_record(word, run=submission.run))
        if submission.place is not None and not over:
            # Its step ended together with an earlier start of this job: that end must not count for its next start.
            append_event(directory, "requeued", cause=FailureCause.preempted.name)
        if not over:
            turns.append(Turn(run, directory, submission.launches))
    return turns


def allocation_of(left_s: float | None) -> Allocation:
    """Return the job that runs this process; of a job of PBS `left_s` seconds are left."""
    pbs = re.match(r"\d+", os.environ.get("PBS_JOBID", ""))
    if left_s is not None and pbs is not None:
        return PbsAllocation(pbs[0], Path(os.environ["PBS_NODEFILE"]), left_s)
    job_id = scheduled_job_id()
    if job_id is None:
        raise RunDirError("jobs.submit.allocations.pilot runs in a batch script, inside a job of Slurm or PBS.")
    return SlurmAllocation(job_id, hosts(os.environ["SLURM_JOB_NODELIST"]))


def main(sweep_path: str, codes: Mapping[str, str], left_s: float | None = None) -> None:
    """Give the nodes of this job to the runs of the sweep that were submitted with it, each with its code."""
    allocation = allocation_of(left_s)
    job_id = allocation.job_id
    sweep = SweepDir(Path(sweep_path))
    its_submission(sweep, job_id)
    pilot = Pilot(sweep, allocation, codes)

    def warned(number: int, _frame: object) -> None:
        pilot.ending = True
        pilot.taken = pilot.taken or number == signal.SIGTERM

    # SIGUSR2 is Slurm's warning before the time limit (--signal=B:), SIGTERM means that the job is being ended. PBS
    # warns nobody.
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, warned)
    pilot.work()
    left = len(pilot.waiting)
    print(f"pilot {job_id}: {f'{left} runs left' if left else 'all runs have ended'}", flush=True)
    if allocation.preempted and left and not pilot.taken:
        # Slurm does not requeue a preempted job that ends within its grace time. Requeueing ends this script.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with patience(BATCH_S):
            slurm_commands.requeue(job_id, restart=restart_count())


if __name__ == "__main__":
    with own_program():
        main(sys.argv[1], json.load(sys.stdin), *map(float, sys.argv[2:]))
