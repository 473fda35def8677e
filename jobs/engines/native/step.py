"""Loss and gradients of a rank's micro-batches: a step without its update."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from jobs.data import MicroBatch
from jobs.engines.native.data_parallel import prepare_backward
from jobs.schema import Run

Around = Callable[[list[Tensor]], AbstractContextManager[object]]
"""Returns the context of a forward and backward pass over these tokens."""


class ForwardBackward(Protocol):
    """Runs the micro-batches of a step."""

    def forward_backward(self, micro_batches: list[MicroBatch[Tensor]], scale: float) -> Tensor:
        """Accumulate gradients of scale x the summed loss of all micro-batches.

        Return the summed loss, detached; zero on ranks without the head.
        """


class OneAfterAnother:
    """Run micro-batches one after another through the whole model; reduce gradients over replicas with the last."""

    def __init__(self, model: nn.Module, run: Run, around: Around) -> None:
        self.model = model
        self.run = run
        self.around = around

    def forward_backward(self, micro_batches: list[MicroBatch[Tensor]], scale: float) -> Tensor:
        """Run all micro-batches (ForwardBackward.forward_backward)."""
        total = torch.zeros((), device=micro_batches[0].inputs.device)
        for i, micro_batch in enumerate(micro_batches, start=1):
            prepare_backward(self.model, self.run, last=i == len(micro_batches))
            with self.around([micro_batch.inputs, micro_batch.targets]):
                loss = self.model(*micro_batch)
                torch.autograd.backward(loss * scale)
            # Stays on the device: reading it here would make the host wait in every micro-batch.
            total += loss.detach()
        return total
