"""launcher=pilot: one Slurm job, inside which the runs take turns as steps (jobs.submit.allocations.pilot).

What pilots of all schedulers share is here, too: launchers/pbs_pilot.py has those of PBS.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial

from jobs.errors import SubmitError
from jobs.event_fields import NO_JOB
from jobs.plan.cost import checkpoint_bytes
from jobs.plan.rules.rule import counted
from jobs.plan.time_limit import duration
from jobs.rundir import SweepDir, append_record, now
from jobs.schema import Run
from jobs.submit import scheduler_call
from jobs.submit.job_state import JobState
from jobs.submit.launchers.launcher import Launch, Launcher, Runs
from jobs.submit.launchers.slurm import Slurm, cancel_submitted
from jobs.submit.preparation.script_lines import environment_lines, integrity_lines
from jobs.submit.scheduler_call import Scheduler
from jobs.submit.slurm import call as slurm_call
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.batch_script import batch_script
from jobs.submit.slurm.resources import STARTED_LINE, resources
from jobs.submit.sweeps.intents import run_task, submit_marked
from jobs.submit.sweeps.submissions import Submission, latest_submissions
from jobs.submit.trust.integrity import submitted_as

Script = Callable[[SweepDir, Runs, str], str]
"""Returns the batch script of the job of a name that some runs share."""


class Pilot(Slurm):
    """Submits one job; the program in it (jobs.submit.allocations.pilot) starts the runs as steps."""

    takes_turns = True

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError for runs that cannot share one job, and for a job that its partition can never run."""
        refuse_differing(runs)
        slurm_commands.require()
        slurm_commands.refuse_newer_options(runs)
        pilot = whole(runs)
        slurm_commands.refuse_beyond_partition(
            pilot.cluster.partition, pilot.nodes, pilot.wall_time_min, prefix="launcher.pilot_"
        )

    def preview(self, what: Launch) -> list[str]:
        """Return the batch script of each job."""
        return scripts(what, what.sweep.path.name, job_script)

    def launch(self, what: Launch) -> list[str]:
        """Submit one job in which the runs take turns."""
        slurm_commands.require()
        return submit(
            what, job_script, launcher="pilot", name=what.sweep.path.name, scheduler=slurm_call.SLURM,
            take_back=cancel_submitted,
        )  # fmt: skip

    def states(self, submissions: list[Submission]) -> dict[str, JobState]:
        """Return the state of each run inside its job, where it may still wait for nodes."""
        return in_their_jobs(submissions, super().states(submissions))

    def cancel_turn(self, sweep: SweepDir, name: str) -> None:
        """End a run; the others go on."""
        cancel_in_job(self, sweep, name)


def refuse_differing(runs: list[Run]) -> None:
    """Raise SubmitError for runs that one job cannot serve."""
    first = runs[0]
    for run in runs:
        for section in ("cluster", "launcher"):
            settings, others = asdict(getattr(first, section)), asdict(getattr(run, section))
            for key, value in settings.items():
                if others[key] != value:
                    raise SubmitError(
                        f"launcher={first.launcher.kind.name} runs all points in one job, but {section}.{key} is "
                        f"{value} for {first.name} and {others[key]} for {run.name}. Submit them as separate sweeps, "
                        "one after the other."
                    )


def scripts(what: Launch, name: str, script: Script) -> list[str]:
    """Return the lines that show the batch script of each job."""
    return [
        line
        for group in jobs_of(what.runs)
        for line in (f"--- pilot of {counted(len(group))}", script(what.sweep, group, name))
    ]


def submit(
    what: Launch, script: Script, *, launcher: str, name: str, scheduler: Scheduler, take_back: Callable[..., None]
) -> list[str]:
    """Submit one job in which the runs take turns; return sentences for the user.

    `name` begins the name of the job. `take_back` cancels jobs of this submission if the scheduler refuses a later one.
    """
    sweep, lines = what.sweep, []
    submitted: list[str] = []
    for group in jobs_of(what.runs):
        pilot = whole([run for run, _ in group])
        tasks = [run_task(directory, nodes=run.nodes) for run, directory in group]
        try:
            with scheduler.refusals_of(f"a pilot of {pilot.nodes} nodes for {counted(len(group))}"):
                job_ids = submit_marked(sweep, launcher, name, tasks, partial(script, sweep, group), array=False)
        except scheduler_call.NoAnswerError:
            raise
        except (SubmitError, OSError) as error:
            take_back(sweep, submitted, because=error)
            raise SubmitError(f"{error} Nothing of this submission is left in the queue.") from error
        submitted.append(job_ids[0])
        lines.append(
            f"submitted {counted(len(group))} as pilot {submitted[-1]}: "
            f"{pilot.nodes} nodes for {duration(pilot.wall_time_min)} at most"
        )
    return lines


