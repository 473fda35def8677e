"""Load weights into a sharded model: each rank keeps its shard of every full tensor."""

from __future__ import annotations

import torch
from litgpt.model import GPT
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from jobs.engines.native.customization.nf4 import Nf4Linear
from jobs.engines.native.experts.router import BIAS
from jobs.engines.native.model import tie_embeddings
from jobs.engines.native.tensor_parallel import grouped_by_rank
from jobs.engines.native.weights import Values


def load_sharded(gpt: GPT, device: torch.device, values: Values, *, tensor: int, tied: bool) -> None:
    """Allocate every parameter on the device and copy this rank's shard of its full value into it."""
    shapes = {name: parameter.shape for name, parameter in gpt.named_parameters()}
    quantized = {f"{name}.weight": module for name, module in gpt.named_modules() if isinstance(module, Nf4Linear)}
    gpt.to_empty(device=device)
    tie_embeddings(gpt, tied=tied)  # to_empty gives each its own memory
    gpt.cos, gpt.sin = gpt.rope_cache(device=device)
    with torch.no_grad():
        for name, parameter in gpt.named_parameters():
            linear = quantized.get(name)
            shape = shapes[name] if linear is None else (linear.out_features, linear.in_features)
            # One full tensor after the other: no rank holds the whole model.
            full = grouped_by_rank(name, values(name, shape, parameter.dtype, device), gpt.config, tensor)
            parameter.copy_(shard_of(full if linear is None else linear.pack(full), parameter))
        for name, module in gpt.named_modules():
            if BIAS in dict(module.named_buffers(recurse=False)):
                # In float32, whatever the type of the weights.
                bias = values(f"{name}.{BIAS}", module.get_buffer(BIAS).shape, torch.float32, device)
                module.register_buffer(BIAS, bias)


def local_shard(tensor: Tensor) -> Tensor:
    """Return the local tensor of a DTensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(parameter: Tensor) -> Tensor:
    """Return the full tensor of a parameter; every rank that holds a shard of it calls this."""
    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()


def shard_of(full: Tensor, like: Tensor) -> Tensor:
    """Return this rank's shard of a full tensor that every rank holds, sharded as `like`, without communication."""
    if not isinstance(like, DTensor):
        return full
    replicated = DTensor.from_local(full, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=like.placements)
