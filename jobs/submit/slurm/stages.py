"""The stages around training as jobs of Slurm: scripts, dependencies, and what Slurm refuses before a submission."""

from __future__ import annotations

from jobs.errors import SubmitError
from jobs.plan.rules.stages import stages_of
from jobs.schema import Run
from jobs.submit.scheduler_call import QueueFullError
from jobs.submit.slurm import call as slurm_call
from jobs.submit.slurm import commands as slurm_commands
from jobs.submit.slurm.batch_script import task_script
from jobs.submit.slurm.resources import stage_resources, starting_after
from jobs.submit.stages import Chain, StageJob, StageQueue


class SlurmStages(StageQueue):
    """Stages of launcher=slurm: Slurm cancels those whose dependencies failed (--kill-on-invalid-dep)."""

    launcher = "slurm"
    scheduler = slurm_call.SLURM

    def script(self, job: StageJob) -> str:
        """Return the batch script of a stage, an array if it has several tasks."""
        parameters = starting_after(stage_resources(job.run, job.name, job.code), job.after)
        parameters |= {} if job.mark is None else {"job_name": job.mark}
        return task_script(job.command, job.arguments, job.sweep.logs, parameters)

    def after_run(self, job_id: str) -> str:
        """Return the dependency on the success of a run, or in arrays of the task with the same index."""
        return f"{'afterok' if '_' in job_id else 'aftercorr'}:{job_id}"


def try_out(chain: Chain) -> None:
    """Raise SubmitError if sbatch would refuse a stage; submits nothing."""
    for name in chain.names:
        run = chain.first[0]
        try:
            script = chain.script(name, [chain.first])
            slurm_commands.test_script(script, 1, stages_of(run)[name].partition or run.cluster.partition)
        except QueueFullError:
            # Other jobs may end before the stage is submitted; if not, the whole chain is refused then.
            continue
        except SubmitError as error:
            raise SubmitError(f"sbatch refuses stages.{name}: {error}. Nothing was submitted.") from error


def refuse_beyond_partition(run: Run) -> None:
    """Raise SubmitError for a stage that its partition can never run."""
    for name, stage in stages_of(run).items():
        key = f"stages.{name}.partition" if stage.partition else "cluster.partition"
        slurm_commands.refuse_beyond_partition(
            stage.partition or run.cluster.partition, 1, stage.wall_time_min, prefix=f"stages.{name}.", key=key
        )
