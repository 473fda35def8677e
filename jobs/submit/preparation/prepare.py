"""Prepare the run directories of a sweep, all or none.

Directories are written under a hidden name and renamed when all of them are complete, so a full disk, a read-only
file system or Ctrl-C leaves no partial run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from jobs.data import refuse_unready
from jobs.errors import ConfigError, RunDirError
from jobs.frozen import dump_run
from jobs.layout import accumulation, has_gpus, layout_of
from jobs.metrics import PARAMETERS_TRAINED
from jobs.output import own_directory, write_file
from jobs.plan.compose import Point
from jobs.plan.cost import gpu_hours_limit, parameters_of, trained_parameters
from jobs.plan.legality import warnings
from jobs.plan.predict.memory import memory
from jobs.plan.predict.speed import speed
from jobs.plan.rules.memory import prediction_fits
from jobs.private import make_private
from jobs.rundir import RunDir, SweepDir, append_event, write_json
from jobs.runtime.steps import Samples, samples_of
from jobs.schema import Run
from jobs.submit.preparation import container
from jobs.submit.preparation.code_store import link_code, remove_unused_code, snapshot_code
from jobs.submit.preparation.preview import gives_way, remove_preview
from jobs.submit.preparation.provenance import provenance
from jobs.submit.sweeps.submissions import shell_clusters
from jobs.submit.trust.integrity import refuse_changed
from jobs.submit.trust.own_sweeps import add_submitted, own_or_refuse
from jobs.work.work import kind_of, work_of


@dataclass(frozen=True)
class Prepared:
    """The run directories of one submission, ready to be launched."""

    sweep: SweepDir
    runs: list[tuple[Run, RunDir]]
    samples: list[Samples | None]
    """Those of each run, in the order of the points."""
    new_sweep: bool
    """True if the sweep directory contained nothing before this submission."""
    new_code: list[Path]
    """The copy of the code in the store, if this submission made it."""

    def take_back(self) -> None:
        """Remove the directories that were prepared and will not be launched."""
        for _, directory in self.runs:
            shutil.rmtree(directory.path, ignore_errors=True)
        if self.new_sweep:
            shutil.rmtree(self.sweep.path, ignore_errors=True)
        with suppress(OSError):
            remove_unused_code(self.sweep.path.parent, self.new_code)


@contextmanager
def prepared(points: list[Point], *, try_large: bool = False) -> Iterator[Prepared]:
    """Prepare the run directories of all points; no other shell resumes or cancels them inside the block.

    Raises DataError if the data of a run cannot be used, ConfigError if its samples are predicted to be too long for
    its GPUs, unless `try_large`, RunDirError if a directory exists, cannot be written, or is writable by other users;
    then no run directory was made. A preview of the same name is replaced.
    """
    runs = [point.run for point in points]
    sweep = sweep_directory(runs)
    if not gives_way(sweep, runs):
        refuse_taken(sweep, runs)
    refuse_changed(sweep.path, runs[0].cluster.trusted_group)
    for run in runs:
        work_of(run).refuse_unready(run, sweep.path)
    samples = prepare_samples(runs)
    if not try_large:
        refuse_large_samples(runs, samples)
    lock = FileLock(sweep.lock)
    try:
        with disk_errors_explained(sweep):
            make_private(sweep.path)
            lock.acquire()
            # While this shell waited for the lock, another may have made them, or removed the whole sweep.
            if gives_way(sweep, runs):
                remove_preview(sweep)
            refuse_taken(sweep, runs)
            shell_clusters(sweep)
            make_private(sweep.path)
            is_new = all(path == sweep.lock for path in sweep.path.iterdir())
            made = Prepared(sweep, [], samples, is_new, [])
            own_or_refuse(sweep, runs[0].launcher.kind, new=made.new_sweep)
            write_runs(made, points)
        yield made
    finally:
        lock.release()


@contextmanager
def disk_errors_explained(sweep: SweepDir) -> Iterator[None]:
    """Turn errors of the file system into a RunDirError with a remedy."""
    try:
        yield
    except OSError as error:
        raise RunDirError(
            f"{sweep.path} could not be prepared: {error.strerror or error} ({error.filename or sweep.path}). "
            "No run was made. Free some space or set another place with runs_dir=PATH."
        ) from error


def write_runs(made: Prepared, points: list[Point]) -> None:
    """Make all run directories, or none."""
    sweep = made.sweep
    try:
        own_directory(sweep.logs, mode=0o700)
        # Only a copy that this submission made may be taken back with it.
        known = list(sweep.code_store.glob("*"))
        code = snapshot_code(sweep)
        made.new_code.extend({code} - set(known))
        facts = provenance(code.name)
        for run in (point.run for point in points if point.run.cluster.container is not None):
            if makes_samples_later(run) and not run.launcher.kind.is_preview:
                # The stage that fills it runs in the container, where it is mounted.
                Path(run.data.cache_dir).mkdir(parents=True, exist_ok=True)
        # In the sweep itself: a rename never leaves a file system.
        with tempfile.TemporaryDirectory(prefix=".preparing-", dir=sweep.path) as staging:
            for point, found in zip(points, made.samples, strict=True):
                directory = RunDir(Path(staging) / str(point.run.name))
                write_run(directory, point, found, facts)
                link_code(directory, point.code or code, sweep.run(directory.name).path)
            for point in points:
                directory = sweep.run(str(point.run.name))
                (Path(staging) / directory.name).rename(directory.path)
                made.runs.append((point.run, directory))
        add_submitted(sweep, code, [directory for _, directory in made.runs])
    except BaseException:
        made.take_back()
        raise


def sweep_directory(runs: list[Run]) -> SweepDir:
    """Return the sweep directory of these runs; raises ConfigError if sweep, launcher or stages differ among them."""
    paths = {Path(run.runs_dir) / str(run.sweep) for run in runs}
    if len(paths) > 1:
        raise ConfigError("runs_dir and sweep cannot be swept over: one submission is one sweep directory.")
    if len({run.launcher.kind for run in runs}) > 1:
        raise ConfigError("launcher cannot be swept over, nor follow a swept cluster: one submission has one launcher.")
    if any(run.stages != runs[0].stages for run in runs):
        raise ConfigError("stages cannot be swept over: one submission is one chain of stages.")
    return SweepDir(paths.pop())


def refuse_taken(sweep: SweepDir, runs: list[Run]) -> None:
    """Raise RunDirError if a run directory exists already."""
    taken = [str(run.name) for run in runs if os.path.lexists(sweep.run(str(run.name)).path)]
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise RunDirError(
            f"{sweep.run(taken[0]).path}{more} exists, and a run is never overwritten. Run `slurmscale resume "
            f"{sweep.quoted}` to continue it, set sweep=NAME for another place, or remove it."
        )


def prepare_samples(runs: list[Run]) -> list[Samples | None]:
    """Return the tokenized samples of each run; made at submission, so that bad data is found at submission.

    None for a run that serves or measures storage, for launcher=dry, and if a stage makes them later: then only missing
    files are found.
    Raises DataError for text that cannot be used or has fewer samples than a global batch.
    """
    made: dict[str, Path] = {}
    found = []
    for run in runs:
        reads, later = work_of(run).reads_samples, makes_samples_later(run)
        if reads and later and not run.launcher.kind.is_preview:
            refuse_unready(run.data, run.model.vocab_size)
        found.append(samples_of(run, made) if reads and not later else None)
    return found


def refuse_large_samples(runs: list[Run], samples: list[Samples | None]) -> None:
    """Raise ConfigError if the samples of a run are too long for its GPUs; without them their shortest may have fit."""
    for run, found in zip(runs, samples, strict=True):
        if found is not None and (reason := prediction_fits(run, found)):
            raise ConfigError(
                f"{run.name}: {reason} A smaller job.micro_batch_size keeps fewer activations, as "
                "engine.activation_checkpointing=full does."
            )


def makes_samples_later(run: Run) -> bool:
    """Return True if the samples do not exist at submission; launcher=local trains on the machine that prepares."""
    kind = run.launcher.kind
    return kind.is_preview or (run.stages.prepare is not None and not kind.on_this_machine)


def write_run(directory: RunDir, point: Point, samples: Samples | None, facts: dict[str, Any]) -> None:
    """Write the files of a run that has not started."""
    run = point.run
    directory.path.mkdir(mode=0o700)
    write_file(directory.config, dump_run(run))
    write_json(directory.plan, plan_of(run, samples) | (samples.planned() if samples else {}))
    image = container.identity(run.cluster.container)
    known = facts if image is None else facts | {"container": image}
    write_json(directory.provenance, known | {"overrides": point.overrides} | dict(point.facts))
    if samples is not None:
        directory.data.symlink_to(samples.directory)
    # Made before any node looks for it: NFS may answer for a while that it is still missing.
    own_directory(directory.failures)
    append_event(directory, "prepared")


def plan_of(run: Run, samples: Samples | None = None) -> dict[str, Any]:
    """Return the planned values of a run; unknown ones are absent."""
    like = work_of(run).predicted_as(run)
    predicted = None if like is None else speed(like, samples)
    plan = {
        "layout": layout_of(run).record(),
        "ranks": run.ranks,
        "accumulation": accumulation(run),
        "global_batch_size": run.global_batch_size,
        "steps": run.job.steps,
        "parameters": parameters_of(run),
        PARAMETERS_TRAINED.name: trained_parameters(run),
        "gpu_hours_limit": gpu_hours_limit(run),
        "memory": memory(like, samples).record() if like is not None and has_gpus(run) else None,
        "speed": None if predicted is None else predicted.record(),
        kind_of(run): work_of(run).predicted_record(run),
        "warnings": warnings(run, samples),
    }
    return {key: value for key, value in plan.items() if value is not None}
