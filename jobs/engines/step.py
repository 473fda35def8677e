"""The arithmetic of a step before the update: loss and gradients of a rank's micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from jobs.engines.data_parallel import reduce_gradients_now

MicroBatch = tuple[Tensor, Tensor]
"""Inputs and targets, each (mbs, seq)."""
Around = Callable[[list[Tensor]], AbstractContextManager[object]]
"""The context that a forward and backward pass over these tokens needs."""


class ForwardBackward(Protocol):
    """How a layout runs the micro-batches of a step."""

    def forward_backward(self, micro_batches: list[MicroBatch], scale: float) -> Tensor:
        """Accumulate gradients of scale x the summed loss of all micro-batches.

        Returns the summed loss, detached; zero on ranks without logits.
        """


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy summed over labels; logits (mbs, seq, vocab), targets (mbs, seq), -100 where no loss is taken."""
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return loss.to_local() if isinstance(loss, DTensor) else loss


class OneAfterAnother:
    """Runs micro-batches one after another through the whole model; gradients are reduced with the last."""

    def __init__(self, model: nn.Module, around: Around) -> None:
        self.model = model
        self.around = around

    def forward_backward(self, micro_batches: list[MicroBatch], scale: float) -> Tensor:
        """See ForwardBackward."""
        total = torch.zeros((), device=micro_batches[0][0].device)
        for i, (inputs, targets) in enumerate(micro_batches, start=1):
            reduce_gradients_now(self.model, now=i == len(micro_batches))
            with self.around([inputs, targets]):
                loss = summed_loss(self.model(inputs), targets)
                torch.autograd.backward(loss * scale)
            total += loss.detach()
        return total
