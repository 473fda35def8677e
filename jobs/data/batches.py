"""Batches: the samples of a rank in optimizer step n, as a function of n alone.

No state is kept between steps, so a resumed run requests the next n. Epoch e visits the samples, without those held
out at the end, in a permutation drawn from (seed, e); an incomplete last global batch is dropped. A global batch
contains the same samples for every dp and micro_batch_size:

    padded      rank r takes the r-th contiguous slice and splits it into micro-batches
    bucketed    the samples of a pool of global batches are sorted by length, split into global batches, and visited in
                an order drawn from the seed; ranks take micro-batches in turn, so that all have similar lengths
    packed      samples are distributed over the micro-batches of all ranks to balance their tokens; of windows of
                text, each document is a sample to attention
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jobs.data.dataset import Dataset, Tokens
from jobs.data.micro_batches import MicroBatch, side_by_side
from jobs.data.packing import dealt, end_to_end
from jobs.errors import DataError
from jobs.schema import Batching

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The size of the global batch of one optimizer step, in the units of the run."""

    samples: int
    """Samples: rows of tokens, or images."""
    tokens: int | None = None
    """Inputs, padding and virtual tokens excluded; None for images."""
    padded_tokens: int | None = None
    """Inputs, padding and virtual tokens included; None for images."""

    def rate(self, time_s: float) -> str:
        """Return the work of a second as text."""
        count, unit = (self.samples, "images") if self.tokens is None else (self.tokens, "tokens")
        return f"{count / time_s:,.0f} {unit}/s"


@dataclass(frozen=True, kw_only=True)
class StepBatch(Work):
    """The micro-batches of a rank in one optimizer step, and the size of the whole global batch."""

    micro_batches: list[MicroBatch[Tokens]]
    """Those of this rank, (micro_batch_size, padded length); packed (1, padded sum of the lengths)."""
    labels: int
    """Targets of the global batch that contribute to the loss."""
    tokens: int
    padded_tokens: int


class TokensOfSample(NamedTuple):
    """Tokens of a sample in training."""

    used: float
    """Mean, padding and virtual tokens excluded."""
    computed: float
    """Mean, padding and virtual tokens included."""
    most: float
    """Tokens of the largest micro-batch, padding and virtual ones included, divided by its samples."""


class Batches:
    """The batches of one data-parallel rank, with rows padded to a multiple of `row_multiple`.

    With `equal_rows`, the rows of all ranks' micro-batches have the length of the longest. Raise DataError if the
    data does not fill a global batch, or where a global batch could have no label.
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
        batching: Batching = Batching.padded,
        bucket_batches: int = 1,
        row_multiple: int = 1,
        equal_rows: bool = False,
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
        self._dp = dp
        self._seed = seed
        self._batching = batching
        self._bucket_batches = bucket_batches
        self._row_multiple = row_multiple
        self._equal_rows = equal_rows
        self._epoch: tuple[int, Indices] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Number of complete global batches in one pass over the data."""
        return self._samples // self._global_batch_size

    def step(self, n: int) -> StepBatch:
        """Return the batch of optimizer step n = 1, 2, ..."""
        chosen = self._global_batch(n)
        micro_batches = self._cut(chosen)
        row_lengths = self._row_lengths(micro_batches)
        first = self._dp_rank * self._micro_batches
        mine = slice(first, first + self._micro_batches)
        return StepBatch(
            micro_batches=[
                self._rows(samples, length)
                for samples, length in zip(micro_batches[mine], row_lengths[mine].tolist(), strict=True)
            ],
            labels=int(self._dataset.label_counts[chosen].sum()),
            samples=len(chosen),
            tokens=self._tokens(chosen),
            padded_tokens=self._padded_tokens(row_lengths),
        )

    def padding_share(self) -> float:
        """Return the share of padding in the inputs of the first epoch, of all ranks."""
        tokens = self.tokens_of_sample(self.steps_per_epoch)
        return 1 - tokens.used / tokens.computed

    def tokens_of_sample(self, most_steps: int) -> TokensOfSample:
        """Return the tokens of a sample in the first steps of the first epoch."""
        tokens = padded_tokens = samples = longest = 0
        for n in range(1, min(most_steps, self.steps_per_epoch) + 1):
            chosen = self._global_batch(n)
            row_lengths = self._row_lengths(self._cut(chosen))
            samples += len(chosen)
            tokens += self._tokens(chosen)
            padded_tokens += self._padded_tokens(row_lengths)
            longest = max(longest, int(row_lengths.max()))
        of_row = self._micro_batch_size if self._batching is Batching.packed else 1
        return TokensOfSample(tokens / samples, padded_tokens / samples, longest / of_row)

    def samples(self, n: int) -> list[int]:
        """Return the samples of this rank in optimizer step n, ordered by micro-batch."""
        first = self._dp_rank * self._micro_batches
        mine = self._cut(self._global_batch(n))[first : first + self._micro_batches]
        return [int(sample) for samples in mine for sample in samples]

    def _global_batch(self, n: int) -> Indices:
        """Return the samples of all ranks in optimizer step n."""
        assert n >= 1, f"steps count from 1, not {n}"
        epoch, index = divmod(n - 1, self.steps_per_epoch)
        chosen: Indices = self._order(epoch)[index]
        return chosen

    def _order(self, epoch: int) -> Indices:
        """Return the samples of an epoch, one row per global batch.

        The last result is cached, because computing it takes time linear in the data.
        """
        if self._epoch is None or self._epoch[0] != epoch:
            random = np.random.default_rng((self._seed, epoch))
            whole = self.steps_per_epoch * self._global_batch_size
            order = random.permutation(self._samples)[:whole].reshape(-1, self._global_batch_size)
            if self._batching is Batching.bucketed:
                order = bucketed(order, self._dataset.lengths, self._bucket_batches, random)
            self._epoch = (epoch, order)
        return self._epoch[1]

    def _cut(self, chosen: Indices) -> list[Indices]:
        """Split a global batch into the micro-batches of all ranks, in rank order."""
        if self._batching is Batching.packed:
            count = self._dp * self._micro_batches
            return [chosen[samples] for samples in dealt(self._dataset.lengths[chosen], count)]
        micro_batches = chosen.reshape(-1, self._micro_batch_size)
        if self._batching is Batching.bucketed:
            in_turn = micro_batches.reshape(self._micro_batches, self._dp, -1)
            micro_batches = in_turn.swapaxes(0, 1).reshape(-1, self._micro_batch_size)
        return list(micro_batches)

    def _row_lengths(self, micro_batches: list[Indices]) -> npt.NDArray[np.int64]:
        """Return the row length of each micro-batch."""
        used = np.sum if self._batching is Batching.packed else np.max
        needed = np.array([used(self._dataset.lengths[samples]) for samples in micro_batches], dtype=np.int64)
        if self._equal_rows:
            needed[:] = needed.max()
        return (needed + self._row_multiple - 1) // self._row_multiple * self._row_multiple

    def _tokens(self, chosen: Indices) -> int:
        """Return the tokens of some samples."""
        inputs = int(self._dataset.lengths[chosen].sum(dtype=np.int64))
        return inputs - len(chosen) * self._dataset.virtual_tokens

    def _padded_tokens(self, row_lengths: npt.NDArray[np.int64]) -> int:
        """Return the inputs, padding included, of micro-batches whose rows have these lengths."""
        return int(row_lengths.sum()) * (1 if self._batching is Batching.packed else self._micro_batch_size)

    def _rows(self, samples: Indices, length: int) -> MicroBatch[Tokens]:
        """Return samples as rows of this length."""
        if self._batching is Batching.packed:
            return end_to_end(self._dataset, samples, length, self._row_multiple)
        return side_by_side(self._dataset, samples, length)


