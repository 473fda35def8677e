"""Kernels, bytes and memory of one layer, of the loss and of FSDP's gathers on GPUs; counted on the meta device.

python -m tests.benchmarks.layer_cost

Attention and RMSNorm are one kernel each on a GPU and several on other devices, so stand-ins take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from unittest.mock import patch
from weakref import finalize

import torch
import torch.distributed as dist
import torch.nn.functional as F
from litgpt.model import RMSNorm
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jobs.engines.native import attention
from jobs.engines.native.data_parallel import shard
from jobs.engines.native.loss import chunked, whole
from jobs.engines.native.loss_chunk import LEAST_CHUNK, USUAL_CHUNK, loss_chunk
from jobs.engines.native.model import empty_model, layers
from jobs.engines.native.norm import FusedRMSNorm
from jobs.engines.native.parallelize import device_mesh
from jobs.layout import layout_of
from jobs.plan.compose import compose

Counting = TypeVar("Counting", bound=TorchDispatchMode)
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


class Peak(TorchDispatchMode):
    """Measure the most bytes that are in memory at once, of what is made inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(
        self, operator: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and add what it allocates until that is freed."""
        inputs = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = operator(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            storage = each.untyped_storage()
            key = storage._cdata
            if key not in self.live and key not in inputs:
                self.live[key] = storage.nbytes()
                finalize(storage, self.live.pop, key)
        self.peak_bytes = max(self.peak_bytes, sum(self.live.values()))
        return result


def cost(model: str, tokens: int, norm: Callable[..., Tensor], *, shared: bool) -> Cost:
    """Return the cost of a layer with this forward method of its norms; `shared`: heads share keys and values."""
    overrides = [f"model={model}", "model.layers=1", "ranks_per_node=1", f"job.sequence_length={tokens}"]
    run = compose(overrides, multirun=False)[0].run
    (layer,) = layers(empty_model(run.model, tokens).bfloat16())
    x = torch.empty(1, tokens, run.model.hidden_size, device="meta", dtype=torch.bfloat16, requires_grad=True)
    cos, sin = (torch.empty(1, tokens, run.model.head_size, device="meta") for _ in range(2))
    counted = Cost()
    with (
        patch.object(F, "scaled_dot_product_attention", lambda q, k, v, **_: OneKernel.apply(q, k, v)),  # type: ignore[no-untyped-call]
        patch.object(F, "rms_norm", lambda x, _shape, weight, _eps: OneKernel.apply(x, weight)),  # type: ignore[no-untyped-call]
        patch.object(FusedRMSNorm, "forward", norm),
        patch.object(attention, "takes_groups", lambda *_, **__: shared),
    ):
        y = layer(x, cos, sin, None, None, None)
        gradient = torch.empty_like(y)
        with counted:
            layer(x, cos, sin, None, None, None).backward(gradient)
    return counted


def of_loss(model: str, labels: int, chunk: int | None, mode: Counting) -> Counting:
    """Return the mode after the loss and its gradients, in chunks or from all logits."""
    run = compose([f"model={model}", "ranks_per_node=1"], multirun=False)[0].run
    size = run.model.hidden_size
    hidden = torch.empty(1, labels, size, device="meta", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.empty(run.model.vocab_size, size, device="meta", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.empty(1, labels, device="meta", dtype=torch.int64)
    one = torch.empty((), device="meta")
    with mode:
        loss = whole(hidden @ weight.T, targets) if chunk is None else chunked(hidden, weight, targets, labels, chunk)
        loss.backward(one)
    return mode


def gathers(model: str, ranks: int) -> dict[str, int]:
    """Return the bytes in bfloat16 that FSDP gathers at once: of each kind of unit."""
    run = compose([f"model={model}", "parallelism=fsdp_full", f"ranks_per_node={ranks}", "cluster=xe9680_h100"],
                  multirun=False)[0].run  # fmt: skip
    gpt = empty_model(run.model, run.job.sequence_length, loss_chunk(run))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        shard(gpt, run, device_mesh(layout_of(run), torch.device("cpu")))
    finally:
        dist.destroy_process_group()
    units = {
        "embedding": ("transformer.wte",),
        "layer": ("transformer.h.0",),
        "norm and head": ("transformer.ln_f", "lm_head"),
    }
    return {
        unit: 2 * sum(p.numel() for name in names for p in gpt.get_submodule(name).parameters())
        for unit, names in units.items()
    }


def main() -> None:
    """Print the tables."""
    print("| layer of | tokens | RMSNorm | keys and values | matrix products | other kernels | their bytes (GB) |")
    print("| --- | --: | --- | --- | --: | --: | --: |")
    choices = (
        ("LitGPT's formula", RMSNorm.forward, False),
        ("torch's operator", FusedRMSNorm.forward, False),
        ("torch's operator", FusedRMSNorm.forward, True),
    )
    for model, tokens in MODELS.items():
        for name, norm, shared in choices:
            found = cost(model, tokens, norm, shared=shared)
            numbers = f"{found.products} | {found.kernels} | {found.moved_bytes / 1e9:.1f}"
            print(f"| {model} | {tokens:,} | {name} | {'shared' if shared else 'repeated'} | {numbers} |")
    print("\n| loss of | labels | chunk | matrix products | other kernels | their bytes (GB) | peak memory (GB) |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for model, labels in MODELS.items():
        for chunk in (None, LEAST_CHUNK, 2 * LEAST_CHUNK, USUAL_CHUNK):
            found = of_loss(model, labels, chunk, Cost())
            peak = of_loss(model, labels, chunk, Peak()).peak_bytes / 1e9
            numbers = f"{found.products} | {found.kernels} | {found.moved_bytes / 1e9:.1f} | {peak:.1f}"
            print(f"| {model} | {labels:,} | {f'{chunk:,}' if chunk else 'whole'} | {numbers} |")
    print("\n| FSDP of | first gather before (GB) | now | largest before | now |")
    print("| --- | --: | --: | --: | --: |")
    for model in MODELS:
        found_bytes = gathers(model, 8)
        root = found_bytes["embedding"] + found_bytes["norm and head"]
        largest = max(root, found_bytes["layer"]), max(found_bytes.values())
        sizes = (root, found_bytes["embedding"], *largest)
        print(f"| {model} | {' | '.join(f'{size / 1e9:.2f}' for size in sizes)} |")


if __name__ == "__main__":
    main()
