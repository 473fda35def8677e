"""Preparing: every run directory of a sweep, or none.

Directories are made under a hidden name and renamed when all of them are whole, so that a full disk, a read-only
file system or Ctrl-C leaves nothing that looks like a run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from jobs.data import open_dataset, refuse_unready
from jobs.data.tokenizer import CONFIG
from jobs.errors import ConfigError, DataError, RunDirError
from jobs.layout import accumulation, layout_of
from jobs.plan.compose import Point
from jobs.plan.cost import gpu_hours_limit, parameters
from jobs.plan.legality import warnings
from jobs.plan.litgpt_arguments import Script, script_of
from jobs.rundir import RunDir, SweepDir, append_event, dump_run, write_json
from jobs.runtime.steps import Samples, samples_of
from jobs.schema import EngineKind, Run
from jobs.submit.permissions import make_private
from jobs.submit.provenance import provenance, snapshot_code


@dataclass(frozen=True)
class Prepared:
    """The run directories of one submission, ready to be launched."""

    sweep: SweepDir
    runs: list[tuple[Run, RunDir]]
    new_sweep: bool
    """Whether this submission made the sweep directory."""

    def take_back(self) -> None:
        """Remove what was prepared and will not be launched."""
        for _, directory in self.runs:
            shutil.rmtree(directory.path, ignore_errors=True)
        if self.new_sweep:
            shutil.rmtree(self.sweep.path, ignore_errors=True)


@contextmanager
def prepared(points: list[Point]) -> Iterator[Prepared]:
    """The run directories of all points, which no other shell resumes or cancels while the block goes on.

    Raises DataError when its data cannot be used, RunDirError when a
    directory exists or cannot be written; then no run directory was made.
    """
    runs = [point.run for point in points]
    sweep = sweep_directory(runs)
    refuse_taken(sweep, runs)
    samples = prepare_samples(runs)
    lock = FileLock(sweep.lock)
    made = Prepared(sweep, [], new_sweep=not sweep.path.exists())
    try:
        with disk_errors_told(sweep):
            make_private(sweep.path)
            lock.acquire()
            write_runs(made, points, samples)
        yield made
    finally:
        lock.release()


@contextmanager
def disk_errors_told(sweep: SweepDir) -> Iterator[None]:
    """Turn what the file system refuses into a RunDirError with what to do."""
    try:
        yield
    except OSError as error:
        raise RunDirError(
            f"{sweep.path} could not be prepared: {error.strerror or error} ({error.filename or sweep.path}). "
            "No run was made. Make room or choose another place with runs_dir=PATH."
        ) from error


def write_runs(made: Prepared, points: list[Point], samples: list[Samples | None]) -> None:
    """Make all run directories, or none."""
    sweep = made.sweep
    try:
        # While this shell waited for its turn, another may have made them, or taken back the whole sweep.
        refuse_taken(sweep, [point.run for point in points])
        make_private(sweep.path)
        sweep.logs.mkdir(exist_ok=True, mode=0o700)
        code = snapshot_code(sweep)
        facts = provenance(code.name)
        with tempfile.TemporaryDirectory(prefix=".preparing-", dir=sweep.path) as staging:
            for point, found in zip(points, samples, strict=True):
                write_run(RunDir(Path(staging) / str(point.run.name)), point, point.code or code, found, facts)
            for point in points:
                directory = sweep.run(str(point.run.name))
                (Path(staging) / directory.name).rename(directory.path)
                made.runs.append((point.run, directory))
    except BaseException:
        made.take_back()
        raise


def sweep_directory(runs: list[Run]) -> SweepDir:
    """The one sweep directory of these runs; raises ConfigError when they name several."""
    paths = {Path(run.runs_dir) / str(run.sweep) for run in runs}
    if len(paths) > 1:
        raise ConfigError("runs_dir and sweep cannot be swept over: one submission is one sweep directory.")
    if len({run.launcher.kind for run in runs}) > 1:
        raise ConfigError("launcher cannot be swept over, nor follow a swept cluster: one submission has one launcher.")
    if any(run.stages != runs[0].stages for run in runs):
        raise ConfigError("stages cannot be swept over: one submission is one chain of stages.")
    return SweepDir(paths.pop())


def refuse_taken(sweep: SweepDir, runs: list[Run]) -> None:
    """Raise RunDirError when a run directory is there already."""
    taken = [str(run.name) for run in runs if os.path.lexists(sweep.run(str(run.name)).path)]
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise RunDirError(
            f"{sweep.run(taken[0]).path}{more} exists, and a run is never overwritten. Type `slurmscale resume "
            f"{sweep.quoted}` to go on with it, sweep=NAME for another place, or remove it."
        )


def prepare_samples(runs: list[Run]) -> list[Samples | None]:
    """The tokenized samples of each run, made now so that bad data is found now.

    None for launcher=dry, and where a stage makes them later: then only files that are not there are found. Raises
    DataError for text that cannot be used or holds less than a global batch.
    """
    made: dict[str, Path] = {}
    for run in runs:
        if not run.launcher.kind.is_preview and makes_samples_later(run):
            refuse_unready(run.data, run.model.vocab_size)
    found = [None if makes_samples_later(run) else samples_of(run, made) for run in runs]
    for run, samples in zip(runs, found, strict=True):
        if samples is not None and run.engine.kind is EngineKind.litgpt:
            refuse_bare_tokenizer(run, samples)
    return found


def refuse_bare_tokenizer(run: Run, samples: Samples) -> None:
    """Raise DataError where LitGPT's fine-tuning would not find what it reads beside a tokenizer."""
    names = {file.name for file in open_dataset(samples.directory).tokenizer_files}
    if script_of(run) is not Script.pretrain and CONFIG not in names:
        raise DataError(
            f"engine=litgpt wants a {CONFIG} beside the tokenizer, and data.tokenizer={run.data.tokenizer} has none. "
            "Copy the one that comes with it."
        )


def makes_samples_later(run: Run) -> bool:
    """Whether the samples are not there when the run is submitted; launcher=local trains where it prepares."""
    kind = run.launcher.kind
    return kind.is_preview or (run.stages.prepare is not None and not kind.on_this_machine)


def write_run(directory: RunDir, point: Point, code: Path, samples: Samples | None, facts: dict[str, Any]) -> None:
    """Write the files that a run starts from."""
    run = point.run
    directory.path.mkdir()
    directory.config.write_text(dump_run(run))
    write_json(directory.plan, plan_of(run, samples.steps if samples else run.job.steps))
    write_json(directory.provenance, facts | {"overrides": point.overrides} | dict(point.facts))
    directory.code.symlink_to(Path("..") / code.name)
    if samples is not None:
        directory.data.symlink_to(samples.directory)
    append_event(directory, "prepared")


def plan_of(run: Run, steps: int | None) -> dict[str, Any]:
    """What is known of a run before it starts; absent where it is not."""
    plan = {
        "layout": asdict(layout_of(run)),
        "ranks": run.ranks,
        "accumulation": accumulation(run),
        "global_batch_size": run.global_batch_size,
        "steps": steps,
        "parameters": parameters(run.model),
        "gpu_hours_limit": gpu_hours_limit(run),
        "warnings": warnings(run),
    }
    return {key: value for key, value in plan.items() if value is not None}
