"""The state that a checkpoint of any model holds on one rank: the engine's own shards, with numbers that mean nothing.

The model is built on the meta device and sharded as training does (jobs.engines.native.parallelize); each parameter
then gets the tensors of its weight and of AdamW's moments, under the names that training gives them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from litgpt.model import GPT
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from jobs.engines.native.load_sharded import local_shard
from jobs.engines.native.parallelize import sharded_on_meta, trained_model
from jobs.schema import Run
from jobs.settings.storage import CheckpointContent

CPU = torch.device("cpu")
MOMENTS = ("exp_avg", "exp_avg_sq")


def state_of(run: Run, mesh: DeviceMesh) -> dict[str, Any]:
    """Return the state that this rank saves, in memory that `fill` gives numbers."""
    assert run.storage is not None
    assert run.storage.checkpoint is not None
    gpt = trained_model(run)
    keep_rows(gpt, run.storage.checkpoint.fraction)
    sharded_on_meta(gpt, run, mesh, CPU)
    mixed = run.storage.checkpoint.content is CheckpointContent.mixed
    weights: dict[str, Any] = {}
    optimizer: dict[str, Any] = {}
    for name, parameter in gpt.named_parameters():
        weights[name] = empty_like(parameter, torch.bfloat16 if mixed else parameter.dtype)
        for moment in (*MOMENTS, *(("master",) if mixed else ())):
            optimizer[f"state.{name}.{moment}"] = empty_like(parameter, torch.float32 if mixed else parameter.dtype)
        optimizer[f"state.{name}.step"] = torch.tensor(0.0)
    return {"model": weights, "optimizer": optimizer, "step": torch.tensor(0)}


def keep_rows(gpt: GPT, fraction: float) -> None:
    """Replace every parameter of a model on the meta device by one with this share of its rows, at least one."""
    if fraction == 1:
        return
    for module in gpt.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            rows = max(1, math.ceil(fraction * parameter.shape[0]))
            setattr(module, name, nn.Parameter(parameter.new_empty(rows, *parameter.shape[1:])))


def empty_like(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory on the host for a tensor that is sharded as a parameter."""
    local = torch.empty(local_shard(parameter).shape, dtype=dtype)
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        # The check would be a collective for each tensor.
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def named(state: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a state with its name."""
    for name, value in state.items():
        if isinstance(value, dict):
            yield from named(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def words(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor on this rank as integers."""
    # As integers: random bits may be NaN, which equals nothing, and float sums depend on their order.
    local = local_shard(tensor).reshape(-1)
    return local.view(torch.int16 if local.element_size() == 2 else torch.int32)


def fill(state: dict[str, Any], repeat: int) -> None:
    """Fill a state with random numbers, since storage may compress others, and keep equal ones of two repeats once.

    Ranks that hold the same part of a tensor get the same numbers: only one of them writes it.
    """
    for name, tensor in named(state):
        if tensor.ndim:
            seed = zlib.crc32(repr((repeat, name, part_of(tensor))).encode())
            words(tensor).random_(generator=torch.Generator().manual_seed(seed))


def part_of(tensor: Tensor) -> list[int]:
    """Return which part of a tensor this rank holds: its place on each axis that divides it."""
    if not isinstance(tensor, DTensor):
        return []
    places: Sequence[int] = tensor.device_mesh.get_coordinate() or []
    return [place for place, how in zip(places, tensor.placements, strict=True) if not how.is_replicate()]


def forget(state: dict[str, Any]) -> None:
    """Overwrite a state with zeros, so that it has only what is read afterwards."""
    for _, tensor in named(state):
        local_shard(tensor).zero_()


def checksum(state: dict[str, Any]) -> int:
    """Return the sum of the memory of a state on this rank, as integers."""
    return sum(int(words(tensor).sum(dtype=torch.int64)) for _, tensor in named(state) if tensor.ndim)


def size_bytes(state: dict[str, Any]) -> int:
    """Return the memory of a state on this rank."""
    held = (local_shard(tensor) for _, tensor in named(state))
    return sum(tensor.numel() * tensor.element_size() for tensor in held)