def in_their_jobs(submissions: list[Submission], jobs: Mapping[str, JobState]) -> dict[str, JobState]:
    """Return the states of runs inside jobs that have these states; those that are over have none."""
    left = [each for each in submissions if not each.ended and not (each.cancelled and each.place is None)]
    return {each.asked_as: in_its_job(each, jobs[each.asked_as]) for each in left if each.asked_as in jobs}


def cancel_in_job(launcher: Launcher, sweep: SweepDir, name: str) -> None:
    """Record that a run is cancelled: the program in its job stops it, or leaves it out. The last run ends the job."""
    latest = latest_submissions(sweep.whole)
    job_id = latest[name].job_id
    mine = [each for each in latest.values() if each.job_id == job_id]
    if job_id != NO_JOB and all(each.run == name or each.ended or each.cancelled for each in mine):
        launcher.cancel(sweep, [job_id])
    append_record(sweep.submissions, {"time": now(), "event": "cancelled", "runs": [name]})


def in_its_job(submission: Submission, job: JobState) -> JobState:
    """Return the state of a run inside a job that has this state."""
    if not job.is_alive or job.waits or job.is_suspended:
        return job
    if submission.place is not None:
        return JobState("RUNNING", f"on {submission.place} of {submission.shared_job}")
    nodes = f"{submission.nodes} free node{'s' if submission.nodes != 1 else ''}"
    return JobState("PENDING", f"waits for {nodes} of {submission.shared_job}")


def jobs_of(runs: Runs) -> list[Runs]:
    """Group the runs by the job that they can share; raises SubmitError for runs without the size of a pilot."""
    shared: dict[str, Runs] = {}
    for run, directory in runs:
        if run.launcher.pilot_nodes is None or run.launcher.pilot_wall_time_min is None:
            raise SubmitError(
                f"{run.name} was not prepared for launcher={run.starter.name}: it has no launcher.pilot_nodes and "
                "launcher.pilot_wall_time_min. Run `slurmscale resume` without --launcher, or submit a new sweep."
            )
        # One job has one partition, one account and one size.
        shared.setdefault(repr((run.cluster, run.launcher)), []).append((run, directory))
    return list(shared.values())


def whole(runs: list[Run]) -> Run:
    """Return a run that has the nodes and time of the whole job in which these runs take turns.

    It is the one with the largest checkpoint, so that each run has the time to save at the end of the job.
    """
    largest = max(runs, key=checkpoint_bytes)
    assert largest.launcher.pilot_nodes is not None
    assert largest.launcher.pilot_wall_time_min is not None
    return replace(
        largest,
        nodes=largest.launcher.pilot_nodes,
        ranks_per_node=max(largest.cluster.ranks_per_node, *(run.ranks_per_node for run in runs)),
        wall_time_min=largest.launcher.pilot_wall_time_min,
        # Whole nodes, which steps divide among themselves.
        cluster=replace(largest.cluster, exclusive=True),
    )


def job_script(sweep: SweepDir, runs: Runs, name: str) -> str:
    """Return the batch script of the job of this name that these runs share."""
    run, directory = runs[0]
    code = directory.code_snapshot
    asked = resources(whole([run for run, _ in runs]), code)
    # The pilot gets the warning before the time limit, and forwards it. A lost node ends only the steps on it.
    signal = {"signal": f"B:USR2@{asked['signal_delay_s']}", "no-kill": True}
    asked |= {
        "job_name": name,
        "setup": [STARTED_LINE, *integrity_lines(run, code), *environment_lines(run, code)],
        "use_srun": False,
        "additional_parameters": asked["additional_parameters"] | signal,
    }
    pilot = [sys.executable, "-m", "jobs.submit.allocations.pilot", str(sweep.path)]
    # The script is Slurm's copy: what it contains cannot be changed in the sweep.
    codes = shlex.quote(json.dumps(submitted_as(directory for _, directory in runs)))
    # exec: a shell that waits for its child would not handle the warning.
    return batch_script(f"exec {shlex.join(pilot)} <<< {codes}", sweep.logs, asked)


LAUNCHER = Pilot()
