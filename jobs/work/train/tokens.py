"""The tokenized samples of a run as the data of the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

from jobs.data import open_dataset
from jobs.data.batches import StepBatch
from jobs.engines.trainer import Data
from jobs.ranks import Rank
from jobs.rundir import RunDir
from jobs.runtime.prefetch import pinned, prefetch
from jobs.runtime.startup import Startup
from jobs.runtime.steps import batches_of, samples, steps_of
from jobs.schema import Run


class Tokens(Data):
    """The batches of one rank; the first rank checks that the samples have not changed since the submission."""

    def __init__(self, run: Run, rank: Rank, directory: RunDir, startup: Startup) -> None:
        startup.reads_data(samples(run, directory))
        dataset = open_dataset(samples(run, directory, check=rank.is_first))
        self.depth = run.engine.prefetch_batches
        self.of_rank = batches_of(run, dataset, rank.rank)
        self.steps = steps_of(run.job, self.of_rank)
        self.dataset, self.tokenizer_files = dataset, dataset.tokenizer_files

    def description(self) -> str:
        """Return the source of the samples, their number and how they were tokenized."""
        return self.dataset.description

    def batches(self, done: int, device: torch.device) -> AbstractContextManager[Iterator[StepBatch]]:
        """Return the batches of the steps after `done`, in order; prefetch engine.prefetch_batches of them."""
        make, page_locked = self.of_rank.step, self.depth > 0 and device.type == "cuda"
        return prefetch(
            (lambda step: pinned(make(step))) if page_locked else make, range(done + 1, self.steps + 1), self.depth
        )
