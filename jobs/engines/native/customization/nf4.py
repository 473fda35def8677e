"""Frozen matrices in 4 bits, NF4 with double quantization (QLoRA, https://arxiv.org/abs/2305.14314), by bitsandbytes.

A block of 64 numbers is its largest absolute value, the scale, and for each number the index of one of 16 levels, which
are quantiles of a normal distribution. A block of 256 scales is 256 numbers of 8 bits and a scale in float32. So a
number takes 4 + 8 / 64 + 32 / (64 * 256) = 4.127 bits.

A product needs the matrix in the type of the arithmetic. It exists during the product only: the backward pass computes
it from the 4 bits again.

The parameter is the indices, seen as numbers of the type of the arithmetic, so that FSDP shards, casts and gathers it
as it does other frozen weights. The scales are whole on every rank.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from litgpt.model import GPT
from torch import Tensor, nn

from jobs.engines.native.model import layers
from jobs.errors import ConfigError

BLOCK = 64
"""Numbers with one scale: the paper's and bitsandbytes' block."""


class Nf4Linear(nn.Linear):
    """A frozen linear layer whose weight is in 4 bits."""

    stored: torch.dtype
    """Type of the arithmetic: of the parameter, and of the weight in a product."""
    scales: Any
    """bitsandbytes' QuantState."""

    def forward(self, x: Tensor) -> Tensor:
        """Return W x, (..., in) -> (..., out)."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(self.stored)
        y: Tensor = Product.apply(x, self.weight, self)  # type: ignore[no-untyped-call]  # torch has no types for it
        return y

    def pack(self, weight: Tensor) -> Tensor:
        """Return a weight (out, in) as the parameter's values, and keep its scales."""
        from bitsandbytes.functional import quantize_4bit

        # As one row: bitsandbytes 0.50 for CPUs with AVX-512 takes blocks that cross rows for others.
        indices, self.scales = quantize_4bit(
            weight.to(self.stored).flatten(), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
        )
        packed: Tensor = indices.view(self.out_features, -1).view(self.stored)
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """Return the weight (out, in) of the whole parameter's values."""
        from bitsandbytes.functional import dequantize_4bit

        weight: Tensor = dequantize_4bit(packed.contiguous().view(torch.uint8).view(-1, 1), self.scales)
        return weight.view(self.out_features, self.in_features)


class Product(torch.autograd.Function):
    """W x + b of a frozen W in 4 bits, which keeps these for the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, linear: Nf4Linear) -> Tensor:
        """Return the product, (..., in) -> (..., out)."""
        ctx.save_for_backward(packed)
        ctx.linear = linear
        return F.linear(x, linear.unpack(packed), linear.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x, W^T dy."""
        (packed,) = ctx.saved_tensors
        return gradients[0] @ ctx.linear.unpack(packed), None, None


def quantize(gpt: GPT, dtype: torch.dtype) -> None:
    """Turn the matrices of every layer into Nf4Linear, in place; embedding, head and norms stay as they are.

    Raise ConfigError if this Python has no bitsandbytes.
    """
    if find_spec("bitsandbytes") is None:
        raise ConfigError(
            "job.lora.quantize_base=nf4 needs bitsandbytes on the nodes. Run pip install --editable '.[qlora]' in the "
            "checkout, or set job.lora.quantize_base=null."
        )
    for layer in layers(gpt):
        for module in list(layer.modules()):
            if isinstance(module, nn.Linear):
                module.__class__ = Nf4Linear
                assert isinstance(module, Nf4Linear)
                module.stored = dtype
                columns = module.in_features // numbers_in(dtype)
                module.weight = nn.Parameter(
                    torch.empty(module.out_features, columns, dtype=dtype, device=module.weight.device),
                    requires_grad=False,
                )


def numbers_in(dtype: torch.dtype) -> int:
    """Return the number of 4-bit numbers that fit into one number of a type."""
    return 2 * dtype.itemsize
