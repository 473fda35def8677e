"""The chain around training: the jobs that prepare, evaluate and report, and their dependencies.

    prepare --afterok--> runs --aftercorr--> evaluate (one task a run) --afterany--> report
                           `------------------afterany---------------------------------^

Slurm cancels stages whose dependencies failed (--kill-on-invalid-dep), so no job waits for ever; a run that is requeued
is waited for. The exit code is not enough to know success (a run that stopped before its time limit exits with 0): each
stage also reads the records of the runs that it needs.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import SubmitError
from jobs.plan.rules.stages import stages_of
from jobs.rundir import RunDir, SweepDir, append_record, load_run, now, read_events
from jobs.schema import Run
from jobs.stages import evaluate, prepare, report
from jobs.submit import slurm_commands
from jobs.submit.batch_script import batch_script, rank_python, stage_resources, starting_after, submit_calls

Group = list[tuple[Run, RunDir]]


@dataclass(frozen=True)
class Unevaluated:
    """A run that needs an evaluation and no start."""

    run: Run
    directory: RunDir
    job_id: str | None
    """The job that trains it; None if it has finished."""


def refuse_beyond_partition(run: Run) -> None:
    """Raise SubmitError for a stage that its partition can never run."""
    for name, stage in stages_of(run).items():
        key = f"stages.{name}.partition" if stage.partition else "cluster.partition"
        slurm_commands.refuse_beyond_partition(
            stage.partition or run.cluster.partition, 1, stage.wall_time_min, prefix=f"stages.{name}.", key=key
        )


class Chain:
    """The stages of one submission to Slurm and their dependencies; each method submits one kind of stage."""

    def __init__(self, sweep: SweepDir, runs: Group, unevaluated: Sequence[Unevaluated], most: int) -> None:
        self.sweep = sweep
        self.unprepared = [directory for run, directory in runs if run.stages.prepare and not directory.data.exists()]
        self.unevaluated = unevaluated
        self.most = most
        """Most tasks of an array."""
        self.first = runs[0] if runs else (unevaluated[0].run, unevaluated[0].directory)
        self.trained: list[str] = []
        self.jobs: dict[str, list[str]] = {}
        """Job ids by stage."""

    @property
    def submitted(self) -> list[str]:
        """All jobs, last stage first: cancelled in this order, no job starts because another one ended."""
        return [job_id for ids in reversed(self.jobs.values()) for job_id in ids]

    @property
    def prepared_by(self) -> str | None:
        """The dependency of the runs; None without one."""
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
        return [line for name in self.names for line in (f"--- stage {name}", self.script(name))]

    def script(self, name: str) -> str:
        """Return the batch script of a stage for its first run, without its dependency."""
        run, directory = self.first
        sweep = str(self.sweep.path)
        arguments = {
            "prepare": [sweep, *(each.name for each in self.unprepared)],
            "evaluate": [str(directory.path)],
            "report": [sweep],
        }
        command = f"{rank_python(run)} -u -m jobs.stages.{name} {shlex.join(arguments[name])}"
        return f"{batch_script(command, self.sweep.logs, stage_resources(run, name, directory.code.resolve()))}\n"

    def test(self) -> None:
        """Raise SubmitError if sbatch would refuse a stage; submits nothing."""
        for name in self.names:
            run = self.first[0]
            try:
                slurm_commands.test_script(
                    self.script(name), 1, stages_of(run)[name].partition or run.cluster.partition
                )
            except slurm_commands.QueueFullError:
                # Other jobs may end before the stage is submitted; if not, the whole chain is refused then.
                continue
            except SubmitError as error:
                raise SubmitError(f"sbatch refuses stages.{name}: {error}. Nothing was submitted.") from error

    def prepare(self) -> None:
        """Submit the job that makes the data of the runs."""
        if self.unprepared:
            names = [directory.name for directory in self.unprepared]
            self.submit("prepare", self.first, [(prepare.main, str(self.sweep.path), names)], None)

    def evaluate(self, group: Group, job_ids: list[str]) -> None:
        """Submit an array of evaluations; each task waits for the task of its run."""
        self.trained.append(job_ids[0].partition("_")[0])
        if self.first[0].stages.evaluate is not None:
            self.evaluate_after(group, f"aftercorr:{self.trained[-1]}")

    def evaluate_after(self, group: Group, after: str | None) -> None:
        """Submit one array that evaluates these runs; all have the same code."""
        calls = [(evaluate.main, str(directory.path)) for _, directory in group]
        self.submit("evaluate", group[0], calls, after, [directory for _, directory in group])

    def finish(self) -> None:
        """Submit the evaluations of runs that were started earlier, and the report."""
        by_code: dict[Path, Group] = {}
        for each in self.unevaluated:
            if each.job_id is None:
                by_code.setdefault(each.directory.code.resolve(), []).append((each.run, each.directory))
            else:
                self.evaluate_after([(each.run, each.directory)], f"afterok:{each.job_id}")
                self.trained.append(each.job_id)
        for finished in by_code.values():
            for start in range(0, len(finished), self.most):
                self.evaluate_after(finished[start : start + self.most], None)
        if self.first[0].stages.report is not None:
            evaluated = dict.fromkeys(job_id.partition("_")[0] for job_id in self.jobs.get("evaluate", []))
            after = f"afterany:{':'.join([*self.trained, *evaluated])}"
            self.submit("report", self.first, [(report.main, str(self.sweep.path))], after)

    def submit(
        self,
        name: str,
        by: tuple[Run, RunDir],
        calls: list[tuple[Callable[..., None], *tuple[Any, ...]]],
        after: str | None,
        directories: Sequence[RunDir | None] = (None,),
    ) -> None:
        """Run one sbatch for these calls of a stage, with the resources and code of one run, and record the jobs."""
        run, directory = by
        parameters = starting_after(stage_resources(run, name, directory.code.resolve()), after)
        try:
            job_ids = submit_calls(run, self.sweep, parameters, calls)
        except slurm_commands.QueueFullError:
            raise
        except SubmitError as error:
            raise SubmitError(f"sbatch refused stages.{name}: {error}.") from error
        for job_id, its_run in zip(job_ids, directories, strict=True):
            self.jobs.setdefault(name, []).append(job_id)
            record(self.sweep, name, "slurm", job_id, its_run)


def record_local(sweep: SweepDir, queued: list[RunDir], job_id: str, process_started: float) -> None:
    """Append to the ledger the stages of a local queue."""
    stages = load_run(queued[0].config).stages
    for directory in queued if stages.evaluate is not None else ():
        record(sweep, "evaluate", "local", job_id, directory, process_started=process_started)
    if stages.report is not None:
        record(sweep, "report", "local", job_id, None, process_started=process_started)


def record(sweep: SweepDir, stage: str, launcher: str, job_id: str, directory: RunDir | None, **more: float) -> None:
    """Append to the ledger that a stage, of a run or of the whole sweep, was submitted under this id."""
    events = sweep.stages if directory is None else directory.status
    whose = {} if directory is None else {"run": directory.name}
    entry = {
        "time": now(),
        "event": "stage_submitted",
        "stage": stage,
        **whose,
        "launcher": launcher,
        "job_id": job_id,
        "host": socket.gethostname(),
        "events_before": sum(1 for _ in read_events(events)),
        **more,
    }
    append_record(sweep.submissions, entry)
