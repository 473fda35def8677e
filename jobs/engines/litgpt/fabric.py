"""LitGPT's script with our Fabric in it: in the environment of our launcher, and with a record.

On one rank, and on GPUs, Fabric computes as it does for anybody. On several CPU ranks it refuses FSDP: there PyTorch's
FSDP2 stands in, which shards the same blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from typing_extensions import override

from jobs.engines.litgpt.record import Record
from jobs.plan.litgpt_arguments import Script


class Fabric(lightning.Fabric):
    """Fabric for processes that are there already, which tells the record what it is asked to do."""

    def __init__(self, record: Record, **keywords: Any) -> None:
        super().__init__(**keywords | {"plugins": [TorchElasticEnvironment()]}, callbacks=record)
        self.record = record
        record.device = self.device

    @override
    def setup_dataloaders(self, *dataloaders: Any, **keywords: Any) -> Any:
        """The training and the validation data, as Fabric gives them."""
        training, validation = super().setup_dataloaders(*dataloaders, **keywords)
        return [Watched(training, self.record.asks), Watched(validation, self.record.validates)]

    @override
    def load_raw(self, *arguments: Any, **keywords: Any) -> None:
        """As Fabric does."""
        super().load_raw(*arguments, **keywords)
        self.record.loads()

    @override
    def backward(self, tensor: Tensor, *arguments: Any, **keywords: Any) -> None:
        """As Fabric does."""
        self.record.backward(tensor)
        super().backward(tensor, *arguments, **keywords)


class Watched:
    """A loader that says when it is asked for a batch."""

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
        """Nothing: pretraining saves its loader with the weights."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was saved."""


class ShardedOnCpu(ModelParallelStrategy):
    """FSDP2 over all ranks, given the keywords of Fabric's FSDPStrategy, which runs on GPUs only."""

    def __init__(self, *, activation_checkpointing_policy: set[type[nn.Module]] | None = None, **_ignored: Any) -> None:
        super().__init__(
            partial(sharded, recompute=bool(activation_checkpointing_policy)), save_distributed_checkpoint=False
        )

    @override
    def setup_environment(self) -> None:
        """All ranks are data-parallel."""
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()


def sharded(model: nn.Module, mesh: DeviceMesh, *, recompute: bool) -> nn.Module:
    """Every block a unit of FSDP2, and what is left another."""
    gpt: Any = getattr(model, "_orig_mod", model)  # pretraining has compiled it
    if recompute:
        gpt.transformer.h = nn.ModuleList([checkpoint_wrapper(block) for block in gpt.transformer.h])
    for block in gpt.transformer.h:
        fully_shard(block, mesh=mesh["data_parallel"])
    fully_shard(gpt, mesh=mesh["data_parallel"])
    return model


@contextmanager
def prepared(script: Script, module: ModuleType, record: Record, command: list[str]) -> Iterator[None]:
    """Let the script use our Fabric, and find its command line where it looks for one to save."""
    names: dict[str, Any] = {"L": SimpleNamespace(Fabric=partial(Fabric, record))}
    if not torch.cuda.is_available() and script is not Script.finetune_lora:
        names["FSDPStrategy"] = ShardedOnCpu
        if script is Script.finetune_full:
            names["load_checkpoint"] = partial(load_into_shards, module.load_checkpoint)
    if script is not Script.pretrain:
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


def load_into_shards(load: Callable[..., None], fabric: Fabric, model: Any, path: Any, strict: bool = True) -> None:
    """LitGPT's own loading, or PyTorch's where FSDP2 stands in: LitGPT takes that for adapters."""
    if isinstance(fabric.strategy, ShardedOnCpu):
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        set_model_state_dict(model.module, state, options=StateDictOptions(full_state_dict=True, strict=strict))
    else:
        load(fabric, model, path, strict)


def noted(record: Record, report: Callable[..., str], training_time: float, *arguments: Any) -> str:
    """LitGPT's own report of its training time, which goes on record too."""
    record.training_time_s = training_time
    return report(training_time, *arguments)
