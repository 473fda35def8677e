"""float8: matrix products of linear layers in 8-bit floating point, by torchao; the output head stays in bfloat16."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from litgpt.model import GPT
from torch import nn
from torch.distributed.tensor import DTensor

from jobs.errors import ConfigError
from jobs.plan.rules.float8 import FLOAT8_CAPABILITY

HEAD = "lm_head"


def multiply_in_float8(gpt: GPT, device: torch.device, *, gathers: bool) -> None:
    """Convert all linear layers but the head to float8 products, in place; weights and other operators keep their type.

    With `gathers` FSDP sends the weights in float8: a quarter of float32, half of bfloat16. Raise ConfigError if the
    rank's device or Python does not support float8.
    """
    refuse_float8(device)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    # Pad the inner dimension to multiples of 16, which the hardware requires: sequences have any length.
    config = Float8LinearConfig(pad_inner_dim=True, enable_fsdp_float8_all_gather=gathers)
    convert_to_float8_training(gpt, config=config, module_filter_fn=in_a_layer)


def scale_weights(gpt: GPT) -> None:
    """Compute the scales of all weights that FSDP sends in float8, after an update: by one all-reduce, not one each."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    precompute_float8_dynamic_scale_for_fsdp(gpt)


def plain(value: object) -> object:
    """Return a value of a state without torchao's type around a shard, over the same memory: checkpoints have none."""
    inner = getattr(value.to_local(), "_tensor", None) if isinstance(value, DTensor) else None
    if not isinstance(value, DTensor) or inner is None:
        return value
    mesh, placements = value.device_mesh, value.placements
    return DTensor.from_local(inner, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())


def in_a_layer(_module: nn.Module, name: str) -> bool:
    """Return whether to convert a linear layer."""
    return name != HEAD


def refuse_float8(device: torch.device) -> None:
    """Raise ConfigError if the rank's device or Python does not support float8."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" and not torch.version.hip else (0, 0)
    if capability < FLOAT8_CAPABILITY:
        least = ".".join(map(str, FLOAT8_CAPABILITY))
        found = f"compute capability {capability[0]}.{capability[1]}" if any(capability) else "no NVIDIA GPU"
        raise ConfigError(
            f"engine.float8=true needs an NVIDIA GPU of compute capability {least} or more, and this rank has {found}. "
            "Set engine.float8=false."
        )
    if find_spec("torchao") is None:
        raise ConfigError(
            "engine.float8=true needs torchao on the nodes. Run pip install --editable '.[float8]' in the checkout, "
            "or set engine.float8=false."
        )
