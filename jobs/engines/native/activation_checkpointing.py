"""Activation checkpointing: recompute a layer's activations in the backward pass instead of keeping them.

none        keep all activations
selective   keep the results of matrix products and attention, recompute the cheap rest, an adapter's B among it
full        keep the input of each layer only: about a third more arithmetic (a second forward pass)

Selective checkpointing chooses among a layer's operators, so it is part of what is compiled. Full checkpointing calls
the compiled layer again: inside the graph it would not work with TP (PyTorch 2.13 cannot save DTensors there).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from litgpt.model import Block
from torch import Tensor
from torch.nn.attention import varlen  # noqa: F401 (registers the operator of packed rows)
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from jobs.engines.native.customization.lora import AdaptedLinear
from jobs.plan.predict.activations import CHEAP_PRODUCT

ATEN = torch.ops.aten
# Operators that are expensive to recompute: matrix products and attention.
KEPT = {
    ATEN.mm.default,
    ATEN.addmm.default,
    ATEN.bmm.default,
    ATEN._scaled_mm.default,
    ATEN._scaled_dot_product_flash_attention.default,
    ATEN._scaled_dot_product_efficient_attention.default,
    ATEN._scaled_dot_product_cudnn_attention.default,
    ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    ATEN._scaled_dot_product_fused_attention_overrideable.default,
    ATEN._grouped_mm.default,
    torch.ops.torch_attn._varlen_attn.default,
}
PROFILER = torch.ops.profiler
# FSDP's unit of a layer's experts is inside the layer, and marks what it does for a profiler. When the layer is
# computed again, their weights are there already, so the marks are others.
SAC_IGNORED_OPS.update({PROFILER._record_function_enter_new.default, PROFILER._record_function_exit._RecordFunction})


class SelectiveBlock(Block):  # type: ignore[misc]  # LitGPT publishes no types
    """LitGPT's layer under selective checkpointing; a class, so that all layers share one compiled graph."""

    def forward(self, *args: Any) -> Tensor:
        """Run the layer and keep the results of expensive operators only."""
        result: Tensor = checkpoint(super().forward, *args, use_reentrant=False, context_fn=selective_contexts)
        return result


def recompute_cheap(layer: Block) -> None:
    """Apply selective checkpointing to a layer in place, before it is compiled."""
    layer.__class__ = SelectiveBlock
    for module in layer.modules():
        if isinstance(module, AdaptedLinear):
            # What is kept must not be written to.
            module.copies = True


def recompute_all(layer: Block) -> None:
    """Apply full checkpointing to a layer in place, after it is compiled.

    Wrap the forward method and not the module, so that parameters keep their names.
    """
    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def selective_contexts() -> Any:
    """Return the forward and the recomputation context of the selective mode."""
    return create_selective_checkpoint_contexts(keep_expensive)


def keep_expensive(_context: Any, operator: Any, *args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """Return the policy of the selective mode for one operator.

    The product (tokens, inner) x (inner, out) takes 2 x inner operations a result, few in an adapter's B. Only a
    compiler sees that one as an operator that does not write in place.
    """
    cheap = operator is ATEN.addmm.default and args[1].shape[1] <= CHEAP_PRODUCT
    keeps = operator in KEPT and not cheap
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
