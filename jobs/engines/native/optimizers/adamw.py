"""AdamW (https://arxiv.org/abs/1711.05101): it keeps the means of the gradients and of their squares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.engines.native.optimizers.optimizer import Optimizer
from jobs.schema import OptimizerLoop, Run

if TYPE_CHECKING:
    import torch


class AdamW(Optimizer):
    """torch.optim.AdamW."""

    def moments(self, run: Run) -> float:
        """Return two."""
        del run
        return 2

    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return AdamW, whose update is one fused kernel on a GPU unless engine.optimizer_loop chooses."""
        import torch

        job = run.job
        loop = run.engine.optimizer_loop or (OptimizerLoop.fused if device.type == "cuda" else OptimizerLoop.single)
        # For a gradient g: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, both divided by 1 - b^step; then
        # w = w (1 - lr decay) - lr m / (sqrt(v) + eps).
        return torch.optim.AdamW(
            parameters,
            lr=job.learning_rate,
            betas=(job.beta1, job.beta2),
            weight_decay=job.weight_decay,
            fused=loop is OptimizerLoop.fused,
            foreach=loop is OptimizerLoop.foreach,
        )


OPTIMIZER = AdamW()
