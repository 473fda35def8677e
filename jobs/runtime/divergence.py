"""The end of a run that has diverged: no checkpoint or export contains a weight that is not finite.

A step ends in a loss L and a gradient norm |g|. If one of them is infinite or NaN, the update of this step has made
weights NaN, and every later step would only repeat it. So this step is the last one: all ranks raise DivergedError
before anything is saved, the checkpoints of earlier steps stay, and nobody starts the run again by itself.

The check costs no wait for a GPU: it reads the numbers that a step fetches for its record. These are known only after
the update was enqueued, so the weights in memory are lost; those on disk are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.runtime.exchange import gather

REMEDY = (
    "Set a lower job.learning_rate, a longer job.warmup_steps, or a job.clip_norm, and submit it as another run. The "
    "checkpoints before this step are kept."
)


LEFT_BAND = (
    "Set engine.float8=false, another engine.float8_recipe or job.precision=bfloat16, or a wider "
    "job.loss_band.percent or longer job.loss_band.steps, and submit it as another run. The checkpoints before this "
    "step are kept."
)


class DivergedError(KnownCauseError):
    """A number is not finite after a step, or the loss has left job.loss_band; all ranks raise it together."""

    def __init__(self, step: int, what: str, remedy: str = REMEDY) -> None:
        super().__init__(FailureCause.diverged, f"diverged at step {step}: {what}. {remedy}")
        self.evidence["step"] = step


def is_finite(*numbers: float | None) -> bool:
    """Return True if no number is infinite or NaN; None stands for a number that a step does not have."""
    return all(number is None or math.isfinite(number) for number in numbers)


def in_words(loss: float, norm: float | None) -> str:
    """Return which of a step's numbers are not finite."""
    named = {"the loss": loss, "the gradient norm": norm}
    found = [f"{name} is {value}" for name, value in named.items() if not is_finite(value)]
    # Ranks of TP compute the gradients of their replicated weights separately.
    return " and ".join(found) or "the gradient norm of another rank is not finite"


def are_finite(weights: Iterable[Tensor]) -> bool:
    """Return True if no value of these tensors is infinite or NaN; it takes one pass over them and no copy."""
    # The largest magnitude of a tensor is NaN if one of its values is.
    largest = [
        torch.linalg.vector_norm(weight.detach(), torch.inf).double()
        for weight in weights
        if weight.is_floating_point() and weight.numel()
    ]
    return not largest or bool(torch.stack(largest).isfinite().all())


def refuse_not_finite(step: int, weights: Iterable[Tensor]) -> None:
    """Raise DivergedError on every rank if a weight of any rank is not finite after a step; every rank calls it."""
    if not all(gather(are_finite(weights))):
        raise DivergedError(step, "a weight is not finite after the update")
