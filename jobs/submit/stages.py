"""The chain around training: the jobs that prepare, evaluate and report, and their dependencies.

    prepare --afterok--> runs --after its run--> evaluate (one per run) --afterany--> report
                           `--------------------afterany-----------------------------^

The order and meaning of the chain are the same in every queue; a `StageQueue` of the launcher has the text of scripts,
and the dependency of a stage on its run. A run that is started again is waited for. The exit code is not enough to know
success (a run that stopped before its time limit exits with 0): each stage also reads the records of the runs that it
needs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.files import exists
from jobs.plan.rules.stages import OF_EACH_RUN, stages_of, stages_of_each_run
from jobs.rundir import RunDir, SweepDir, read_events
from jobs.schema import Run
from jobs.submit.cancellation import ForeignJobsError
from jobs.submit.preparation.container import rank_python
from jobs.submit.preparation.script_lines import quoted_path
from jobs.submit.queues import queue_of
from jobs.submit.scheduler_call import Scheduler
from jobs.submit.sweeps.intents import stage_task, submit_marked
from jobs.submit.sweeps.submissions import latest_submissions

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


@dataclass(frozen=True)
class StageJob:
    """A stage as a job, or as an array with a task for each run."""

    name: str
    sweep: SweepDir
    run: Run
    """The run that has its resources."""
    code: Path
    arguments: tuple[str, ...]
    """The words of shell after the command, of each task."""
    after: str | None
    """The dependency of the job; None: it waits for nothing."""
    mark: str | None
    """The name of the job, by which its submission finds it; None in a preview."""

    @property
    def command(self) -> str:
        """The words of shell that start the program of the stage."""
        return f"{rank_python(self.run)} -u -m jobs.stages.{self.name}"


class StageQueue:
    """The queue of a scheduler as a chain of stages uses it; jobs.submit.queues finds interrupted submissions in it."""

    launcher: str
    """The launcher of its jobs in the ledger."""
    scheduler: Scheduler

    def job_name(self, text: str) -> str:
        """Return a name as the scheduler accepts it."""
        return text

    def script(self, job: StageJob) -> str:
        """Return the batch script of a stage."""
        raise NotImplementedError

    def after_run(self, job_id: str) -> str:
        """Return the dependency of a stage on the job of its run; of an array each task waits for that of its run."""
        raise NotImplementedError


class Chain:
    """The stages of one submission and their dependencies; each method submits one kind of stage."""

    def __init__(
        self, queue: StageQueue, sweep: SweepDir, runs: Group, missing_stages: Sequence[MissingStages], most: int
    ) -> None:
        self.queue = queue
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
        runs = [each.name for each in self.unprepared] if name == "prepare" else []
        of_all = shlex.join([str(self.sweep.path), *runs])
        arguments = tuple(quoted_path(each) for _, each in group) if name in OF_EACH_RUN else (of_all,)
        return self.queue.script(StageJob(name, self.sweep, run, directory.code_snapshot, arguments, after, mark))

    def prepare(self) -> None:
        """Submit the job that makes the data of the runs, instead of earlier ones for which no run waits."""
        if self.unprepared:
            needed = {submission.after for submission in latest_submissions(self.sweep).values()}
            earlier = {
                entry["job_id"]
                for entry in read_events(self.sweep.submissions)
                if entry.get("stage") == "prepare" and entry["launcher"] == self.queue.launcher
            }
            # A stage that was submitted for runs that were cancelled since would make data for nobody.
            with suppress(ForeignJobsError):  # the scheduler has used the id of an ended job again
                queue_of(self.queue.launcher).cancel(self.sweep, earlier - needed)
            self.submit("prepare", [self.first], None)

    def follow(self, group: Group, job_ids: list[str]) -> None:
        """Submit the stages that follow each of these runs, which are one job or one array."""
        self.trained.append(job_ids[0].partition("_")[0])
        for name in stages_of_each_run(self.first[0]):
            # Tasks are paired by their index, so both arrays list the runs in one order.
            self.submit(name, group, self.queue.after_run(self.trained[-1]))

    def finish(self) -> None:
        """Submit the stages after runs that were started earlier, and the report."""
        by_code: dict[tuple[str, Path], Group] = {}
        for each in self.missing_stages:
            for name in each.stages:
                if each.job_id is None:
                    by_code.setdefault((name, each.directory.code_snapshot), []).append((each.run, each.directory))
                else:
                    self.submit(name, [(each.run, each.directory)], self.queue.after_run(each.job_id))
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
        """Submit one job or array of a stage: of each of these runs, which have the same code, or of the sweep."""
        directories = [directory for _, directory in group] if name in OF_EACH_RUN else [None]
        tasks = [stage_task(self.sweep, name, directory) for directory in directories]
        job_name = self.queue.job_name(f"{group[0][0].sweep}-{name}")
        with self.queue.scheduler.refusals_of(f"stages.{name}"):
            self.jobs.setdefault(name, []).extend(
                submit_marked(
                    self.sweep, self.queue.launcher, job_name, tasks,
                    lambda mark: self.script(name, group, after, mark), array=len(tasks) > 1,
                )
            )  # fmt: skip


def local_tasks(sweep: SweepDir, queued: Group) -> list[dict[str, Any]]:
    """Return the ledger's records of the stages of a local queue, without its process."""
    first = queued[0][0]
    tasks = [stage_task(sweep, name, directory) for name in stages_of_each_run(first) for _, directory in queued]
    return [*tasks, stage_task(sweep, "report", None)] if first.stages.report is not None else tasks
