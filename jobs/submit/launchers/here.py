"""launcher=here: the job that the user is in, of Slurm or PBS, in which the runs take turns (allocations/held.py)."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from jobs.errors import SubmitError
from jobs.output import open_to_append
from jobs.plan.rules.rule import counted
from jobs.plan.time_limit import duration
from jobs.ranks import started_after_boot_s
from jobs.rundir import SweepDir, append_record, now
from jobs.schema import LauncherKind, Run
from jobs.submit.allocations.allocation import Allocation
from jobs.submit.allocations.held import held_allocation, is_taken, stop_before_s
from jobs.submit.job_state import JobState
from jobs.submit.launchers import pbs, slurm
from jobs.submit.launchers.launcher import Launch, Launcher
from jobs.submit.launchers.pilot import in_its_job
from jobs.submit.preparation.script_lines import code_environment, refuse_unscriptable
from jobs.submit.sweeps.intents import run_task
from jobs.submit.sweeps.ledger import uninterrupted
from jobs.submit.sweeps.submissions import Submission
from jobs.submit.trust.integrity import submitted_as

STARTED: list[subprocess.Popen[str]] = []
"""The programs of this process that give away the nodes of its job."""


class Here(Launcher):
    """Runs as many runs at once as fit on the nodes at hand; `submit` waits for them."""

    # The program in the job reads the record.
    cancels_for_sure = True
    takes_turns = True

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError outside a job, and for a run that does not fit into this one."""
        for run in runs:
            refuse_unscriptable(run)
        refuse_unfit(held_allocation(), runs)

    def preview(self, what: Launch) -> list[str]:
        """Return one line per run."""
        lines = [f"--- {counted(len(what.runs))} in the job of this shell, as many at once as its nodes allow"]
        for run, _ in what.runs:
            nodes = f"{run.nodes} node{'s' if run.nodes > 1 else ''} of {run.ranks_per_node} ranks"
            lines.append(f"    {run.name}: {nodes} for at most {duration(run.wall_time_min)}")
        return lines

    def launch(self, what: Launch) -> list[str]:
        """Start the program that gives the nodes to the runs."""
        allocation = held_allocation()
        runs = [run for run, _ in what.runs]
        left_s = refuse_unfit(allocation, runs)
        if is_taken(allocation):
            raise SubmitError(
                f"Another command with launcher=here uses the nodes of job {allocation.job_id}. Wait for its end, or "
                "run `slurmscale cancel` on its sweep."
            )
        sweep = what.sweep
        with uninterrupted(), open_to_append(sweep.logs / "here.log") as log:
            # A process group of its own: Ctrl-C in this terminal must not reach srun, which would kill the ranks.
            program = subprocess.Popen(
                [sys.executable, "-m", "jobs.submit.allocations.held", str(sweep.path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,
                env=code_environment(what.runs[0][1].code_snapshot),
                text=True,
            )
            common = {
                "time": now(),
                "launcher": LauncherKind.here.name,
                "host": socket.gethostname(),
                "job_id": allocation.job_id,
                "scheduler": allocation.scheduler,
                "process": program.pid,
                "process_started": started_after_boot_s(program.pid),
            }
            tasks = [run_task(directory, nodes=run.nodes) for run, directory in what.runs]
            append_record(sweep.submissions, *(common | task for task in tasks))
            # Without this text, which a shell that dies does not send, the program ends and starts nothing.
            assert program.stdin is not None
            program.stdin.write(json.dumps(submitted_as(directory for _, directory in what.runs)))
            program.stdin.close()
        STARTED[:] = [program, *(each for each in STARTED if each.poll() is None)]
        until = "" if left_s == math.inf else f", which ends in {left_s / 60:.0f} min"
        nodes = allocation.shown(allocation.nodes)
        return [
            f"started {counted(len(runs))} in job {allocation.job_id} on {nodes}{until}; Ctrl-C stops them with a "
            "checkpoint",
            *too_long(allocation, runs, left_s),
        ]

    def states(self, submissions: list[Submission]) -> dict[str, JobState]:
        """Return the state of each submission that waits or runs in its job.

        On the machine of the program by its process, elsewhere by the job: then a program that was killed is found only
        at the end of the job.
        """
        left = [each for each in submissions if not each.ended]
        here = [each for each in left if each.host == socket.gethostname()]
        found = {each.asked_as: JobState("RUNNING") for each in here if program_lives(each)}
        elsewhere = [each for each in left if each not in here]
        for kind, launcher in ((LauncherKind.slurm, slurm.LAUNCHER), (LauncherKind.pbs, pbs.LAUNCHER)):
            asked = [replace(each, launcher=kind.name) for each in elsewhere if each.held_of == kind.scheduler]
            found |= launcher.states(asked)
        return {each.asked_as: in_its_job(each, found[each.asked_as]) for each in left if each.asked_as in found}

    def cancel(self, sweep: SweepDir, job_ids: Iterable[str]) -> None:
        """Do nothing: the program reads the record and stops the runs; the job stays the user's."""

    def cancel_turn(self, sweep: SweepDir, name: str) -> None:
        """Record that a run is cancelled; the program stops it and goes on with the others."""
        append_record(sweep.submissions, {"time": now(), "event": "cancelled", "runs": [name]})

    def finish(self) -> None:
        """Wait for the programs: the job may be given back when this process ends."""
        for program in STARTED:
            program.wait()

    def interrupt(self) -> str | None:
        """Stop the runs that this process has started, and wait for their ends."""
        alive = [each for each in STARTED if each.poll() is None]
        if not alive:
            return None
        print("The runs stop with a checkpoint.", flush=True)
        for program in alive:
            program.send_signal(signal.SIGTERM)
        for program in alive:
            program.wait()
        return "Interrupted. `slurmscale resume` in a job continues them."


def program_lives(submission: Submission) -> bool:
    """Return True if the program that starts a run still works; its process id alone may have been used again."""
    with suppress(OSError):
        return submission.process is not None and (
            started_after_boot_s(submission.process) == submission.process_started
            and not any(each.pid == submission.process and each.poll() is not None for each in STARTED)
        )
    return False


def refuse_unfit(allocation: Allocation, runs: list[Run]) -> float:
    """Raise SubmitError for a run that the nodes of a job cannot run; return the seconds that are left of the job."""
    where = f"job {allocation.job_id} has"
    most = len(allocation.nodes)
    for run in runs:
        if run.nodes > most:
            raise SubmitError(
                f"{run.name} needs nodes={run.nodes}, but {where} {most} ({allocation.shown(allocation.nodes)}). Set "
                f"nodes={most} or less, or ask for a job with more nodes."
            )
    share = allocation.share()
    for run in runs:
        cpus = run.ranks_per_node * (run.cluster.cpus_per_rank or 1)
        if run.cluster.gpus and share.gpus is not None and run.ranks_per_node > share.gpus:
            raise SubmitError(
                f"{run.name} needs {run.ranks_per_node} GPUs on each node (ranks_per_node), but {where} {share.gpus}. "
                f"Set ranks_per_node={share.gpus}, or ask for a job with more GPUs per node."
            )
        if share.cpus is not None and cpus > share.cpus:
            raise SubmitError(
                f"{run.name} needs {cpus} CPUs on each node (ranks_per_node x cluster.cpus_per_rank), but {where} "
                f"{share.cpus}. Set smaller ones, or ask for a job with more CPUs per node."
            )
    left_s = allocation.time_left_s()
    if left_s <= stop_before_s(runs):
        raise SubmitError(
            f"job {allocation.job_id} ends in {max(left_s, 0):.0f} s, and runs are asked to stop "
            f"{stop_before_s(runs)} s before. Ask for another job."
        )
    return left_s


def too_long(allocation: Allocation, runs: list[Run], left_s: float) -> list[str]:
    """Return a sentence about runs whose time limit is longer than what is left of a job."""
    longer = [run for run in runs if 60 * run.wall_time_min > left_s]
    if not longer:
        return []
    return [
        f"wall_time_min={max(run.wall_time_min for run in longer)} of {counted(len(longer))} is longer than that: what "
        f"runs when job {allocation.job_id} ends stops with a checkpoint, and `slurmscale resume` in another job "
        "continues it"
    ]


LAUNCHER = Here()
