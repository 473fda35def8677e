"""Matrix products of linear layers in few bits, by torchao; the output head stays in bfloat16."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import torch
from litgpt.model import GPT
from torch import nn
from torch.distributed.tensor import DTensor

from jobs.engines.engine import engine_of
from jobs.errors import ConfigError
from jobs.layout import uses_fsdp
from jobs.plan.rules.float8 import asked, described, has_units, needs_of, off
from jobs.schema import Float8Recipe, Run

HEAD = "lm_head"


def multiply_in_float8(gpt: GPT, device: torch.device, run: Run) -> None:
    """Convert all linear layers but the head to products of the run's recipe, in place; others keep their type.

    Raise ConfigError if the rank's device or Python does not support them.
    """
    refuse_float8(device, run)
    # Processors compute with the numbers that are left after rounding, in float32: for tests.
    recipe, emulate = engine_of(run).float8_recipe(run), device.type != "cuda"
    assert recipe is not None
    if recipe is Float8Recipe.mxfp8:
        from jobs.engines.native.mxfp8 import multiply_in_mxfp8

        multiply_in_mxfp8(gpt, in_a_layer, emulate=emulate)
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    # Pad the inner dimension to multiples of 16, which the hardware requires: sequences have any length.
    config = replace(
        Float8LinearConfig.from_recipe_name(recipe.value),
        pad_inner_dim=True,
        enable_fsdp_float8_all_gather=sends_float8(run),
        emulate=emulate,
    )
    convert_to_float8_training(gpt, config=config, module_filter_fn=in_a_layer)


def sends_float8(run: Run) -> bool:
    """Return whether FSDP sends weights in float8, a quarter of float32 and half of bfloat16: with a scale for all."""
    return uses_fsdp(run) and engine_of(run).float8_recipe(run) is Float8Recipe.tensorwise


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


def refuse_float8(device: torch.device, run: Run) -> None:
    """Raise ConfigError if the rank's device or Python does not support the run's recipe."""
    found = torch.cuda.get_device_capability(device) if device.type == "cuda" and not torch.version.hip else (0, 0)
    if not has_units(needs_of(run), found):
        words = f"compute capability {found[0]}.{found[1]}" if any(found) else "no NVIDIA GPU"
        raise ConfigError(f"{asked(run)} needs {described(needs_of(run))}, and this rank has {words}. Set {off(run)}.")
    if find_spec("torchao") is None:
        raise ConfigError(
            f"{asked(run)} needs torchao on the nodes. Run pip install --editable '.[float8]' in the checkout, "
            f"or set {off(run)}."
        )
