"""Preparing: every run directory of a sweep, or none.

Directories are made under a hidden name and renamed when all of them are whole, so that a full disk, a read-only
file system or Ctrl-C leaves nothing that looks like a run.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import jobs
from jobs.compose import Point
from jobs.data import Batches, open_dataset
from jobs.data import prepare as prepare_data
from jobs.engines.support import unsupported
from jobs.errors import ConfigError, RunDirError
from jobs.layout import accumulation, layout_of
from jobs.plan.cost import gpu_hours_limit, parameters
from jobs.plan.legality import warnings
from jobs.rundir import RunDir, SweepDir, append_event, dump_run, now
from jobs.schema import LauncherKind, Run

PACKAGES = ("jobs", "analysis", "conf", "sbatch")
RECORDED_VERSIONS = ("slurmscale", "torch", "litgpt", "lightning", "hydra-core", "submitit", "numpy")


def prepare(points: list[Point]) -> tuple[SweepDir, list[RunDir]]:
    """Make the run directories of all points.

    Raises ConfigError when an engine cannot run a point, DataError when its data cannot be used, RunDirError when a
    directory exists or cannot be written; then no run directory was made.
    """
    runs = [point.run for point in points]
    refuse_unsupported(runs)
    sweep = sweep_directory(runs)
    refuse_taken(sweep, runs)
    datasets = prepare_datasets(runs)
    made: list[RunDir] = []
    try:
        sweep.logs.mkdir(parents=True, exist_ok=True)
        code = snapshot_code(sweep)
        facts = provenance(code.name)
        with tempfile.TemporaryDirectory(prefix=".preparing-", dir=sweep.path) as staging:
            for point, dataset in zip(points, datasets, strict=True):
                directory = RunDir(Path(staging) / str(point.run.name))
                write_run(directory, point, code, facts)
                if dataset is not None:
                    directory.data.symlink_to(dataset)
            for run in runs:
                target = sweep.run(str(run.name))
                (Path(staging) / str(run.name)).rename(target.path)
                made.append(target)
    except BaseException as error:
        remove(made)
        if isinstance(error, OSError):
            raise RunDirError(
                f"{sweep.path} could not be prepared: {error.strerror or error} ({error.filename or sweep.path}). "
                "No run was made. Make room or choose another place with runs_dir=PATH."
            ) from error
        raise
    return sweep, made


def remove(runs: list[RunDir]) -> None:
    """Take back prepared runs that were never submitted."""
    for run in runs:
        shutil.rmtree(run.path, ignore_errors=True)


def refuse_unsupported(runs: list[Run]) -> None:
    """Raise ConfigError for runs that no engine executes today."""
    reasons = {reason: run.name for run in runs if (reason := unsupported(run))}
    if reasons:
        raise ConfigError("\n".join(f"{name}: {reason}" for reason, name in reasons.items()))


def sweep_directory(runs: list[Run]) -> SweepDir:
    """The one sweep directory of these runs; raises ConfigError when they name several."""
    paths = {Path(run.runs_dir) / str(run.sweep) for run in runs}
    if len(paths) > 1:
        raise ConfigError("runs_dir and sweep cannot be swept over: one submission is one sweep directory.")
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


def prepare_datasets(runs: list[Run]) -> list[Path | None]:
    """The tokenized samples of each run, made now so that bad data is found now; None for launcher=dry.

    Raises DataError for text that cannot be used or holds less than a global batch.
    """
    found: list[Path | None] = []
    made: dict[str, Path] = {}
    for run in runs:
        if run.launcher.kind is LauncherKind.dry:
            found.append(None)
            continue
        key = f"{run.data} {run.job.sequence_length} {run.model.vocab_size} {run.job.seed}"
        if key not in made:
            made[key] = prepare_data(
                run.data,
                sequence_length=run.job.sequence_length,
                vocab_size=run.model.vocab_size,
                seed=run.job.seed,
            )
        Batches(
            open_dataset(made[key]),
            global_batch_size=run.global_batch_size,
            micro_batch_size=run.job.micro_batch_size,
            dp=layout_of(run).dp,
            dp_rank=0,
            seed=run.job.seed,
        )
        found.append(made[key])
    return found


def write_run(directory: RunDir, point: Point, code: Path, facts: dict[str, Any]) -> None:
    """Write the files that a run starts from."""
    run = point.run
    directory.path.mkdir()
    directory.config.write_text(dump_run(run))
    write_json(directory.plan, plan_of(run))
    write_json(directory.provenance, facts | {"overrides": point.overrides})
    directory.code.symlink_to(Path("..") / code.name)
    append_event(directory, "prepared")


def plan_of(run: Run) -> dict[str, Any]:
    """What is known of a run before it starts; absent where it is not."""
    plan = {
        "layout": asdict(layout_of(run)),
        "ranks": run.ranks,
        "accumulation": accumulation(run),
        "global_batch_size": run.global_batch_size,
        "parameters": parameters(run.model),
        "gpu_hours_limit": gpu_hours_limit(run),
        "warnings": warnings(run),
    }
    return {key: value for key, value in plan.items() if value is not None}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON for people and programs."""
    path.write_text(json.dumps(value, indent=1) + "\n")


def snapshot_code(sweep: SweepDir) -> Path:
    """Copy the code being executed into the sweep, under a name made from its content; equal code is kept once."""
    root = Path(jobs.__file__).parent.parent
    files = sorted(
        file
        for package in PACKAGES
        for file in (root / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    contents = {file.relative_to(root): file.read_bytes() for file in files}
    digest = hashlib.sha256()
    for path, content in contents.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    target = sweep.code(digest.hexdigest()[:12])
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix=".code-", dir=sweep.path) as staging:
            for path, content in contents.items():
                copy = Path(staging) / "code" / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
            try:
                (Path(staging) / "code").rename(target)
            except OSError:
                if not target.exists():  # else another submission made the same one meanwhile
                    raise
    return target


def provenance(code_digest: str) -> dict[str, Any]:
    """Where this submission came from."""
    facts: dict[str, Any] = {
        "time": now(),
        "host": socket.gethostname(),
        "user": getpass.getuser(),
        "command": sys.argv,
        "code_digest": code_digest.removeprefix("code-"),
        "versions": {"python": sys.version.split()[0], **installed_versions()},
    }
    commit = git("rev-parse", "HEAD")
    if commit:
        facts["git"] = {"commit": commit, "dirty": bool(git("status", "--porcelain"))}
    return facts


def installed_versions() -> dict[str, str]:
    """Versions by their metadata, nothing imported; what is not installed is absent."""
    found = {}
    for name in RECORDED_VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git(*arguments: str) -> str | None:
    """What git says of the code being executed; None outside a checkout or without git."""
    root = Path(jobs.__file__).parent.parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
