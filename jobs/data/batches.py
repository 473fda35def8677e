"""Batches: which samples a rank computes on in optimizer step n, as a function of n alone.

Nothing is remembered from step to step, so resuming is asking for the next n. Epoch e visits the samples, less those
held out at the end, in a permutation drawn from (seed, e); an incomplete last global batch is left out. A global
batch is the same samples whatever dp and micro_batch_size are: rank r takes its r-th contiguous slice and cuts that
into micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        held_out: int = 0,
    ) -> None:
        assert global_batch_size % (dp * micro_batch_size) == 0, (
            f"global_batch_size={global_batch_size} is not a multiple of dp={dp} x micro_batch_size={micro_batch_size}"
        )
        assert 0 <= dp_rank < dp, f"dp_rank={dp_rank} of dp={dp}"
        refuse_small_data(dataset, global_batch_size, held_out)
        refuse_unlabelled_batches(dataset, global_batch_size, held_out)
        self._dataset = dataset
        self._samples = len(dataset) - held_out
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
        return self._samples // self._global_batch_size

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
            micro_batches=[
                side_by_side(self._dataset, samples, int(self._padded_lengths(lengths[row].max())))
                for row, samples in enumerate(micro_batches[first : first + self._micro_batches], start=first)
            ],
            labels=int(self._dataset.label_counts[chosen].sum()),
            tokens=int(lengths.sum(dtype=np.int64)),
            padded_tokens=int(self._padded_lengths(lengths.max(axis=1)).sum(dtype=np.int64)) * self._micro_batch_size,
        )

    def _order(self, epoch: int) -> npt.NDArray[np.intp]:
        """The samples in the order of an epoch; the last one asked for is kept, it costs time linear in the data."""
        if self._epoch is None or self._epoch[0] != epoch:
            random = np.random.default_rng((self._seed, epoch))
            self._epoch = (epoch, random.permutation(self._samples))
        return self._epoch[1]

    def _padded_lengths(self, longest: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What sequences are padded to in micro-batches whose longest samples these are."""
        if self._pad_to is not None:
            return np.full_like(longest, self._pad_to)
        return (longest + self._pad_multiple - 1) // self._pad_multiple * self._pad_multiple


def side_by_side(dataset: Dataset, samples: npt.NDArray[np.intp], length: int) -> tuple[Tokens, Tokens]:
    """Samples as rows of this length; inputs padded with 0, which no label looks at, and targets with IGNORED."""
    shape = (len(samples), length)
    inputs, targets = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
    for row, sample in enumerate(samples.tolist()):
        used = int(dataset.lengths[sample])
        inputs[row, :used], targets[row, :used] = dataset.sample(sample)
    return inputs, targets


def held_out_batches(dataset: Dataset, held_out: int, size: int) -> Iterator[tuple[Tokens, Tokens]]:
    """Inputs and targets of the samples that no step trains on, in their order, so many at once."""
    chosen = np.arange(len(dataset) - held_out, len(dataset))
    for start in range(0, held_out, size):
        samples = chosen[start : start + size]
        yield side_by_side(dataset, samples, int(dataset.lengths[samples].max()))


def refuse_small_data(dataset: Dataset, global_batch_size: int, held_out: int) -> None:
    """Raise DataError when the data does not fill one global batch."""
    samples = len(dataset) - held_out
    if global_batch_size > samples:
        without = f" {held_out} of them are held out (data.held_out_samples)." if held_out else ""
        smaller = (
            f"scaling.global_batch_size={samples} or less (scaling.sequences_per_rank when mode=weak), or "
            if samples > 0
            else "a smaller data.held_out_samples, or "
        )
        raise DataError(
            f"A global batch takes {global_batch_size} samples and the data has {len(dataset)}: {dataset.description}"
            f"{without} Type {smaller}give more data (data.path, data.max_samples, a smaller job.sequence_length)."
        )


def refuse_unlabelled_batches(dataset: Dataset, global_batch_size: int, held_out: int) -> None:
    """Raise DataError when a global batch, or what is held out, could be without any label: its mean loss is 0 / 0."""
    if held_out and not dataset.label_counts[-held_out:].any():
        raise DataError(
            f"None of the {held_out} samples held out has a label, because their prompt fills job.sequence_length. "
            "Type a larger data.held_out_samples or job.sequence_length, or data.mask_prompt=false."
        )
    unlabelled = int(np.count_nonzero(dataset.label_counts[: len(dataset) - held_out] == 0))
    if unlabelled >= global_batch_size:
        raise DataError(
            f"{unlabelled} of {len(dataset) - held_out} samples have no label, because their prompt fills "
            f"job.sequence_length and data.mask_prompt=true takes no loss on it; a global batch of "
            f"{global_batch_size} could be without any. "
            "Type a larger job.sequence_length, data.too_long=refuse to see them, or data.mask_prompt=false."
        )
