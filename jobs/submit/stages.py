"""The chain around training: the jobs that prepare, evaluate and report, and their dependencies.

    prepare --afterok--> runs --aftercorr--> evaluate (one task per run) --afterany--> report
                           `------------------afterany---------------------------------^

Slurm cancels stages whose dependencies failed (--kill-on-invalid-dep), so no job waits for ever; a run that is requeued
is waited for. The exit code is not enough to know success (a run that stopped before its time limit exits with 0): each
stage also reads the records of the runs that it needs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import SubmitError
from jobs.files import exists
from jobs.plan.rules.stages import OF_EACH_RUN, stages_of, stages_of_each_run
from jobs.rundir import RunDir, SweepDir, read_events
from jobs.schema import Run
from jobs.submit import scheduler_call, slurm_call, slurm_commands
from jobs.submit.batch_script import batch_script, stage_resources, starting_after, task_script
from jobs.submit.cancellation import ForeignJobsError, cancel_jobs
from jobs.submit.container import rank_python
from jobs.submit.intents import stage_task, submit_marked
from jobs.submit.submissions import latest_submissions

Group = list[tuple[Run, RunDir]]


@dataclass(frozen=True)
class MissingStages:
    """A run that needs stages after it, and no start."""

    run: Run
    directory: RunDir
    job_id: str | None
    """The job that trains it; None if it has finished."""
    stages: tuple[str, ...]
    """The stages after it that it needs."""


def refuse_beyond_partition(run: Run) -> None:
    """Raise SubmitError for a stage that its partition can never run."""
    for name, stage in stages_of(run).items():
        key = f"stages.{name}.partition" if stage.partition else "cluster.partition"
        slurm_commands.refuse_beyond_partition(
            stage.partition or run.cluster.partition, 1, stage.wall_time_min, prefix=f"stages.{name}.", key=key
        )


class Chain:
    """The stages of one submission to Slurm and their dependencies; each method submits one kind of stage."""

    def __init__(self, sweep: SweepDir, runs: Group, missing_stages: Sequence[MissingStages], most: int) -> None:
        self.sweep = sweep
        self.unprepared = [directory for run, directory in runs if run.stages.prepare and not exists(directory.data)]
        self.missing_stages = missing_stages
        self.most = most
        """Most tasks of an array."""
        self.first = runs[0] if runs else (missing_stages[0].run, missing_stages[0].directory)
        self.trained: list[str] = []
        self.jobs: dict[str, list[str]] = {}
        """Job ids by stage."""

    @property
    def submitted(self) -> list[str]:
        """All jobs, last stage first: cancelled in this order, no job starts because another one ended."""
        return [job_id for ids in reversed(self.jobs.values()) for job_id in ids]

    @property
    def prepared_by(self) -> str | None:
        """The dependency of the runs; None if no stage prepares their data."""
        return f"afterok:{self.jobs['prepare'][0]}" if "prepare" in self.jobs else None

    @property
    def on_record(self) -> dict[str, str]:
        """The dependency of the runs, as a field of the ledger."""
        return {"after": self.jobs["prepare"][0]} if "prepare" in self.jobs else {}

    @property
    def names(self) -> list[str]:
        """The stages that this submission needs."""
        return [name for name in stages_of(self.first[0]) if name != "prepare" or self.unprepared]

    def scripts(self) -> list[str]:
        """Return the lines that show the batch script of each stage."""
        return [line for name in self.names for line in (f"--- stage {name}", f"{self.script(name, [self.first])}\n")]

    def script(self, name: str, group: Group, after: str | None = None, mark: str | None = None) -> str:
        """Return the batch script of a stage for these runs, with the resources and code of the first one."""
        run, directory = group[0]
        parameters = starting_after(stage_resources(run, name, directory.code_snapshot), after)
        parameters |= {} if mark is None else {"job_name": mark}
        command = f"{rank_python(run)} -u -m jobs.stages.{name}"
        if name in OF_EACH_RUN:
            return task_script(command, [directory for _, directory in group], self.sweep.logs, parameters)
        runs = [each.name for each in self.unprepared] if name == "prepare" else []
        return batch_script(f"{command} {shlex.join([str(self.sweep.path), *runs])}", self.sweep.logs, parameters)

    def test(self) -> None:
        """Raise SubmitError if sbatch would refuse a stage; submits nothing."""
        for name in self.names:
            run = self.first[0]
            try:
                script = self.script(name, [self.first])
                slurm_commands.test_script(script, 1, stages_of(run)[name].partition or run.cluster.partition)
            except scheduler_call.QueueFullError:
                # Other jobs may end before the stage is submitted; if not, the whole chain is refused then.
                continue
            except SubmitError as error:
                raise SubmitError(f"sbatch refuses stages.{name}: {error}. Nothing was submitted.") from error

    def prepare(self) -> None:
        """Submit the job that makes the data of the runs, instead of earlier ones for which no run waits."""
        if self.unprepared:
            needed = {submission.after for submission in latest_submissions(self.sweep).values()}
            earlier = {
                entry["job_id"] for entry in read_events(self.sweep.submissions) if entry.get("stage") == "prepare"
            }
            # A stage that was submitted for runs that were cancelled since would make data for nobody.
            with suppress(ForeignJobsError):  # Slurm has used the id of an ended job again
                cancel_jobs(self.sweep, earlier - needed)
            self.submit("prepare", [self.first], None)

    def follow(self, group: Group, job_ids: list[str]) -> None:
        """Submit an array of each stage that follows a run; each task waits for the task of its run."""
        self.trained.append(job_ids[0].partition("_")[0])
        for name in stages_of_each_run(self.first[0]):
            # aftercorr pairs tasks by their index, so both arrays list the runs in one order.
            self.submit(name, group, f"aftercorr:{self.trained[-1]}")

    def finish(self) -> None:
        """Submit the stages after runs that were started earlier, and the report."""
        by_code: dict[tuple[str, Path], Group] = {}
        for each in self.missing_stages:
            for name in each.stages:
                if each.job_id is None:
                    by_code.setdefault((name, each.directory.code_snapshot), []).append((each.run, each.directory))
                else:
                    self.submit(name, [(each.run, each.directory)], f"afterok:{each.job_id}")
            if each.job_id is not None:
                self.trained.append(each.job_id)
        for (name, _), finished in by_code.items():
            # These runs have finished, so their stages wait for nothing and can share arrays.
            for start in range(0, len(finished), self.most):
                self.submit(name, finished[start : start + self.most], None)
        if self.first[0].stages.report is not None:
            # afterany: a report is wanted also of a sweep in which runs failed. It depends on whole arrays, whose list
            # stays short.
            ids = [job_id for name in OF_EACH_RUN for job_id in self.jobs.get(name, [])]
            followed = dict.fromkeys(job_id.partition("_")[0] for job_id in ids)
            after = f"afterany:{':'.join([*self.trained, *followed])}"
            self.submit("report", [self.first], after)

    def submit(self, name: str, group: Group, after: str | None) -> None:
        """Run one sbatch for a stage: of each of these runs, which have the same code, or one job of the sweep."""
        directories = [directory for _, directory in group] if name in OF_EACH_RUN else [None]
        tasks = [stage_task(self.sweep, name, directory) for directory in directories]
        with slurm_call.SLURM.refusals_of(f"stages.{name}"):
            self.jobs.setdefault(name, []).extend(
                submit_marked(
                    self.sweep, "slurm", f"{group[0][0].sweep}-{name}", tasks,
                    lambda mark: self.script(name, group, after, mark), array=len(tasks) > 1,
                )
            )  # fmt: skip


def local_tasks(sweep: SweepDir, queued: Group) -> list[dict[str, Any]]:
    """Return the ledger's records of the stages of a local queue, without its process."""
    first = queued[0][0]
    tasks = [stage_task(sweep, name, directory) for name in stages_of_each_run(first) for _, directory in queued]
    return [*tasks, stage_task(sweep, "report", None)] if first.stages.report is not None else tasks
