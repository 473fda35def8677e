"""Matrix products whose gradients of weights are added to those of the micro-batches before (engine.sums_in_products).

    dW <- dW + dy^T x    by one product with beta = 1, where autograd computes dy^T x and adds it

The sum of a micro-batch is then neither written nor read: 4 bytes of bfloat16 for each weight instead of 10, and it is
rounded once instead of twice.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jobs.engines.native.experts.mixture import experts_of


def sum_in_products(gpt: nn.Module) -> None:
    """Replace the products of a model's linear layers but those of experts, which are grouped, in place."""
    own = {module for experts in experts_of(gpt) for module in experts.modules()}
    for module in gpt.modules():
        if type(module) is nn.Linear and module not in own:
            module.__class__ = SummedLinear


class SummedLinear(nn.Linear):
    """A linear layer that adds to its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b."""
        y: Tensor = SummedProduct.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y


class SummedProduct(torch.autograd.Function):
    """x W^T + b; backward adds the gradient of W to the one that exists, and returns it only where none does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the product, and keep its input."""
        ctx.save_for_backward(x)
        ctx.weight, ctx.has_bias = weight, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the gradients of x, and of W and b."""
        (x,), weight, (given,) = ctx.saved_tensors, ctx.weight, gradients
        of_rows, rows = given.flatten(0, -2), x.flatten(0, -2)
        of_bias = of_rows.sum(0) if ctx.has_bias else None
        if weight.grad is None:
            return given @ weight, of_rows.T @ rows, of_bias
        weight.grad.addmm_(of_rows.T, rows)
        return given @ weight, None, of_bias
