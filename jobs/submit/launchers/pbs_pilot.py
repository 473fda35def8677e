"""launcher=pbs_pilot: one job of PBS, on whose nodes the runs take turns (jobs.submit.allocations.pilot)."""

from __future__ import annotations

import json
import shlex
import sys

from jobs.errors import SubmitError
from jobs.rundir import BATCH_STARTED, SweepDir
from jobs.schema import Run
from jobs.submit.job_state import JobState
from jobs.submit.launchers.launcher import Launch, Runs
from jobs.submit.launchers.pbs import Pbs, cancel_submitted
from jobs.submit.launchers.pilot import cancel_in_job, in_their_jobs, refuse_differing, scripts, submit, whole
from jobs.submit.pbs import commands
from jobs.submit.pbs.batch_script import template
from jobs.submit.pbs.call import PBS
from jobs.submit.pbs.resources import name_of_job, options, per_job
from jobs.submit.preparation.script_lines import environment_lines, integrity_lines
from jobs.submit.sweeps.submissions import Submission
from jobs.submit.trust.integrity import submitted_as

NODES = "launcher.pilot_nodes"
KEYS = commands.KEYS_OF_RUN | {
    "walltime": "launcher.pilot_wall_time_min",
    "nodect": NODES,
    "ncpus": f"cluster.cpus_per_rank or {NODES}",
    "ngpus": NODES,
}


class PbsPilot(Pbs):
    """Submits one job; the program in it gives its nodes to the runs, and cluster.pbs_start starts each on its own."""

    takes_turns = True

    def check(self, runs: list[Run]) -> None:
        """Raise SubmitError for runs that cannot share one job, and for a job that its queue can never run."""
        refuse_differing(runs)
        pilot = whole(runs)
        options(pilot)
        commands.require()
        queues, default = commands.queues(), commands.server().get("default_queue")
        for sentence in commands.beyond_queue(queues, default, pilot.cluster.partition, per_job(pilot), KEYS):
            raise SubmitError(sentence)

    def preview(self, what: Launch) -> list[str]:
        """Return the script of each job."""
        return scripts(what, f"{name_of_job(what.sweep.path.name)}-ID", job_script)

    def launch(self, what: Launch) -> list[str]:
        """Submit one job in which the runs take turns."""
        commands.require()
        name = name_of_job(what.sweep.path.name)
        return submit(what, job_script, launcher="pbs_pilot", name=name, scheduler=PBS, take_back=cancel_submitted)

    def states(self, submissions: list[Submission]) -> dict[str, JobState]:
        """Return the state of each run inside its job, where it may still wait for nodes."""
        return in_their_jobs(submissions, super().states(submissions))

    def cancel_turn(self, sweep: SweepDir, name: str) -> None:
        """End a run; the others go on."""
        cancel_in_job(self, sweep, name)


def job_script(sweep: SweepDir, runs: Runs, name: str) -> str:
    """Return the script of the job of this name that these runs share."""
    run, directory = runs[0]
    code, pilot = directory.code_snapshot, whole([run for run, _ in runs])
    program = shlex.join([sys.executable, "-m", "jobs.submit.allocations.pilot", str(sweep.path)])
    # The script is the server's copy: what it contains cannot be changed in the sweep.
    codes = shlex.quote(json.dumps(submitted_as(directory for _, directory in runs)))
    lines = [
        "#!/bin/bash",
        *(f"#PBS {option}" for option in options(pilot, name)),
        "",
        template("log.sh.j2").render(logs=shlex.quote(str(sweep.logs)), started=BATCH_STARTED),
        *integrity_lines(run, code),
        *environment_lines(run, code),
        "",
        "# PBS gives no warning before its time limit: the program knows the seconds that are left.",
        f"exec {program} $(({60 * pilot.wall_time_min} - SECONDS)) <<< {codes}",
    ]
    return "\n".join(lines) + "\n"


LAUNCHER = PbsPilot()
