"""The checkpoint directory that LitGPT starts from: config, tokenizer and weights as it wants them."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import torch
import yaml

from jobs.data import Dataset
from jobs.data.prepare import lock
from jobs.engines.litgpt_names import litgpt_fields
from jobs.engines.model import empty_model
from jobs.engines.weights import values_of
from jobs.schema import Run


def make_start(run: Run, dataset: Dataset, start: Path) -> None:
    """Make the directory once; every rank calls it, and all but one find it made.

    Raises CheckpointError when job.init_from is of another model.
    """
    start.parent.mkdir(exist_ok=True)
    with lock(start.parent / ".start.lock"):
        if start.is_dir():
            return
        staging = start.with_name(f".{start.name}.{uuid.uuid4().hex}")
        staging.mkdir()
        try:
            (staging / "model_config.yaml").write_text(yaml.safe_dump(litgpt_fields(run.model)))
            for file in dataset.tokenizer_files:
                shutil.copy(file, staging)
            write_weights(run, staging / "lit_model.pth")
            staging.rename(start)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def write_weights(run: Run, path: Path) -> None:
    """The run's first weights under LitGPT's names; those of job.init_from stay where they are."""
    values = values_of(run.job.init_from, run.job.seed)
    given = run.job.init_from is not None
    where = torch.device("meta" if given else "cpu")
    parameters = empty_model(run.model, run.job.sequence_length, run.engine.loss).state_dict()
    # Of a checkpoint only names and shapes are looked at here: to the meta device nothing is copied.
    weights = {name: values(name, each.shape, torch.float32, where) for name, each in parameters.items()}
    if not given:
        torch.save(weights, path)
        return
    source = (Path(run.job.init_from or "") / "lit_model.pth").resolve()
    state = torch.load(source, map_location="cpu", mmap=True, weights_only=True)
    if "model" in state:  # as fine-tuning leaves them; LitGPT does not take that everywhere
        torch.save(state["model"], path)
    else:
        path.symlink_to(source)
