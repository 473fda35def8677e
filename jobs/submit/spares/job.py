"""The program inside a job with spare nodes: starts the ranks, and again without the node that is suspect.

The batch script runs it on the first node (`python -m jobs.submit.spares.job RUN_DIR`). Each start of the ranks is a
step of the job (allocations/allocation.py) on `nodes` of its nodes; the others wait. A restart takes place here if the
end of the ranks allows one (jobs.submit.requeue) and enough nodes are left. Otherwise this program ends, and the end of
the batch script decides, as in every other job.

srun does not return before Slurm has given up a node that died: SlurmdTimeout, 300 s by default. So a step that does
not end soon after its first failure is ended here, and each node that has given no sign of it is asked for one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobs.errors import RunDirError, SubmitError
from jobs.failure_causes import FailureCause, blames_node, latest_attempt, record_failure, restart_of
from jobs.lease import successor
from jobs.output import own_program
from jobs.plan.time_limit import stop_before_limit_s
from jobs.ranks import LOCAL_RESTART_COUNT, hosts, node_name, restart_count, scheduled_job_id
from jobs.run_events import highest_failure
from jobs.rundir import BATCH_STARTED, RunDir, SweepDir, load_run
from jobs.schema import Run
from jobs.submit.allocations.allocation import SlurmAllocation, Turn
from jobs.submit.notices import tell_restart
from jobs.submit.requeue import (
    Restart,
    bad_nodes,
    first_rank_on,
    its_submission,
    planned_restart,
    record_silent_end,
    restarts_before,
)
from jobs.submit.scheduler_call import BATCH_S, patience
from jobs.submit.slurm.job_log import DEATH, printed_since_start
from jobs.submit.sweeps.submissions import Submission, events_since, own_end

POLL_S = 0.5
# srun kills all ranks after the first failure: a node that answers has reported the ends of its ranks by then.
SILENCE_S = 6.0
# A node that answers starts a process within this time.
PROBE_S = 6.0
# A start that has less time would hardly reach its next checkpoint.
LEAST_S = 60
# Ends after which another start in this job would end in the same way, or has no time.
OF_THE_JOB = {FailureCause.time_limit, FailureCause.preempted, FailureCause.requeued}


class SpareJob:
    """A run, the nodes of its job, and those that are left out."""

    def __init__(self, directory: RunDir, job_id: str, nodes: list[str]) -> None:
        self.directory = directory
        self.sweep = SweepDir(directory.path.parent)
        self.run: Run = load_run(directory.config)
        self.allocation = SlurmAllocation(job_id, nodes)
        self.left_out: set[str] = set()
        self.asked = False
        """True if Slurm or the user has asked this job to end."""
        self.guard: subprocess.Popen[bytes] | None = None
        self.guarded_on = ""
        # Nodes that failed twice in the sweep wait as long as others suffice.
        self.last = set(bad_nodes(self.sweep))

    @property
    def usable(self) -> list[str]:
        """The nodes that the job still has and that are not left out; the first ones are used."""
        kept = [node for node in self.allocation.nodes if node not in self.left_out]
        return sorted(kept, key=lambda node: node in self.last)

    def work(self) -> int:
        """Start the ranks until they end for good; return the exit code of srun."""
        nodes = self.usable[: self.run.nodes]
        while True:
            restart = restarts_before(self.directory, self.allocation.job_id)
            if restart != restart_count():
                print(f"{BATCH_STARTED}, restart {restart}, on {','.join(nodes)}", flush=True)
            self.keep_guard()
            silent: list[str] = []
            code = self.start_and_wait(nodes, restart, silent)
            if code == 0 or self.asked:
                return code
            found = self.restart_here(nodes, restart, silent)
            if found is None:
                return code
            print(f"slurmscale: {found.sentence()}", flush=True)
            found.record(self.directory)
            tell_restart(self.directory)
            time.sleep(found.pause_s)
            nodes = self.usable[: self.run.nodes]

    def keep_guard(self) -> None:
        """Start jobs.submit.spares.guard on the last usable node, unless it works already or the node is this one."""
        works = self.guard is not None and self.guard.poll() is None and self.guarded_on in self.usable
        host = next((node for node in reversed(self.usable) if node != node_name()), None)
        if works or host is None:
            return
        step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--output=none", "--error=none"]
        command = [*step, sys.executable, "-m", "jobs.submit.spares.guard", str(self.directory.path)]
        self.guard = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.guarded_on = host

    def start_and_wait(self, nodes: Sequence[str], restart: int, silent: list[str]) -> int:
        """Start the ranks as a step on these nodes; return its exit code, and in `silent` the nodes that are dead."""
        job_id, code = self.allocation.job_id, self.directory.code_snapshot
        turn = Turn(self.sweep, self.run, self.directory, code, list(nodes), job_id, restart)
        environment = self.allocation.environment(code) | {LOCAL_RESTART_COUNT: str(restart)}
        before, failed_at = highest_failure(self.directory), None
        process = subprocess.Popen(
            ["bash", "-c", self.allocation.command(turn)], stdin=subprocess.DEVNULL, env=environment
        )
        while process.poll() is None:
            time.sleep(POLL_S)
            if failed_at is None and (highest_failure(self.directory) > before or DEATH.search(self.printed())):
                failed_at = time.monotonic()
            if failed_at is not None and time.monotonic() - failed_at > SILENCE_S and not self.asked:
                # On SIGTERM srun kills the ranks, and waits again.
                process.terminate()
                try:
                    process.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                silent += self.dead(nodes, restart)
        return process.wait()

    def printed(self) -> str:
        """Return the output of rank 0 and of srun since the latest start."""
        return printed_since_start(self.sweep.output(self.allocation.job_id))

    def dead(self, nodes: Sequence[str], restart: int) -> list[str]:
        """Return the nodes of a start that have neither recorded nor reported an end, and on which no process starts.

        One srun asks all of them: each prints its name.
        """
        failures = [event for event in latest_attempt(self.events()) if event["event"] == "failed"]
        spoke = {str(event.get("node")) for event in failures if restart_of(event, 0) == restart}
        spoke |= {host for names, _, _ in DEATH.findall(self.printed()) for host in hosts(names)}
        asked = [node for node in nodes if node not in spoke]
        if not asked:
            return []
        command = ["srun", "--overlap", f"--nodes={len(asked)}", f"--nodelist={','.join(asked)}"]
        command += [f"--ntasks={len(asked)}", "--ntasks-per-node=1", "bash", "-c", "echo $SLURMD_NODENAME"]
        probe = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            answered, _ = probe.communicate(timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            probe.kill()
            answered, _ = probe.communicate()
        return [node for node in asked if node not in answered.split()]

    def events(self) -> list[dict[str, object]]:
        """Return the events of the run since its submission."""
        return events_since(self.directory, self.submission())

    def submission(self) -> Submission:
        """Return the submission that this job is on record with."""
        found = its_submission(self.sweep, self.allocation.job_id)
        if found is None:
            raise RunDirError(f"{self.sweep.submissions} has no run for job {self.allocation.job_id}.")
        return found

    def restart_here(self, nodes: Sequence[str], restart: int, silent: Sequence[str]) -> Restart | None:
        """Record the end that the ranks could not; return how they start again in this job, None if they do not."""
        job_id, directory, submission = self.allocation.job_id, self.directory, self.submission()
        if successor(directory, job_id, restart):
            return None
        try:
            self.allocation.look()
        except SubmitError as error:
            # The job has its nodes without the controller, too.
            print(f"Slurm does not answer: {error}", flush=True)
        if self.allocation.over or self.asked:
            return None
        self.record_end(nodes, restart, silent, submission)
        found = planned_restart(directory, submission, self.sweep, unasked=True)
        end = own_end(directory, submission)
        if found is None or end is None or found.cause in OF_THE_JOB:
            return None
        suspects = {*silent, *([str(end["node"])] if blames_node(end) else [])}
        self.left_out |= suspects
        if len(self.usable) < self.run.nodes:
            print(f"slurmscale: {len(self.usable)} of {self.run.nodes} nodes are left: no spare is", flush=True)
            return None
        gone = [node for node in nodes if node not in self.usable]
        # The fault stays behind with its node; otherwise it may pass during the pause.
        pause_s = 0 if gone else found.pause_s
        with patience(BATCH_S):
            left_s = self.allocation.time_left_s() - stop_before_limit_s(self.run) - pause_s
        if left_s < LEAST_S:
            return None
        instead = [node for node in self.usable[: self.run.nodes] if node not in nodes]
        return replace(found, pause_s=pause_s, avoided=[], in_job=job_id, left_out=gone, instead=instead)

    def record_end(self, nodes: Sequence[str], restart: int, silent: Sequence[str], submission: Submission) -> None:
        """Record the end that the ranks of a start could not write: a dead node, a killed rank, or that srun failed."""
        directory = self.directory
        for node in silent:
            error = f"{node} is dead: its ranks recorded no end, and it starts no process within {PROBE_S:.0f} s"
            rank = first_rank_on(directory, node)
            record_failure(directory, FailureCause.node_failure, rank=rank, node=node, error=error, restart=restart)
        printed = self.printed()
        record_silent_end(directory, submission, printed, restart=restart)
        if own_end(directory, submission) is None:
            error = f"srun ended, and no rank recorded an end; the last output: {printed.strip()[-200:]}"
            record_failure(directory, FailureCause.lost_peer, rank=0, node=nodes[0], error=error, restart=restart)


def main(run_directory: str) -> int:
    """Run the ranks of a run in this job, on the nodes that work; return the exit code of the last srun."""
    job_id = scheduled_job_id()
    if job_id is None:
        raise RunDirError("jobs.submit.spares.job runs in a batch script, inside a Slurm job.")
    job = SpareJob(RunDir(Path(run_directory)), job_id, hosts(os.environ["SLURM_JOB_NODELIST"]))

    def asked(_number: int, _frame: object) -> None:
        job.asked = True

    # Slurm asks the ranks as well: they save, and srun ends with them.
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, asked)
    return job.work()


if __name__ == "__main__":
    with own_program():
        sys.exit(main(sys.argv[1]))
