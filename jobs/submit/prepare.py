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

from jobs.data import open_dataset, refuse_unready
from jobs.data.tokenizer import CONFIG
from jobs.engines.litgpt.arguments import Script, script_of
from jobs.engines.litgpt.names import litgpt_fields
from jobs.errors import ConfigError, DataError, RunDirError
from jobs.files import read_yaml, reason
from jobs.frozen import dump_run
from jobs.layout import accumulation, has_gpus, layout_of
from jobs.metrics import PARAMETERS_TRAINED
from jobs.output import own_directory, write_file
from jobs.plan.compose import Point
from jobs.plan.cost import gpu_hours_limit, parameters_of, trained_parameters
from jobs.plan.legality import warnings
from jobs.plan.model_file import from_config_json
from jobs.plan.predict.memory import memory
from jobs.plan.predict.speed import speed
from jobs.plan.rules.memory import prediction_fits
from jobs.rundir import RunDir, SweepDir, append_event, write_json
from jobs.runtime.steps import Samples, samples_of
from jobs.schema import EngineKind, Run
from jobs.settings.serving import Layout
from jobs.submit.code_store import link_code, remove_unused_code, snapshot_code
from jobs.submit.preview import gives_way, remove_preview
from jobs.submit.provenance import provenance
from jobs.submit.submissions import shell_clusters
from jobs.submit.trust.integrity import make_private, refuse_changed
from jobs.submit.trust.own_sweeps import add_submitted, own_or_refuse
from jobs.work.images.make import refuse_full
from jobs.work.images.shards import shards_of
from jobs.work.serve.weights import LITGPT_CONFIG, LITGPT_WEIGHTS, is_converted
from jobs.work.storage.space import image_bytes, refused_space

MODEL_FILES = ("config.json", "tokenizer.json", "*.safetensors")
"""Files of a model in Hugging Face's layout, which a server reads."""
LITGPT_FILES = (LITGPT_CONFIG, "tokenizer.json", LITGPT_WEIGHTS)
"""Files of a LitGPT directory."""
SIZES = ("layers", "hidden_size", "heads", "kv_heads", "head_size", "intermediate_size", "vocab_size")
"""Keys of `model` that decide the memory of a replica."""
LITGPT_SIZES = ("n_layer", "n_embd", "n_head", "n_query_groups", "head_size", "intermediate_size", "padded_vocab_size")
"""The same by their names in LitGPT's configuration."""
MOST_MADE_BYTES = 10e9
"""Images that a run makes in its own directory; a core makes some MB a second."""


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
    refuse_missing_weights(runs)
    refuse_short_storage(runs, sweep)
    refuse_unusable_images(runs, sweep)
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


def refuse_missing_weights(runs: list[Run]) -> None:
    """Raise ConfigError if the weights that a run starts from, or serves, do not exist."""
    for run in runs:
        start = run.job.init_from
        if run.serving is not None:
            refuse_missing_model(run)
        elif start is not None and not run.job.init_from_is_remote and not (Path(start) / "lit_model.pth").exists():
            raise ConfigError(
                f"{run.name}: job.init_from={start} has no lit_model.pth here. Set it to a LitGPT checkpoint directory "
                "(litgpt download, or the export/ of a run), or job.init_from_is_remote=true if it exists on the nodes "
                "only."
            )


def refuse_missing_model(run: Run) -> None:
    """Raise ConfigError if the directory of the model that a run serves does not exist, or is of another model."""
    where = run.job.init_from
    if where is None:
        raise ConfigError(
            f"{run.name}: job=serve has no model to serve. Set job.init_from=DIRECTORY, a model in Hugging Face's "
            f"layout ({', '.join(MODEL_FILES)})."
        )
    if run.job.init_from_is_remote:
        return
    assert run.engine.server is not None
    litgpt = run.engine.server.layout is Layout.litgpt or is_converted(run)
    missing = [name for name in (LITGPT_FILES if litgpt else MODEL_FILES) if not any(Path(where).glob(name))]
    if missing:
        given = "a LitGPT directory" if litgpt else "a model in Hugging Face's layout (hf download), a LitGPT directory"
        raise ConfigError(
            f"{run.name}: job.init_from={where} has no {missing[0]} here. Set it to {given} (litgpt download, or the "
            "export/ of a run), or job.init_from_is_remote=true if it exists on the nodes only."
        )
    if litgpt:
        refuse_other_litgpt_model(run, Path(where))
        return
    there = from_config_json(Path(where) / "config.json")
    differing = [key for key in SIZES if getattr(there, key) != getattr(run.model, key)]
    if differing:
        key = differing[0]
        raise ConfigError(
            f"{run.name}: model.{key}={getattr(run.model, key)}, and the model in job.init_from={where} has "
            f"{getattr(there, key)}. Set model to its file, which `slurmscale model {where}` writes."
        )


