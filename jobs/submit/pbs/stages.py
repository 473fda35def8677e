"""The stages around training as jobs of PBS: scripts, dependencies, and what a server must have for them.

PBS differs from Slurm in three ways. It deletes all jobs that wait for one that was deleted while it waited itself,
also with `afterany`: if a run failed, `afterok` would end its evaluation and thereby the report. So a stage waits for
the end of its run, and reads in its records whether it has finished. A job that waits for one that the server no longer
knows is deleted, too, so the server must keep the history of jobs. And nothing pairs the tasks of two arrays: each run
has a job of each stage.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from jobs.errors import SubmitError
from jobs.plan.rules.stages import stage_gpus, stages_of
from jobs.rundir import BATCH_STARTED
from jobs.schema import Run
from jobs.submit.pbs import commands
from jobs.submit.pbs.batch_script import template
from jobs.submit.pbs.call import PBS
from jobs.submit.pbs.resources import name_of_job, options, per_job
from jobs.submit.preparation.script_lines import environment_lines, integrity_lines
from jobs.submit.stages import StageJob, StageQueue

# The first release that starts a job which waits for one that is over: openpbs pull request 1631.
FIRST_RELEASE = 20
YEARS = 2000


class PbsStages(StageQueue):
    """Stages of launcher=pbs."""

    launcher = "pbs"
    scheduler = PBS

    def job_name(self, text: str) -> str:
        """Return a name as PBS accepts it."""
        return name_of_job(text)

    def script(self, job: StageJob) -> str:
        """Return the job script of a stage."""
        after = [f"-W depend={job.after}"] if job.after else []
        (arguments,) = job.arguments
        return template("stage.pbs.j2").render(
            options=[*stage_options(job.run, job.name, job.mark), *after],
            started=BATCH_STARTED,
            logs=shlex.quote(str(job.sweep.logs)),
            integrity=integrity_lines(job.run, job.code),
            environment=environment_lines(job.run, job.code),
            command=f"{job.command} {arguments}",
        )

    def after_run(self, job_id: str) -> str:
        """Return the dependency on the end of a run."""
        return f"afterany:{job_id}"


def stage_options(run: Run, stage: str, mark: str | None = None) -> list[str]:
    """Return the options of qsub for a stage; raises SubmitError for settings that no directive can express."""
    try:
        return options(as_run(run, stage), mark)
    except SubmitError as error:
        raise SubmitError(f"stages.{stage}: {error}") from error


def as_run(run: Run, stage: str) -> Run:
    """Return a run that asks for what a stage does: for PBS it is a run of one rank."""
    wanted = stages_of(run)[stage]
    cluster = replace(
        run.cluster,
        partition=wanted.partition or run.cluster.partition,
        cpus_per_rank=wanted.cpus,
        gpus=stage_gpus(run, stage) > 0,
        memory_gb_per_node=wanted.memory_gb,
        exclusive=False,
    )
    return replace(
        run,
        name=f"{run.sweep}-{stage}",
        nodes=1,
        ranks_per_node=1,
        wall_time_min=wanted.wall_time_min,
        cluster=cluster,
    )


def refuse_beyond_server(run: Run) -> None:
    """Raise SubmitError if the server cannot chain jobs, or its queues can never run one of the stages of a run."""
    if not stages_of(run):
        return
    server, queues = commands.server(), commands.queues()
    release = re.match(r"\d+", str(server.get("pbs_version", "")))
    if release is not None and int(release[0]) % YEARS < FIRST_RELEASE:
        raise SubmitError(
            f"Stages need jobs that may wait for one that is over, and this PBS is release {server['pbs_version']}: "
            "before OpenPBS 20 and PBS Professional 2020 they wait for ever. Set stages=train and run `slurmscale "
            "report` afterwards."
        )
    if str(server.get("job_history_enable")) != "True":
        raise SubmitError(
            "Stages need the history of jobs, which this PBS does not keep (job_history_enable of `qstat -B`): it "
            "deletes a job that waits for one that it no longer knows. Set stages=train and run `slurmscale report` "
            "afterwards."
        )
    for name, stage in stages_of(run).items():
        stage_options(run, name)
        asked = as_run(run, name)
        keys = commands.KEYS_OF_RUN | {
            "partition": f"stages.{name}.partition" if stage.partition else "cluster.partition",
            "walltime": f"stages.{name}.wall_time_min",
            "ncpus": f"stages.{name}.cpus",
        }
        default, wanted = server.get("default_queue"), per_job(asked)
        for sentence in commands.beyond_queue(queues, default, asked.cluster.partition, wanted, keys):
            raise SubmitError(sentence)
