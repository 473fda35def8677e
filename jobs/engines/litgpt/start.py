"""Make the checkpoint directory that LitGPT starts from: config, tokenizer and weights in its format."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import torch
import yaml

from jobs.data import Dataset
from jobs.data.prepare import lock
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.model import empty_model
from jobs.engines.native.weights import TYPES, values_of
from jobs.output import write_file
from jobs.runtime.checkpoints.directory import save_archive
from jobs.runtime.checkpoints.pickles import load_weights
from jobs.schema import Run


def make_start(run: Run, dataset: Dataset, start: Path, device: torch.device) -> None:
    """Make the directory once; every rank calls it, and the first one to get the lock makes it.

    Raise CheckpointError if job.init_from belongs to another model.
    """
    start.parent.mkdir(exist_ok=True)
    with lock(start.parent / ".start.lock"):
        if start.is_dir():
            return
        staging = start.with_name(f".{start.name}.{uuid.uuid4().hex}")
        staging.mkdir()
        try:
            write_file(staging / "model_config.yaml", yaml.safe_dump(litgpt_fields(run.model)))
            for file in dataset.tokenizer_files:
                shutil.copy(file, staging)
            write_weights(run, staging / "lit_model.pth", device)
            staging.rename(start)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def write_weights(run: Run, path: Path, device: torch.device) -> None:
    """Write the run's first weights under LitGPT's names; link to those of job.init_from if it has them.

    Random weights are drawn on the device in the dtype of training, so that they equal the native engine's.
    """
    values = values_of(run.job.init_from, run.job.seed, unit_offset=run.model.norm_unit_offset)
    dtype = TYPES[run.engine.parameters]
    empty = empty_model(run.model, run.job.sequence_length).state_dict()
    source = None if run.job.init_from is None else (Path(run.job.init_from) / "lit_model.pth").resolve()
    if source is None or not source.exists():
        save_archive({name: values(name, each.shape, dtype, device).cpu() for name, each in empty.items()}, path)
        return
    for name, each in empty.items():
        # Check names and shapes only: nothing is copied to the meta device.
        values(name, each.shape, dtype, torch.device("meta"))
    state = load_weights(source)
    if "model" in state:  # the format of fine-tuning, which not all of LitGPT's scripts accept
        save_archive(state["model"], path)
    else:
        path.symlink_to(source)
