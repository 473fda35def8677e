"""Weights into their places: each rank keeps its part of every full tensor."""

from __future__ import annotations

import torch
from litgpt.model import GPT
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from jobs.engines.native.model import tie_embeddings
from jobs.engines.native.tensor_parallel import grouped_by_rank
from jobs.engines.native.weights import Values


def load_sharded(gpt: GPT, device: torch.device, values: Values, *, tensor: int, tied: bool) -> None:
    """Give every parameter memory on the device and this rank's part of its full value."""
    shapes = {name: parameter.shape for name, parameter in gpt.named_parameters()}
    gpt.to_empty(device=device)
    tie_embeddings(gpt, tied=tied)  # to_empty gave each its own memory
    gpt.cos, gpt.sin = gpt.rope_cache(device=device)
    with torch.no_grad():
        for name, parameter in gpt.named_parameters():
            full = grouped_by_rank(name, values(name, shapes[name], parameter.dtype, device), gpt.config, tensor)
            parameter.copy_(shard_of(full, parameter))


def local_shard(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_of(full: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a full tensor that every rank has; cut as `like` is, without communication."""
    if not isinstance(like, DTensor):
        return full
    replicated = DTensor.from_local(full, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=like.placements)
