"""RMSprop (https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf): the mean of squared gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.engines.native.optimizers.optimizer import Optimizer
from jobs.schema import Run

if TYPE_CHECKING:
    import torch


class RMSprop(Optimizer):
    """torch.optim.RMSprop."""

    moments = 1

    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return RMSprop with job.beta2 as the weight of the past."""
        import torch

        job = run.job
        # For a gradient g: v = b2 v + (1 - b2) g^2; then w = w - lr g / (sqrt(v) + eps).
        return torch.optim.RMSprop(parameters, lr=job.learning_rate, alpha=job.beta2, weight_decay=job.weight_decay)


OPTIMIZER = RMSprop()
