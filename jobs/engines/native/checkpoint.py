"""Checkpoints of the native engine by torch.distributed.checkpoint: copied, written aside, resharded when read.

A checkpoint can be read by any layout of the same model: parameters have LitGPT's names and order.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import save_config
from torch import Tensor
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future as TorchFuture
from torch.optim import Optimizer

from jobs.engines.native.load_sharded import shard_of
from jobs.engines.native.tensor_parallel import as_in_litgpt, grouped_by_rank
from jobs.errors import CheckpointError, before_torch_archive
from jobs.runtime.checkpoint_directory import Saved, keep_newest, met_by_ranks, size_bytes, written_aside

# Optimizer state by parameter name: pipeline ranks hold different parameters, and lists of them would not merge.
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
Order = Callable[[str, Tensor, Config, int], Tensor]


class Saver:
    """Writes checkpoints of one model and optimizer, one at a time; in the background, training waits for a copy only.

    What became of them is told by `ended`. One that could not be written leaves nothing behind, and those before it
    stay.
    """

    def __init__(self, directory: Path, gpt: GPT, optimizer: Optimizer, *, tensor: int, keep: int) -> None:
        self.directory = directory
        self.gpt = gpt
        self.optimizer = optimizer
        self.tensor = tensor
        self.keep = keep
        # Of its own: the default group is busy training, and its backend may not carry CPU tensors.
        self.group = dist.new_group(backend="gloo")
        # One stager for all checkpoints, because it keeps the memory that it copies into. Not the DefaultStager around
        # it, which torch 2.11 closes after its first copy.
        self.stager = StateDictStager(pin_memory=torch.cuda.is_available())
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        self.under_way: Future[Saved] | None = None
        self.outcomes: list[Saved] = []

    def save(self, step: int, *, in_background: bool) -> None:
        """Write the state after a step, once the checkpoint before it is written; every rank calls it."""
        self.finish()
        weights, moments = get_state_dict(self.gpt, self.optimizer, options=FLAT)
        state = {
            "model": in_litgpt_order(weights, self.gpt.config, self.tensor),
            "optimizer": in_litgpt_order(moments, self.gpt.config, self.tensor),
            "step": torch.tensor(step),
        }
        if in_background:
            self.under_way = self.writer.submit(self.write, step, self.stager.stage(state))
        else:
            self.outcomes.append(self.write(step, state))

    def write(self, step: int, state: Any) -> Saved:
        """Write a state and give its directory its name; every rank calls it, in whatever thread."""
        fence = time.perf_counter()
        final = self.directory / f"step-{step:08d}"
        try:
            with written_aside(final, self.group) as writing:
                save_sharded(state, writing, self.group)
        except CheckpointException as error:
            return Saved(step, error=met_by_ranks(error))
        except CheckpointError as error:
            return Saved(step, error=str(error))
        if dist.get_rank() > 0:
            return Saved(step)
        keep_newest(self.directory, self.keep)
        return Saved(step, time.perf_counter() - fence, size_bytes(final))

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self.under_way is not None:
            self.outcomes.append(self.under_way.result())
            self.under_way = None

    def ended(self) -> list[Saved]:
        """What became of checkpoints since this was last asked."""
        if self.under_way is not None and self.under_way.done():
            self.finish()
        outcomes, self.outcomes = self.outcomes, []
        return outcomes


class Writer(FileSystemWriter):
    """Torch's writer, whose errors say what the file system said: they lose it on their way to the other ranks."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        """Write this rank's part."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            raise before_torch_archive(error) from None


def save_sharded(state: Mapping[str, Any], directory: Path, group: dist.ProcessGroup | None = None) -> None:
    """Write a state, each rank its part; every rank of the group calls it and raises what any of them met."""
    save_dcp(dict(state), storage_writer=Writer(directory), process_group=group)


def load(gpt: GPT, optimizer: Optimizer, path: Path, *, tensor: int) -> int:
    """Restore model and optimizer in place and return the step they were saved after; every rank calls it."""
    weights, moments = get_state_dict(gpt, optimizer, options=FLAT)
    # What is read replaces every value, so only the cuts of these tensors matter and not the order of their rows.
    state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": torch.tensor(0)}
    read_into(state, path)
    set_state_dict(
        gpt,
        optimizer,
        model_state_dict=in_layout_order(state["model"], gpt.config, tensor),
        optim_state_dict=in_layout_order(state["optimizer"], gpt.config, tensor),
        options=FLAT,
    )
    return int(state["step"])


def load_weights(gpt: GPT, path: Path) -> int:
    """Restore the weights alone of a model that is not cut, and return the step they were saved after."""
    # These tensors are the model's own, and are read into in place.
    state: dict[str, Any] = {"model": get_model_state_dict(gpt), "step": torch.tensor(0)}
    read_into(state, path)
    return int(state["step"])


def read_into(state: dict[str, Any], path: Path) -> None:
    """Read the parts of a checkpoint that a state has into it, in place; every rank calls it."""
    try:
        load_dcp(state, checkpoint_id=path)
    except (CheckpointException, OSError, RuntimeError) as error:
        raise CheckpointError(f"Checkpoint {path} cannot be read: {met_by_ranks(error)}.") from error


def in_litgpt_order(state: Mapping[str, Any], config: Config, tensor: int) -> dict[str, Any]:
    """A state with the rows of fused qkv as LitGPT has them, cut as before; TP ranks hold them grouped by rank."""
    return {name: reordered(name, value, as_in_litgpt, config, tensor) for name, value in state.items()}


def in_layout_order(state: Mapping[str, Any], config: Config, tensor: int) -> dict[str, Any]:
    """The inverse of in_litgpt_order."""
    return {name: reordered(name, value, grouped_by_rank, config, tensor) for name, value in state.items()}


def reordered(name: str, value: Any, order: Order, config: Config, tensor: int) -> Any:
    """The value with its rows in another order; every rank that holds a part of it takes part."""
    if tensor == 1 or ".attn.qkv." not in name or not isinstance(value, DTensor) or value.ndim == 0:
        return value
    return shard_of(order(name, value.full_tensor(), config, tensor), value)


def export(directory: Path, gpt: GPT, tokenizer_files: list[Path], *, tensor: int) -> None:
    """Write a LitGPT checkpoint directory: full weights, model_config.yaml, tokenizer; every rank calls it.

    The weights go through a sharded checkpoint, so that no rank but the first ever holds more than its part.
    """
    with written_aside(directory) as writing:
        try:
            save_sharded(in_litgpt_order(get_model_state_dict(gpt), gpt.config, tensor), writing / "sharded")
        except CheckpointException as error:
            raise CheckpointError(f"The weights cannot be written to {directory}: {met_by_ranks(error)}.") from error
        if dist.get_rank() == 0:
            # An open file, which torch.save takes as well: given a path, it does not say why a write failed.
            with (writing / "lit_model.pth").open("wb") as file:
                dcp_to_torch_save(writing / "sharded", cast(Path, file))
            shutil.rmtree(writing / "sharded")
            save_config(gpt.config, writing)
            for tokenizer_file in tokenizer_files:
                shutil.copy(tokenizer_file, writing)
