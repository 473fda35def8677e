"""Norms in the type of their input, by torch's operators: one kernel on a GPU, where LitGPT's RMSNorm is nine."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from litgpt.model import RMSNorm
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from jobs.engines.native.mixed_precision import without_autocast


class FusedRMSNorm(RMSNorm):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's RMSNorm: its parameters, its arithmetic in float32, rounded once to the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) * weight."""
        weight = 1 + self.weight if self.add_unit_offset else self.weight
        # The operator computes in float32 by itself, and wants input and weight of one type. Autocast would copy both
        # to float32, and backward would keep the copies.
        with without_autocast(x):
            return F.rms_norm(x, self.weight.shape, weight.to(x.dtype), self.eps)


class NarrowLayerNorm(nn.LayerNorm):
    """LayerNorm whose weight and bias take the type of its input; the operator computes in float32 by itself."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean(x)) / sqrt(var(x) + eps) * weight + bias."""
        with without_autocast(x):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class HeadsNorm(FusedRMSNorm):
    """RMSNorm of all heads of a token together, each number with a scale of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x (mbs, seq, heads, head size), normalized along its last two dimensions.

        Under TP x is sharded by heads and the weight likewise: one number for each token is reduced.
        """
        if not isinstance(x, DTensor):
            return super().forward(x.flatten(2)).view(x.shape)
        wide = x.float()
        mean = (wide * wide).mean((2, 3), keepdim=True)
        weight = self.weight.unflatten(0, x.shape[2:]).float()
        result: Tensor = (wide * torch.rsqrt(mean + self.eps) * weight).to(x.dtype)
        return result


OWN: dict[type, type] = {RMSNorm: FusedRMSNorm, nn.LayerNorm: NarrowLayerNorm}


def fuse_norms(module: nn.Module) -> None:
    """Let LitGPT's norms in a module compute by torch's operators in the type of their input, in place."""
    for norm in module.modules():
        if type(norm) in OWN:
            norm.__class__ = OWN[type(norm)]
