"""Products in MXFP8, by torchao's prototype: 8-bit numbers with a power of two for every 32 of them.

The three products of a linear layer (output, gradients of input and weight) round both operands along the dimension
that the product sums over, so each of input, weight and gradient is rounded twice, in blocks of rows and of columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchao.float8.float8_linear_utils import swap_linear_layers
from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

BLOCK = 32


class MXFP8Linear(nn.Linear):
    """A linear layer whose products are in MXFP8, for any number of tokens; it shares the weights of another one."""

    def __init__(self, other: nn.Linear, *, emulate: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = other.in_features, other.out_features
        self.weight, self.bias = other.weight, other.bias
        self.kernels = KernelPreference.EMULATED if emulate else KernelPreference.AUTO

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens @ weight.T + bias."""
        weight = self.weight
        if torch.is_autocast_enabled(tokens.device.type):
            dtype = torch.get_autocast_dtype(tokens.device.type)
            tokens, weight = tokens.to(dtype), weight.to(dtype)
        rows = tokens.reshape(-1, self.in_features)
        # The gradient of the weight sums over tokens, in blocks: zeros add nothing, and change no block's scale.
        padded = F.pad(rows, (0, 0, 0, -len(rows) % BLOCK))
        # Scales rounded up: no number overflows (arXiv:2506.08027).
        product: Tensor = _to_mxfp8_then_scaled_mm(padded, weight, self.kernels, ScaleCalculationMode.RCEIL)
        product = product[: len(rows)].reshape(*tokens.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias.to(product.dtype)


def multiply_in_mxfp8(model: nn.Module, chosen: Callable[[nn.Module, str], bool], *, emulate: bool) -> None:
    """Convert the chosen linear layers of a model to MXFP8, in place."""
    swap_linear_layers(model, lambda other: MXFP8Linear(other, emulate=emulate), module_filter_fn=chosen)
