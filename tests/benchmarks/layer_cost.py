"""Kernels and bytes of one layer and of the chunked loss, as a GPU runs them uncompiled; counted on the meta device.

python -m tests.benchmarks.layer_cost

Attention and RMSNorm are one kernel each on a GPU and several on other devices, so stand-ins take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from litgpt.model import RMSNorm
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jobs.engines.native.loss import CHUNK, GPU_CHUNK, LinearCrossEntropy
from jobs.engines.native.model import empty_model, layers
from jobs.engines.native.norm import FusedRMSNorm
from jobs.plan.compose import compose

MODELS = {"llama2_7b": 4096, "llama3_8b": 8192, "llama2_70b": 4096}
"""Model -> tokens of a row."""
PRODUCTS = {"mm", "addmm", "bmm"}
# Views and allocations are no kernels.
NONE = {"_unsafe_view", "alias", "as_strided", "detach", "empty", "empty_like", "expand", "new_empty", "permute",
        "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unsqueeze", "view"}  # fmt: skip


class OneKernel(torch.autograd.Function):
    """A result like the first argument, and gradients like all of them, by one kernel each."""

    @staticmethod
    def forward(ctx: Any, *args: Tensor) -> Tensor:
        """Return something like the first argument."""
        ctx.save_for_backward(*args)
        result: Tensor = torch.ops.aten.clone(args[0])
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Return something like every argument; each written once."""
        return tuple(torch.ops.aten.clone(each) for each in ctx.saved_tensors)


class Cost(TorchDispatchMode):
    """Count kernels beside matrix products, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = self.products = self.moved_bytes = 0

    def __torch_dispatch__(
        self, operator: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and count it."""
        result = operator(*args, **(kwargs or {}))
        name = operator.__name__.split(".")[0]
        if name in PRODUCTS:
            self.products += 1
        elif name not in NONE:
            self.kernels += 1
            self.moved_bytes += sum(x.nbytes for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor))
        return result


def cost(model: str, tokens: int, norm: Callable[..., Tensor]) -> Cost:
    """Return the cost of a layer with this forward method of its norms."""
    overrides = [f"model={model}", "model.layers=1", "ranks_per_node=1", f"job.sequence_length={tokens}"]
    run = compose(overrides, multirun=False)[0].run
    (layer,) = layers(empty_model(run.model, tokens, run.engine.loss).bfloat16())
    x = torch.empty(1, tokens, run.model.hidden_size, device="meta", dtype=torch.bfloat16, requires_grad=True)
    cos, sin = (torch.empty(1, tokens, run.model.head_size, device="meta") for _ in range(2))
    counted = Cost()
    with (
        patch.object(F, "scaled_dot_product_attention", lambda q, k, v, **_: OneKernel.apply(q, k, v)),  # type: ignore[no-untyped-call]
        patch.object(F, "rms_norm", lambda x, _shape, weight, _eps: OneKernel.apply(x, weight)),  # type: ignore[no-untyped-call]
        patch.object(FusedRMSNorm, "forward", norm),
    ):
        y = layer(x, cos, sin, None, None, None)
        gradient = torch.empty_like(y)
        with counted:
            layer(x, cos, sin, None, None, None).backward(gradient)
    return counted


def cost_of_loss(model: str, labels: int, chunk: int) -> Cost:
    """Return the cost of the chunked loss, whose forward pass computes the gradients."""
    run = compose([f"model={model}", "ranks_per_node=1"], multirun=False)[0].run
    hidden = torch.empty(labels, run.model.hidden_size, device="meta", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.empty(run.model.vocab_size, run.model.hidden_size, device="meta", dtype=torch.bfloat16)
    counted = Cost()
    with counted:
        targets, chosen = (torch.empty(labels, device="meta", dtype=torch.int64) for _ in range(2))
        LinearCrossEntropy.apply(hidden, weight, targets, chosen, chunk, None)  # type: ignore[no-untyped-call]
    return counted


def main() -> None:
    """Print the tables."""
    print("| layer of | tokens | RMSNorm | matrix products | other kernels | their bytes (GB) |")
    print("| --- | --: | --- | --: | --: | --: |")
    for model, tokens in MODELS.items():
        for name, norm in (("LitGPT's formula", RMSNorm.forward), ("torch's operator", FusedRMSNorm.forward)):
            found = cost(model, tokens, norm)
            numbers = f"{found.products} | {found.kernels} | {found.moved_bytes / 1e9:.1f}"
            print(f"| {model} | {tokens:,} | {name} | {numbers} |")
    print("\n| loss of | labels | chunk | matrix products | other kernels | their bytes (GB) |")
    print("| --- | --: | --: | --: | --: | --: |")
    for model, labels in MODELS.items():
        for chunk in (CHUNK, GPU_CHUNK):
            found = cost_of_loss(model, labels, chunk)
            numbers = f"{found.products} | {found.kernels} | {found.moved_bytes / 1e9:.1f}"
            print(f"| {model} | {labels:,} | {chunk:,} | {numbers} |")


if __name__ == "__main__":
    main()
