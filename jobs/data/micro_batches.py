"""Micro-batches: samples as padded rows, or packed end to end into one row."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from jobs.data.dataset import IGNORED, Dataset, Tokens

Array = TypeVar("Array")
Other = TypeVar("Other")


class MicroBatch(NamedTuple, Generic[Array]):
    """The input of one forward pass of a rank; every array is (rows, row length)."""

    inputs: Array
    targets: Array
    labels: int
    """The number of targets that contribute to the loss. Known here, a GPU need not be waited for to count them."""
    bounds: Array | None = None
    """Where the samples of a packed row begin, and the documents within them, then the row's length:
    (1, samples and documents + 1)."""

    def converted(self, convert: Callable[[Array], Other]) -> MicroBatch[Other]:
        """Return the micro-batch with converted arrays."""
        bounds = None if self.bounds is None else convert(self.bounds)
        return MicroBatch(convert(self.inputs), convert(self.targets), self.labels, bounds)


def side_by_side(dataset: Dataset, samples: npt.NDArray[np.intp], length: int) -> MicroBatch[Tokens]:
    """Return samples as rows of this length: inputs padded with 0, on which no label depends, targets with IGNORED."""
    inputs, targets = padding((len(samples), length))
    for row, sample in enumerate(samples.tolist()):
        used = int(dataset.lengths[sample])
        inputs[row, :used], targets[row, :used] = dataset.sample(sample)
    return MicroBatch(inputs, targets, labels_in(targets))


def end_to_end(dataset: Dataset, samples: npt.NDArray[np.intp], length: int, longest: int) -> MicroBatch[Tokens]:
    """Return samples in one row of this length, padded with unlabelled samples of at most `longest` tokens.

    Each document of a window of text counts as a sample of its own.
    """
    inputs, targets = padding((1, length))
    starts: list[int] = []
    end = 0
    for sample in samples.tolist():
        start, end = end, end + int(dataset.lengths[sample])
        starts += (start + begins for begins in (0, *dataset.further_documents(sample)))
        inputs[0, start:end], targets[0, start:end] = dataset.sample(sample)
    bounds = np.array([[*starts, *range(end, length, longest), length]], dtype=np.int64)
    return MicroBatch(inputs, targets, labels_in(targets), bounds)


def labels_in(targets: Tokens) -> int:
    """Return the number of targets that contribute to the loss."""
    return int(np.count_nonzero(targets != IGNORED))


def padding(shape: tuple[int, int]) -> tuple[Tokens, Tokens]:
    """Return inputs and targets of rows of padding."""
    return np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)


def dealt(lengths: npt.NDArray[np.int32], count: int) -> list[list[int]]:
    """Distribute samples with these lengths over `count` rows: the longest first, each to the row with least tokens.

    Return the indices of each row. The result depends on the arguments alone, so every rank knows all rows. With a mean
    of m samples per row, no row is longer than m of the longest sample: a row that could exceed it has m samples
    already, and then so have all others.
    """
    rows: list[list[int]] = [[] for _ in range(count)]
    shortest = [(0, row) for row in range(count)]
    for sample in np.argsort(-lengths, kind="stable").tolist():
        tokens, row = shortest[0]
        rows[row].append(sample)
        heapq.heapreplace(shortest, (tokens + int(lengths[sample]), row))
    return rows
