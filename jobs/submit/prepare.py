"""Preparing: every run directory of a sweep, or none.

Directories are made under a hidden name and renamed when all of them are whole, so that a full disk, a read-only
file system or Ctrl-C leaves nothing that looks like a run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs.compose import Point
from jobs.data import open_dataset
from jobs.data import prepare as prepare_data
from jobs.errors import ConfigError, RunDirError
from jobs.layout import accumulation, layout_of
from jobs.plan.cost import gpu_hours_limit, parameters
from jobs.plan.legality import warnings
from jobs.rundir import RunDir, SweepDir, append_event, dump_run
from jobs.schema import LauncherKind, Run, Source
from jobs.secrets import redacted
from jobs.submit.private import make_private
from jobs.submit.provenance import provenance, snapshot_code
from jobs.workloads.steps import batches_of, steps_of


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


@dataclass(frozen=True)
class Samples:
    """The tokenized samples of a run and how long they make it."""

    directory: Path
    steps: int


def prepare(points: list[Point]) -> Prepared:
    """Make the run directories of all points.

    Raises DataError when its data cannot be used, RunDirError when a
    directory exists or cannot be written; then no run directory was made.
    """
    runs = [point.run for point in points]
    sweep = sweep_directory(runs)
    refuse_taken(sweep, runs)
    samples = prepare_samples(runs)
    prepared = Prepared(sweep, [(run, sweep.run(str(run.name))) for run in runs], not sweep.path.exists())
    try:
        make_private(sweep.path)
        sweep.logs.mkdir(exist_ok=True, mode=0o700)
        code = snapshot_code(sweep)
        facts = provenance(code.name)
        with tempfile.TemporaryDirectory(prefix=".preparing-", dir=sweep.path) as staging:
            for point, found in zip(points, samples, strict=True):
                write_run(RunDir(Path(staging) / str(point.run.name)), point, code, found, facts)
            for _, directory in prepared.runs:
                (Path(staging) / directory.name).rename(directory.path)
    except OSError as error:
        prepared.take_back()
        raise RunDirError(
            f"{sweep.path} could not be prepared: {error.strerror or error} ({error.filename or sweep.path}). "
            "No run was made. Make room or choose another place with runs_dir=PATH."
        ) from error
    except BaseException:
        prepared.take_back()
        raise
    return prepared


def sweep_directory(runs: list[Run]) -> SweepDir:
    """The one sweep directory of these runs; raises ConfigError when they name several."""
    paths = {Path(run.runs_dir) / str(run.sweep) for run in runs}
    if len(paths) > 1:
        raise ConfigError("runs_dir and sweep cannot be swept over: one submission is one sweep directory.")
    if len({run.launcher.kind for run in runs}) > 1:
        raise ConfigError("launcher cannot be swept over, nor follow a swept cluster: one submission has one launcher.")
    return SweepDir(paths.pop())


def refuse_taken(sweep: SweepDir, runs: list[Run]) -> None:
    """Raise RunDirError when a run directory is there already."""
    taken = [str(run.name) for run in runs if os.path.lexists(sweep.run(str(run.name)).path)]
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise RunDirError(
            f"{sweep.run(taken[0]).path}{more} exists, and a run is never overwritten. Type `slurmscale resume "
            f"{sweep.path}` to go on with it, sweep=NAME for another place, or remove it."
        )


def prepare_samples(runs: list[Run]) -> list[Samples | None]:
    """The tokenized samples of each run, made now so that bad data is found now; None for launcher=dry.

    Raises DataError for text that cannot be used or holds less than a global batch.
    """
    made: dict[str, Path] = {}
    return [None if run.launcher.kind is LauncherKind.dry else samples_of(run, made) for run in runs]


def samples_of(run: Run, made: dict[str, Path]) -> Samples:
    """The samples of one run; `made` holds those of earlier runs of the same text."""
    # Only random tokens depend on the seed.
    seed = run.job.seed if run.data.source is Source.random else None
    key = f"{run.data} {run.job.sequence_length} {run.model.vocab_size} {seed}"
    if key not in made:
        made[key] = prepare_data(
            run.data, sequence_length=run.job.sequence_length, vocab_size=run.model.vocab_size, seed=run.job.seed
        )
    return Samples(made[key], steps_of(run.job, batches_of(run, open_dataset(made[key]), rank=0)))


def write_run(directory: RunDir, point: Point, code: Path, samples: Samples | None, facts: dict[str, Any]) -> None:
    """Write the files that a run starts from."""
    run = point.run
    directory.path.mkdir()
    directory.config.write_text(dump_run(run))
    write_json(directory.plan, plan_of(run, samples.steps if samples else run.job.steps))
    write_json(directory.provenance, facts | {"overrides": point.overrides})
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


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON for people and programs."""
    path.write_text(json.dumps(redacted(value), indent=1) + "\n")
