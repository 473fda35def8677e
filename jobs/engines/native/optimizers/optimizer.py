"""The protocol of an optimizer. Predictions ask it on login nodes, so torch is imported where it is built only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.lookup import imported
from jobs.schema import Run

if TYPE_CHECKING:
    import torch

NUMBER_BYTES = 4


class Optimizer(ABC):
    """An optimizer."""

    moments: int
    """Numbers that it keeps for each trained weight."""

    @property
    def update_bytes(self) -> int:
        """Return the bytes that an update moves for each weight in float32.

        Weight, gradient and moments are read; all but the gradient are written.
        """
        # Reads 2 + moments, writes 1 + moments.
        return NUMBER_BYTES * (3 + 2 * self.moments)

    @abstractmethod
    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return torch's optimizer of parameters, or of groups of them."""


def optimizer_of(run: Run) -> Optimizer:
    """Return the optimizer of a run."""
    found: Optimizer = imported(f"jobs.engines.native.optimizers.{run.job.optimizer.name}:OPTIMIZER")
    return found
