"""Dynamic loss scaling of float16, whose smallest normal number is 6e-5: gradients below it would be lost.

The loss is multiplied by a scale before backward and the gradients are divided by it. Where they overflow on any rank,
all ranks skip the update and halve the scale; after GROWTH_STEPS updates in a row they double it. torch's GradScaler
does the same, but not with the plain and sharded gradients of TP in one model, nor over pipeline stages.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from jobs import metrics as m
from jobs.metrics import Metric
from jobs.runtime.process_group import on_host

# The defaults of torch.amp.GradScaler.
FIRST_SCALE = 2.0**16
GROWTH_STEPS = 2000


class LossScale:
    """The scale, and its counts; `state` is saved with a checkpoint and loaded in place."""

    def __init__(self) -> None:
        self.state = torch.tensor([FIRST_SCALE, 0, 0], dtype=torch.float64)
        """The scale, updates since it changed, skipped updates of the run."""

    @property
    def value(self) -> float:
        """The scale of the next loss."""
        return float(self.state[0])

    @property
    def skipped(self) -> int:
        """The number of skipped updates, which do not advance the learning rate."""
        return int(self.state[2])

    def numbers(self) -> dict[Metric, float]:
        """Return the numbers of the record of a step."""
        return {m.LOSS_SCALE: self.value, m.SKIPPED_UPDATES: self.skipped}

    def overflows(self, norm: Tensor) -> bool:
        """Return whether to skip an update, since the gradient norm of any rank is not finite; adapt the scale to it.

        Every rank calls it. Ranks of TP compute the gradients of their replicated weights separately, so that one alone
        may overflow. At a scale of 1 the scale is not the reason: nothing is skipped, and the norm ends the run.
        """
        scale, good, skipped = self.state.tolist()
        overflow = 1 - norm.isfinite().float()
        # All ranks skip or none: a rank that updated alone would have other weights.
        dist.all_reduce(overflow, dist.ReduceOp.MAX)
        if on_host(overflow) == [0]:
            grows = good + 1 == GROWTH_STEPS
            self.state.copy_(torch.tensor([scale * 2, 0, skipped] if grows else [scale, good + 1, skipped]))
            return False
        if scale <= 1:
            return False
        self.state.copy_(torch.tensor([scale / 2, 0, skipped + 1]))
        return True
