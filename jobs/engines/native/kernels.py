"""Liger's fused kernels: RMSNorm, rotary embedding and SwiGLU, each in one GPU kernel instead of several."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from importlib.util import find_spec

import torch
from litgpt.model import GPT, LLaMAMLP
from torch import Tensor

from jobs.engines.native import rotary
from jobs.engines.native.attention import Attention
from jobs.engines.native.customization.adapted_mlp import AdaptedLLaMAMLP
from jobs.engines.native.norm import FusedRMSNorm
from jobs.engines.native.rotary import Norms, normalized
from jobs.errors import ConfigError
from jobs.runtime.imports import import_liger_alone
from jobs.schema import Kernels, LigerKernel


def usable(asked: Kernels, device: torch.device) -> Kernels:
    """Return the kernels of this rank, torch or liger; raise ConfigError if the configured ones are not available."""
    if asked is Kernels.torch:
        return asked
    if device.type != "cuda":
        why = f"torch sees no GPU here (device {device.type})"
    elif find_spec("liger_kernel") is None:
        why = "Python has no liger_kernel here; run pip install --editable '.[liger]' in the checkout"
    else:
        return Kernels.liger
    if asked is Kernels.liger_or_torch:
        return Kernels.torch
    raise ConfigError(
        f"engine.kernels=liger is not available: {why}. Set engine.kernels=liger_or_torch, or engine.kernels=torch."
    )


def fuse(gpt: GPT, chosen: Collection[LigerKernel]) -> None:
    """Replace the chosen operations of norms, attention and feed-forward layers by Liger's kernels, in place.

    The modules stay, so that parameters keep their names.
    """
    if chosen:
        import_liger_alone()  # now, where the first step would do it
    forwards: dict[type, Callable[..., Tensor]] = {}
    if LigerKernel.rms_norm in chosen:
        forwards[FusedRMSNorm] = rms_norm
    if LigerKernel.swiglu in chosen:
        # Backward overwrites gate and up with their gradients, so an adapter keeps what was made of them.
        forwards |= {LLaMAMLP: swiglu, AdaptedLLaMAMLP: swiglu}
    for module in gpt.modules():
        if type(module) in forwards:
            module.forward = partial(forwards[type(module)], module)
        elif isinstance(module, Attention) and module.rotate is rotary.rotated and LigerKernel.rope in chosen:
            module.rotate = rotated


def rms_norm(norm: FusedRMSNorm, x: Tensor) -> Tensor:
    """Replace RMSNorm.forward; compute in float32 throughout, as LitGPT does (Liger's casting mode gemma)."""
    from liger_kernel.ops import LigerRMSNormFunction

    offset, in_place = (1.0 if norm.add_unit_offset else 0.0), False  # the residual may need the same gradient
    y: Tensor = LigerRMSNormFunction.apply(x, norm.weight, norm.eps, offset, "gemma", in_place)
    return y


def swiglu(mlp: LLaMAMLP, x: Tensor) -> Tensor:
    """Replace LLaMAMLP.forward: proj(silu(fc_1(x)) * fc_2(x)), SiLU and product in one kernel."""
    from liger_kernel.ops import LigerSiLUMulFunction

    y: Tensor = mlp.proj(LigerSiLUMulFunction.apply(mlp.fc_1(x), mlp.fc_2(x)))
    return y


def rotated(qkv: Tensor, cos: Tensor, sin: Tensor, groups: int, norms: Norms | None) -> tuple[Tensor, Tensor, Tensor]:
    """Replace jobs.engines.native.rotary.rotated for a rope_fraction of 1: queries and keys in one kernel."""
    from liger_kernel.ops import LigerRopeFunction

    # Split as it lies in memory: backward then concatenates whole gradients by one kernel, and none is transposed.
    q, k, v = normalized(qkv, groups, norms)
    q, k = LigerRopeFunction.apply(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    return q.transpose(1, 2), k.transpose(1, 2), v
