"""Fused kernels: RMSNorm, rotary embedding and SwiGLU by Liger, each one GPU kernel instead of several of torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from litgpt.model import GPT, CausalSelfAttention, LLaMAMLP, RMSNorm
from torch import Tensor

from jobs.engines.native.attention import self_attention
from jobs.errors import ConfigError
from jobs.schema import Kernels


def usable(asked: Kernels, device: torch.device) -> Kernels:
    """The kernels that a rank computes with, torch or liger; raises ConfigError where it has not those asked for."""
    if asked is Kernels.torch:
        return asked
    if device.type != "cuda":
        why = f"torch sees no GPU here (device {device.type})"
    elif find_spec("liger_kernel") is None:
        why = "Python has no liger_kernel here; type pip install --editable '.[liger]' in the checkout"
    else:
        return Kernels.liger
    if asked is Kernels.liger_or_torch:
        return Kernels.torch
    raise ConfigError(
        f"engine.kernels=liger cannot be: {why}. Type engine.kernels=liger_or_torch, or engine.kernels=torch."
    )


def fuse(gpt: GPT) -> None:
    """Let a model's norms, attention and feed-forward layers compute with Liger's kernels, in place.

    Their forward methods are replaced and not the modules, so that parameters keep their names.
    """
    forwards: dict[type, Callable[..., Tensor]] = {RMSNorm: rms_norm, LLaMAMLP: swiglu}
    for module in gpt.modules():
        if type(module) in forwards:
            module.forward = partial(forwards[type(module)], module)
        elif isinstance(module, CausalSelfAttention):
            module.forward = partial(self_attention, module, rotated)


def rms_norm(norm: RMSNorm, x: Tensor) -> Tensor:
    """RMSNorm.forward: all of it in float32, as LitGPT has it (Liger's casting mode of Gemma)."""
    from liger_kernel.ops import LigerRMSNormFunction

    offset, in_place = (1.0 if norm.add_unit_offset else 0.0), False  # the residual may need the same gradient
    y: Tensor = LigerRMSNormFunction.apply(x, norm.weight, norm.eps, offset, "gemma", in_place)
    return y


def swiglu(mlp: LLaMAMLP, x: Tensor) -> Tensor:
    """LLaMAMLP.forward: the gate's SiLU and its product with the other half in one kernel."""
    from liger_kernel.ops import LigerSiLUMulFunction

    y: Tensor = mlp.proj(LigerSiLUMulFunction.apply(mlp.fc_1(x), mlp.fc_2(x)))
    return y


def rotated(qkv: Tensor, cos: Tensor, sin: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """As jobs.engines.native.rotary.rotated, for heads that are turned whole: queries and keys in one kernel."""
    from liger_kernel.ops import LigerRopeFunction

    fused = qkv.transpose(1, 2)
    q, k, v = fused.split((fused.shape[1] - 2 * groups, groups, groups), dim=1)
    q, k = LigerRopeFunction.apply(q, k, cos, sin)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
