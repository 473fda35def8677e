"""The protocol of an optimizer. Predictions ask it on login nodes, so torch is imported where it is built only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.lookup import imported
from jobs.schema import Precision, Run

if TYPE_CHECKING:
    import torch
    from torch import nn

    from jobs.plan.predict.weights import Weight

NUMBER_BYTES = 4
Groups = list[dict[str, Any]]
"""Parameter groups of torch's optimizers: "params", and settings of these."""


class Optimizer(ABC):
    """An optimizer."""

    gathers = False
    """True if an update needs whole gradients of matrices, and sends whole results, where FSDP shards them."""

    @abstractmethod
    def moments(self, run: Run) -> float:
        """Return the numbers that it keeps for each trained weight, in the mean."""

    def state_bytes(self, run: Run) -> float:
        """Return the bytes that it keeps for each trained weight, in the mean: its numbers have the type of weights."""
        return (2 if run.engine.parameters is Precision.bfloat16 else NUMBER_BYTES) * self.moments(run)

    def update_bytes(self, run: Run) -> float:
        """Return the bytes that an update moves for each weight in float32.

        Weight, gradient and moments are read; all but the gradient are written.
        """
        # Reads 2 + moments, writes 1 + moments.
        return NUMBER_BYTES * (3 + 2 * self.moments(run))

    def update_flops(self, weight: Weight) -> float:
        """Return the FLOPs of matrix products to update a weight of a layer, which the ranks with its shards share."""
        del weight
        return 0.0

    def refuse_unready(self, run: Run) -> None:
        """Raise ConfigError before anything is submitted if this machine shows that it cannot be built."""
        del run

    def divided(self, groups: Groups, model: nn.Module) -> Groups:
        """Return groups of a model's parameters, divided further where it updates some parameters in another way."""
        del model
        return groups

    @abstractmethod
    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return torch's optimizer of parameters, or of groups of them."""


def kept_bytes(run: Run) -> float:
    """Return the bytes that are kept for each trained weight, in the mean: by the optimizer, and for its average."""
    return optimizer_of(run).state_bytes(run) + (0 if run.job.ema_decay is None else NUMBER_BYTES)


def moved_bytes(run: Run) -> float:
    """Return the bytes that an update moves for each weight; an average reads it and itself, and is written."""
    return optimizer_of(run).update_bytes(run) + (0 if run.job.ema_decay is None else 3 * NUMBER_BYTES)


def optimizer_of(run: Run) -> Optimizer:
    """Return the optimizer of a run."""
    name = run.job.optimizer.name if run.job.optimizer_class is None else "own"
    found: Optimizer = imported(f"jobs.engines.native.optimizers.{name}:OPTIMIZER")
    return found
