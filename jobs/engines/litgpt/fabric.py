"""Run LitGPT's script with a Fabric of ours, which uses our launcher's environment and reports to the record.

On one rank and on GPUs Fabric computes as usual. It refuses FSDP on several CPU ranks: there PyTorch's FSDP2 replaces
it and shards the same blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.fsdp import FSDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from typing_extensions import override

from jobs.engines.litgpt.arguments import Script
from jobs.engines.litgpt.record import Record
from jobs.runtime.checkpoints.pickles import load_as_data, load_weights


class Fabric(lightning.Fabric):
    """Fabric for processes that are started already; reports its calls to the record."""

    def __init__(self, record: Record, **keywords: Any) -> None:
        super().__init__(**keywords | {"plugins": [TorchElasticEnvironment()]}, callbacks=record)
        self.record = record
        record.device = self.device
        record.scaler = getattr(self.strategy.precision, "scaler", None)

    @override
    def setup_dataloaders(self, *dataloaders: Any, **keywords: Any) -> Any:
        """Return Fabric's training and validation loaders, watched."""
        training, validation = super().setup_dataloaders(*dataloaders, **keywords)
        return [Watched(training, self.record.asks), Watched(validation, self.record.validates)]

    @override
    def load_raw(self, *arguments: Any, **keywords: Any) -> None:
        """Load weights, then report to the record."""
        super().load_raw(*arguments, **keywords)
        self.record.loads()

    @override
    def backward(self, tensor: Tensor, *arguments: Any, **keywords: Any) -> None:
        """Report the loss to the record, then run the backward pass."""
        self.record.backward(tensor)
        super().backward(tensor, *arguments, **keywords)

    @override
    def clip_gradients(self, *arguments: Any, **keywords: Any) -> Tensor | None:
        """Clip the gradients and report their norm, which ends the run if it is not finite.

        By default Fabric raises RuntimeError then, also for an overflow that the loss scale skips.
        """
        self.record.norm = super().clip_gradients(*arguments, **keywords | {"error_if_nonfinite": False})
        return self.record.norm


class Watched:
    """A loader that calls `asked` before each batch."""

    def __init__(self, loader: Any, asked: Callable[[], None]) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.asked = asked

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            self.asked()
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state, which pretraining saves with the weights."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the saved state is empty."""


class ShardedOnCpu(ModelParallelStrategy):
    """FSDP2 over all ranks with the keywords of Fabric's FSDPStrategy, which runs on GPUs only."""

    def __init__(self, *, activation_checkpointing_policy: set[type[nn.Module]] | None = None, **_ignored: Any) -> None:
        super().__init__(
            partial(sharded, recompute=bool(activation_checkpointing_policy)), save_distributed_checkpoint=False
        )

    @override
    def setup_environment(self) -> None:
        """Make all ranks data-parallel."""
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()


def sharded(model: nn.Module, mesh: DeviceMesh, *, recompute: bool) -> nn.Module:
    """Apply FSDP2: each block is a unit, the rest is the root's."""
    gpt: Any = getattr(model, "_orig_mod", model)  # pretraining has compiled it
    if recompute:
        gpt.transformer.h = nn.ModuleList([checkpoint_wrapper(block) for block in gpt.transformer.h])
    for block in gpt.transformer.h:
        fully_shard(block, mesh=mesh["data_parallel"])
    fully_shard(gpt, mesh=mesh["data_parallel"])
    return model


@contextmanager
def prepared(script: Script, module: ModuleType, record: Record, command: list[str]) -> Iterator[None]:
    """Replace names in the script's module and sys.argv (LitGPT saves its command line) inside this context."""
    names: dict[str, Any] = {"L": SimpleNamespace(Fabric=partial(Fabric, record))}
    load_as_data()
    if not torch.cuda.is_available() and script is not Script.finetune_lora:
        names["FSDPStrategy"] = ShardedOnCpu
    if script is not Script.pretrain:
        names["load_checkpoint"] = load_checkpoint
        names["create_finetuning_performance_report"] = partial(
            noted, record, module.create_finetuning_performance_report
        )
    before = {name: getattr(module, name) for name in names}, sys.argv
    vars(module).update(names)
    sys.argv = command
    try:
        yield
    finally:
        vars(module).update(before[0])
        sys.argv = before[1]


def load_checkpoint(fabric: Fabric, model: Any, path: Path, strict: bool = True) -> None:
    """Load weights where LitGPT's own function would unpickle anything, or take ShardedOnCpu for adapters."""
    if isinstance(fabric.strategy, FSDPStrategy):
        fabric.load_raw(path, model, strict=strict)
        return
    state = load_weights(path)
    state = state.get("model", state)
    if isinstance(fabric.strategy, ShardedOnCpu):
        set_model_state_dict(model.module, state, options=StateDictOptions(full_state_dict=True, strict=strict))
    else:
        model.load_state_dict(state, strict=strict)


def noted(record: Record, report: Callable[..., str], training_time: float, *arguments: Any) -> str:
    """Record LitGPT's training time, and return LitGPT's own report."""
    record.training_time_s = training_time
    return report(training_time, *arguments)
