"""Kernels of one layer of Llama-2 7B on a GPU, counted on the meta device: no memory, no arithmetic, no GPU."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jobs.engines.native import attention, kernels
from jobs.engines.native.model import empty_model, layers
from jobs.engines.native.parallelize import wrap_layers
from tests.support.composing import one

EXPENSIVE = {"mm", "addmm", "bmm", "_varlen_attn", "_varlen_attn_backward"}


class Calls(TorchDispatchMode):
    """Count the calls of operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operator: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.calls[operator.__name__.split(".")[0]] += 1
        return operator(*args, **(kwargs or {}))


def calls_of_packed_layers(mode: str, *overrides: str) -> list[Counter[str]]:
    """The calls of each layer's forward and backward pass over a packed row, with the kernel of GPUs."""
    run = one("model=llama2_7b", "model.layers=1", "job.micro_batch_size=1", "ranks_per_node=1",
              "job.sequence_length=4096", f"engine.activation_checkpointing={mode}", *overrides).run  # fmt: skip
    gpt = empty_model(run.model, run.job.sequence_length).bfloat16()
    wrap_layers(gpt, run)
    x = torch.empty(1, 4096, 4096, device="meta", dtype=torch.bfloat16, requires_grad=True)
    cos, sin = (torch.empty(1, 4096, 128, device="meta") for _ in range(2))
    bounds = torch.empty(9, device="meta", dtype=torch.int32)
    found = []
    for layer in layers(gpt):
        with Calls() as counted:
            layer(x, cos, sin, bounds, None, None).sum().backward()
        found.append(counted.calls)
    return found


def test_heads_that_share_keys_and_values_are_not_copied_for_the_kernels_of_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = one("model=llama3_8b", "model.layers=1", "ranks_per_node=1", "job.sequence_length=512").run
    (layer,) = layers(empty_model(run.model, 512))
    x, (cos, sin) = torch.empty(1, 512, 4096, device="meta"), torch.empty(2, 1, 512, 128, device="meta")
    taken = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, **further: Any) -> Tensor:
        taken.append((k.shape[1], v.shape[1], further.get("enable_gqa", False)))
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    layer(x, cos, sin, None, None, None)
    monkeypatch.setattr(attention, "has_varlen_kernel", lambda _: True)
    layer(x, cos, sin, None, None, None)
    assert taken == [(32, 32, False), (8, 8, True)]


@pytest.mark.parametrize("mode", ["none", "selective"])
def test_selective_checkpointing_computes_matrix_products_and_attention_once(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "has_varlen_kernel", lambda _: True)
    (calls,) = calls_of_packed_layers(mode)
    # Forward, and the two gradients of each matrix.
    assert {name: calls[name] for name in EXPENSIVE & set(calls)} == {
        "mm": 5 * 3,
        "_varlen_attn": 1,
        "_varlen_attn_backward": 1,
    }
    recomputed = calls["silu"]
    assert recomputed == (2 if mode == "selective" else 1)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_only_the_chosen_first_layers_are_computed_again(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "has_varlen_kernel", lambda _: True)
    found = calls_of_packed_layers(mode, "model.layers=3", "engine.checkpointed_layers=2")
    assert [calls["silu"] for calls in found] == [2, 2, 1]
    # The result of a layer's last product is not needed.
    again = 4 if mode == "full" else 0
    assert [calls["mm"] for calls in found] == [15 + again, 15 + again, 15]


def test_attention_over_samples_and_ligers_rotation_copy_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rope:
        """Liger's function with its layouts: heads before the sequence, of memory with the sequence before heads."""

        @staticmethod
        def apply(q: Tensor, k: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
            return tuple(2 * x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))

    monkeypatch.setitem(sys.modules, "liger_kernel.ops", SimpleNamespace(LigerRopeFunction=Rope))
    monkeypatch.setattr(attention, "has_varlen_kernel", lambda _: True)
    monkeypatch.setattr(attention.Attention, "rotate", staticmethod(kernels.rotated))
    (calls,) = calls_of_packed_layers("none")
    # Queries and keys are copied before the rotation, which works in place.
    assert {name: calls[name] for name in ("clone", "copy_", "select_backward", "cat")} == {
        "clone": 2,
        "copy_": 0,
        "select_backward": 0,
        "cat": 1,
    }
