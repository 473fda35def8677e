"""Gradient descent with momentum (https://doi.org/10.1016/0041-5553(64)90137-5): it keeps the mean of the gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.engines.native.optimizers.optimizer import Optimizer
from jobs.schema import Run

if TYPE_CHECKING:
    import torch


class SGD(Optimizer):
    """torch.optim.SGD."""

    moments = 1

    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return SGD with the momentum job.beta1."""
        import torch

        job = run.job
        # For a gradient g: m = b1 m + g + decay w; then w = w - lr m.
        return torch.optim.SGD(parameters, lr=job.learning_rate, momentum=job.beta1, weight_decay=job.weight_decay)


OPTIMIZER = SGD()
