"""AdamW on bfloat16 weights with stochastic rounding (https://arxiv.org/abs/2010.06192)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.engines.native.optimizers.adamw import AdamW
from jobs.schema import Run

if TYPE_CHECKING:
    import torch


class AdamWStochastic(AdamW):
    """AdamW in float32 arithmetic, whose results are rounded stochastically to weights and moments in bfloat16."""

    def update_bytes(self, run: Run) -> float:
        """Return those of separate kernels, each of which reads and writes its operands in float32."""
        del run
        return 200

    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer."""
        from jobs.engines.native.updates.rounded_adamw import RoundedAdamW

        job = run.job
        return RoundedAdamW(
            parameters,
            lr=job.learning_rate,
            betas=(job.beta1, job.beta2),
            weight_decay=job.weight_decay,
            seed=job.seed,
            device=device,
        )


OPTIMIZER = AdamWStochastic()
