"""Checkpoints by torch.distributed.checkpoint: written aside and renamed, resharded when read.

A checkpoint is complete or absent: ranks write into a hidden directory that gets its name, step-00000020, only
when all have finished. It can be read by another number of ranks or another sharding of the same model.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from litgpt.model import GPT
from litgpt.utils import save_config
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.optim import Optimizer

from jobs.errors import CheckpointError


def save(directory: Path, step: int, model: nn.Module, optimizer: Optimizer, *, keep: int) -> Path:
    """Save model, optimizer and step, then remove all but the newest `keep`; every rank calls it.

    Raises CheckpointError, on every rank, when a rank could not write; the previous checkpoints stay.
    """
    final = directory / f"step-{step:08d}"
    writing = directory / f".step-{step:08d}.writing"
    if dist.get_rank() == 0:
        directory.mkdir(exist_ok=True)
        for torn in directory.glob(".step-*.writing"):
            shutil.rmtree(torn)
    dist.barrier()
    weights, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": optimizer_state, "step": torch.tensor(step)}
    try:
        save_sharded(state, checkpoint_id=writing)
    except CheckpointException as error:
        reasons = sorted({f"{type(cause[0]).__name__}: {cause[0]}" for cause in error.failures.values()})
        raise CheckpointError(
            f"Checkpoint {final} could not be written ({'; '.join(reasons)}). The last good one stays."
        ) from error
    if dist.get_rank() == 0:
        shutil.rmtree(final, ignore_errors=True)
        writing.rename(final)
        for old in complete(directory)[:-keep]:
            shutil.rmtree(old)
    dist.barrier()
    return final


def complete(directory: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(directory.glob("step-*"))


def load(path: Path, model: nn.Module, optimizer: Optimizer) -> int:
    """Restore model and optimizer in place and return the step they were saved after; every rank calls it."""
    weights, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": optimizer_state, "step": torch.tensor(0)}
    try:
        load_sharded(state, checkpoint_id=path)
    except (CheckpointException, OSError, RuntimeError) as error:
        raise CheckpointError(
            f"Checkpoint {path} cannot be read: {error}. Remove that directory to resume from the one before it."
        ) from error
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["step"])


def size_bytes(path: Path) -> int:
    """Bytes of a checkpoint on disk."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def export(directory: Path, model: nn.Module, tokenizer_files: list[Path]) -> None:
    """Write a LitGPT checkpoint directory: full weights, model_config.yaml, tokenizer; every rank calls it."""
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        writing = directory.with_name(f".{directory.name}.writing")
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir()
        torch.save(full, writing / "lit_model.pth")
        gpt = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        assert isinstance(gpt, GPT)
        save_config(gpt.config, writing)
        for file in tokenizer_files:
            shutil.copy(file, writing)
        shutil.rmtree(directory, ignore_errors=True)
        writing.rename(directory)
    dist.barrier()
