"""Batches: which samples a rank computes on in optimizer step n, as a function of n alone.

Nothing is remembered from step to step, so resuming is asking for the next n. Epoch e visits the samples in a
permutation drawn from (seed, e); an incomplete last global batch is left out. A global batch is the same samples
whatever dp and micro_batch_size are: rank r takes its r-th contiguous slice and cuts that into micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.data.dataset import IGNORED, Dataset, Tokens
from jobs.errors import DataError


@dataclass(frozen=True)
class StepBatch:
    """What a rank computes on in one optimizer step, and the size of the whole global batch."""

    micro_batches: list[tuple[Tokens, Tokens]]
    """Inputs and targets of this rank, each (micro_batch_size, longest sample in the micro-batch or as padded)."""
    labels: int
    """Targets of the global batch that take a loss."""
    tokens: int
    """Inputs of the global batch, padding not counted."""
    padded_tokens: int
    """Inputs of the global batch as computed on, padding counted."""


class Batches:
    """The batches of one data-parallel rank, padded to `pad_to` or else to the next multiple of `pad_multiple`.

    Raises DataError when the data does not fill a global batch, or when one could be without any label.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        dp: int,
        dp_rank: int,
        seed: int,
        pad_multiple: int = 1,
        pad_to: int | None = None,
    ) -> None:
        assert global_batch_size % (dp * micro_batch_size) == 0, (
            f"global_batch_size={global_batch_size} is not a multiple of dp={dp} x micro_batch_size={micro_batch_size}"
        )
        assert 0 <= dp_rank < dp, f"dp_rank={dp_rank} of dp={dp}"
        refuse_small_data(dataset, global_batch_size)
        refuse_unlabelled_batches(dataset, global_batch_size)
        self._dataset = dataset
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._micro_batches = global_batch_size // (dp * micro_batch_size)
        self._dp_rank = dp_rank
        self._seed = seed
        self._pad_multiple = pad_multiple
        self._pad_to = pad_to
        self._epoch: tuple[int, npt.NDArray[np.intp]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches of one pass over the data."""
        return len(self._dataset) // self._global_batch_size

    def step(self, n: int) -> StepBatch:
        """The batch of optimizer step n = 1, 2, ..."""
        assert n >= 1, f"steps count from 1, not {n}"
        epoch, index = divmod(n - 1, self.steps_per_epoch)
        start = index * self._global_batch_size
        chosen = self._order(epoch)[start : start + self._global_batch_size]
        micro_batches = chosen.reshape(-1, self._micro_batch_size)  # of all ranks, in rank order
        lengths = self._dataset.lengths[micro_batches]
        first = self._dp_rank * self._micro_batches
        return StepBatch(
            micro_batches=[self._padded(samples) for samples in micro_batches[first : first + self._micro_batches]],
            labels=int(self._dataset.label_counts[chosen].sum()),
            tokens=int(lengths.sum(dtype=np.int64)),
            padded_tokens=int(self._padded_lengths(lengths.max(axis=1)).sum(dtype=np.int64)) * self._micro_batch_size,
        )

    def _order(self, epoch: int) -> npt.NDArray[np.intp]:
        """The samples in the order of an epoch; the last one asked for is kept, it costs time linear in the data."""
        if self._epoch is None or self._epoch[0] != epoch:
            random = np.random.default_rng((self._seed, epoch))
            self._epoch = (epoch, random.permutation(len(self._dataset)))
        return self._epoch[1]

    def _padded_lengths(self, longest: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What sequences are padded to in micro-batches whose longest samples these are."""
        if self._pad_to is not None:
            return np.full_like(longest, self._pad_to)
        return (longest + self._pad_multiple - 1) // self._pad_multiple * self._pad_multiple

    def _padded(self, samples: npt.NDArray[np.intp]) -> tuple[Tokens, Tokens]:
        """Samples side by side; inputs padded with 0, which no label looks at, and targets with IGNORED."""
        shape = (len(samples), int(self._padded_lengths(self._dataset.lengths[samples].max())))
        inputs, targets = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
        for row, sample in enumerate(samples.tolist()):
            length = int(self._dataset.lengths[sample])
            inputs[row, :length], targets[row, :length] = self._dataset.sample(sample)
        return inputs, targets


def refuse_small_data(dataset: Dataset, global_batch_size: int) -> None:
    """Raise DataError when the data does not fill one global batch."""
    if global_batch_size > len(dataset):
        raise DataError(
            f"A global batch takes {global_batch_size} samples and the data has {len(dataset)}: {dataset.description} "
            f"Type scaling.global_batch_size={len(dataset)} or less (scaling.sequences_per_rank when mode=weak), or "
            "give more data (data.path, data.max_samples, a smaller job.sequence_length)."
        )


def refuse_unlabelled_batches(dataset: Dataset, global_batch_size: int) -> None:
    """Raise DataError when a global batch could be without any label: its mean loss would be 0 / 0."""
    unlabelled = int(np.count_nonzero(dataset.label_counts == 0))
    if unlabelled >= global_batch_size:
        raise DataError(
            f"{unlabelled} of {len(dataset)} samples have no label, because their prompt fills job.sequence_length and "
            f"data.mask_prompt=true takes no loss on it; a global batch of {global_batch_size} could be without any. "
            "Type a larger job.sequence_length, data.too_long=refuse to see them, or data.mask_prompt=false."
        )
