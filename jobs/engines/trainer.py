"""Protocols of the training loop (jobs.work.train.loop): the data of a run, its trainer, and its checkpoints.

A class that inherits from one gets the answers of a kind that has nothing to do there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from jobs.data.batches import Work
from jobs.lease import Lease
from jobs.metrics import Metric
from jobs.runtime.checkpoints.copies import Copies
from jobs.runtime.checkpoints.directory import Saved
from jobs.runtime.pace import Pace
from jobs.runtime.recorder import Recorder
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run


class Data(Protocol):
    """The batches of one rank. Their class is Work with the samples of the trainer."""

    steps: int
    """Optimizer steps of the whole run."""
    tokenizer_files: Sequence[Path] = ()
    """Files that belong into an export."""

    def description(self) -> str:
        """Return the data as text, for the record of the start."""

    def batches(self, done: int, device: torch.device) -> AbstractContextManager[Iterator[Work]]:
        """Return the batches of the steps after `done`, in order, while the context lasts."""

    def clear(self) -> None:
        """Remove what the run made for itself and needs no more, after its last step; the first rank calls it."""
        return


DataOf = TypeVar("DataOf", bound=Data)


class Saves(Protocol):
    """Writes and reads the checkpoints of a trainer, and its export."""

    copies: Copies | None = None
    """Copies of checkpoints on the nodes, which `load` reads."""

    def save(self, step: int, *, last: bool) -> None:
        """Write the state after a step; every rank calls it."""

    def load(self, path: Path) -> int:
        """Restore the state in place and return the step of the checkpoint; every rank calls it."""

    def loaded(self) -> Mapping[Metric, int]:
        """Return numbers of what `load` read, for the record of the start; every rank calls it."""
        return {}

    def finish(self) -> None:
        """Wait for the checkpoint in progress, if `save` returns before it is complete; every rank calls it."""
        return

    def ended(self) -> list[Saved]:
        """Return the results of checkpoints since the last call."""

    def clear(self) -> None:
        """Remove what only a restart needs, after the last step; every rank calls it."""
        return

    def export(self, tokenizer_files: Sequence[Path]) -> None:
        """Write a LitGPT checkpoint directory; every rank calls it."""
        raise TypeError(f"{type(self).__name__} writes no export, so job.export must be refused")


class Trains(Protocol):
    """The model and optimizer of one rank, trained step by step."""

    pace: Pace
    facts: Mapping[str, str] = {}
    """Further fields of the record of the start, such as the kernels in use."""
    shows_collectives: bool = True
    """False if torch's C++ starts them, so that they cannot be counted."""

    def step(self, step: int, batch: Any) -> tuple[float, float | None, float]:
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

    def numbers(self) -> dict[Metric, float]:
        """Return further numbers of the record of a step; every rank calls it."""
        return {}

    def validate(self, step: int, recorder: Recorder, watchdog: Watchdog, *, last: bool = False) -> None:
        """Record the loss on held-out samples if it is due after a step; every rank calls it."""
        return


TrainerOf = Callable[[Run, torch.device, DataOf, Callable[[Metric], None]], Trains]
"""(run, device, data, begins) -> trainer; it calls `begins` with the metric of each part of start-up."""
