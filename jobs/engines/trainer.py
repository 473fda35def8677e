"""Protocols of an engine in the training loop of jobs.work.train.loop: its trainer, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from jobs.data.batches import StepBatch
from jobs.lease import Lease
from jobs.metrics import Metric
from jobs.runtime.checkpoint_directory import Saved
from jobs.runtime.pace import Pace
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Kernels, Run


class Saves(Protocol):
    """Writes and reads the checkpoints of a trainer, and its export."""

    def save(self, step: int, *, last: bool) -> None:
        """Write the state after a step; every rank calls it."""

    def load(self, path: Path) -> int:
        """Restore the state in place and return the step of the checkpoint; every rank calls it."""

    def finish(self) -> None:
        """Wait for the checkpoint in progress; every rank calls it."""

    def ended(self) -> list[Saved]:
        """Return the results of checkpoints since the last call."""

    def export(self, tokenizer_files: list[Path]) -> None:
        """Write a LitGPT checkpoint directory; every rank calls it."""


class Trains(Protocol):
    """The model and optimizer of one rank, trained step by step."""

    pace: Pace

    @property
    def kernels(self) -> Kernels:
        """The kernels in use."""

    def step(self, step: int, batch: StepBatch) -> tuple[float, float | None, float]:
        """Run one optimizer update; return the global mean loss before it, the gradient norm and the learning rate.

        No norm is returned if the gradients overflowed float16, so that the update was skipped.
        """

    def weights(self) -> Iterable[Tensor]:
        """Return this rank's part of the weights that train."""

    def saver(self, lease: Lease, watchdog: Watchdog) -> Saves:
        """Return the writer and reader of its checkpoints."""

    def parameters_held(self) -> int:
        """Return the number of parameters of the rank with the most; every rank calls it."""

    def parameters_trained(self) -> int:
        """Return the number of parameters that the optimizers of all ranks update; every rank calls it."""

    def numbers(self) -> dict[Metric, float] | None:
        """Return further numbers of the record of a step."""


TrainerOf = Callable[[Run, torch.device, int, Callable[[Metric], None]], Trains]
"""(run, device, steps, begins) -> trainer; it calls `begins` with the metric of each part of start-up."""