def refuse_other_litgpt_model(run: Run, where: Path) -> None:
    """Raise ConfigError if a LitGPT directory is of another model than the run."""
    file = where / LITGPT_CONFIG
    try:
        there = read_yaml(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run.name}: {file} cannot be read: {reason(error)}. Set another job.init_from.") from error
    wanted = litgpt_fields(run.model)
    for name in LITGPT_SIZES:
        found = there.get(name) if isinstance(there, dict) else None
        if found != wanted[name]:
            raise ConfigError(
                f"{run.name}: {name} is {found} in {file}, and {wanted[name]} in model={run.model.name}. Set model to "
                "that of job.init_from."
            )


def refuse_short_storage(runs: list[Run], sweep: SweepDir) -> None:
    """Raise ConfigError if a storage that this machine sees has not the space for the test of a run."""
    for run in runs:
        where = Path(run.storage.path or sweep.path) if run.storage else None
        # A path of the nodes alone is examined there (jobs.work.storage.measure).
        if where is None or (run.storage and run.storage.path and not where.exists()):
            continue
        if (refusal := refused_space(run, where)) is not None:
            raise ConfigError(f"{run.name}: {refusal}")


def refuse_unusable_images(runs: list[Run], sweep: SweepDir) -> None:
    """Raise DataError if the images of a run that this machine sees cannot be used, or if made ones have no room."""
    for run in runs:
        if run.images is None:
            continue
        if run.images.path is None:
            if image_bytes(run) > MOST_MADE_BYTES:
                raise DataError(
                    f"{run.name}: images.path is not set, and a run makes at most {MOST_MADE_BYTES / 1e9:g} GB of "
                    f"images, not {image_bytes(run) / 1e9:,.0f}. Make them once by `slurmscale images DIRECTORY` and "
                    "set images.path=DIRECTORY, or set a smaller images.count."
                )
            refuse_full(sweep.path, run.images.count, run.images.mean_kb)
        for key, path in run.images.directories.items():
            # A path of the nodes alone is examined there (jobs.work.images.train).
            if Path(path).exists() or run.launcher.kind.on_this_machine:
                shards_of(Path(path), key)


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
        known = list(sweep.code_store.glob("*"))
        code = snapshot_code(sweep)
        made.new_code.extend({code} - set(known))
        facts = provenance(code.name)
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
    for run in runs:
        if run.reads_samples and not run.launcher.kind.is_preview and makes_samples_later(run):
            refuse_unready(run.data, run.model.vocab_size)
    found = [None if not run.reads_samples or makes_samples_later(run) else samples_of(run, made) for run in runs]
    for run, samples in zip(runs, found, strict=True):
        if samples is not None and run.engine.kind is EngineKind.litgpt:
            refuse_bare_tokenizer(run, samples)
    return found


def refuse_large_samples(runs: list[Run], samples: list[Samples | None]) -> None:
    """Raise ConfigError if the samples of a run are too long for its GPUs; without them their shortest may have fit."""
    for run, found in zip(runs, samples, strict=True):
        if found is not None and (reason := prediction_fits(run, found)):
            raise ConfigError(
                f"{run.name}: {reason} A smaller job.micro_batch_size keeps fewer activations, as "
                "engine.activation_checkpointing=full does."
            )


def refuse_bare_tokenizer(run: Run, samples: Samples) -> None:
    """Raise DataError if the tokenizer has no configuration file, which LitGPT's fine-tuning reads."""
    names = {file.name for file in open_dataset(samples.directory).tokenizer_files}
    if script_of(run) is not Script.pretrain and CONFIG not in names:
        raise DataError(
            f"engine=litgpt needs a {CONFIG} beside the tokenizer, and data.tokenizer={run.data.tokenizer} has none. "
            "Copy the file that comes with the tokenizer."
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
    write_json(directory.provenance, facts | {"overrides": point.overrides} | dict(point.facts))
    if samples is not None:
        directory.data.symlink_to(samples.directory)
    # Made before any node looks for it: NFS may answer for a while that it is still missing.
    own_directory(directory.failures)
    append_event(directory, "prepared")


def plan_of(run: Run, samples: Samples | None = None) -> dict[str, Any]:
    """Return the planned values of a run; unknown ones are absent."""
    predicted = speed(run, samples)
    plan = {
        "layout": layout_of(run).record(),
        "ranks": run.ranks,
        "accumulation": accumulation(run),
        "global_batch_size": run.global_batch_size,
        "steps": run.job.steps,
        "parameters": parameters_of(run),
        PARAMETERS_TRAINED.name: trained_parameters(run),
        "gpu_hours_limit": gpu_hours_limit(run),
        "memory": memory(run, samples).record() if has_gpus(run) and run.is_predicted else None,
        "speed": None if predicted is None else predicted.record(),
        "warnings": warnings(run, samples),
    }
    return {key: value for key, value in plan.items() if value is not None}