def bucketed(order: Indices, lengths: npt.NDArray[np.int32], pool: int, random: np.random.Generator) -> Indices:
    """Regroup each pool of global batches (n, GBS) by sample length, in random order within the pool."""
    pools = []
    for start in range(0, len(order), pool):
        samples = order[start : start + pool]
        by_length = samples.ravel()[np.argsort(lengths[samples.ravel()], kind="stable")]
        pools.append(random.permutation(by_length.reshape(samples.shape)))
    return np.concatenate(pools)


def held_out_batches(
    dataset: Dataset, held_out: int, size: int, *, packed: bool = False
) -> Iterator[MicroBatch[Tokens]]:
    """Yield the held-out samples in order, in micro-batches of `size`; if packed, in one row each."""
    chosen = np.arange(len(dataset) - held_out, len(dataset))
    for start in range(0, held_out, size):
        samples = chosen[start : start + size]
        if packed:
            length = int(dataset.lengths[samples].sum())
            yield end_to_end(dataset, samples, length, length)
        else:
            yield side_by_side(dataset, samples, int(dataset.lengths[samples].max()))


def refuse_small_data(dataset: Dataset, global_batch_size: int, held_out: int) -> None:
    """Raise DataError if the data does not fill one global batch."""
    samples = len(dataset) - held_out
    if global_batch_size > samples:
        without = f" {held_out} of them are held out (data.held_out_samples, data.test_split)." if held_out else ""
        smaller = (
            f"scaling.global_batch_size={samples} or less (scaling.sequences_per_rank when mode=weak), or "
            if samples > 0
            else "a smaller data.held_out_samples or data.test_split, or "
        )
        raise DataError(
            f"A global batch takes {global_batch_size} samples and the data has {len(dataset)}: {dataset.description}"
            f"{without} Set {smaller}give more data (data.path, data.max_samples, a smaller job.sequence_length)."
        )


def refuse_unlabelled_batches(dataset: Dataset, global_batch_size: int, held_out: int) -> None:
    """Raise DataError if a global batch or the held-out samples could have no label: the mean loss is 0 / 0."""
    if held_out and not dataset.label_counts[-held_out:].any():
        raise DataError(
            f"None of the {held_out} held-out samples has a label, because their prompt fills job.sequence_length. "
            "Set a larger data.held_out_samples, data.test_split or job.sequence_length, or data.mask_prompt=false."
        )
    unlabelled = int(np.count_nonzero(dataset.label_counts[: len(dataset) - held_out] == 0))
    if unlabelled >= global_batch_size:
        raise DataError(
            f"{unlabelled} of {len(dataset) - held_out} samples have no label, because their prompt fills "
            f"job.sequence_length and data.mask_prompt=true excludes it from the loss; a global batch of "
            f"{global_batch_size} could have no label. "
            "Set a larger job.sequence_length, data.too_long=refuse to list them, or data.mask_prompt=false."
        )
