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
    """What a rank computes on in one forward pass; every array is (rows, row length)."""

    inputs: Array
    targets: Array
    positions: Array | None = None
    """Of a packed row, the position of each token in its sample: a sample begins wherever it is 0."""

    def converted(self, convert: Callable[[Array], Other]) -> MicroBatch[Other]:
        """The same of other arrays."""
        positions = None if self.positions is None else convert(self.positions)
        return MicroBatch(convert(self.inputs), convert(self.targets), positions)


def side_by_side(dataset: Dataset, samples: npt.NDArray[np.intp], length: int) -> MicroBatch[Tokens]:
    """Samples as rows of this length; inputs padded with 0, which no label looks at, and targets with IGNORED."""
    inputs, targets = padding((len(samples), length))
    for row, sample in enumerate(samples.tolist()):
        used = int(dataset.lengths[sample])
        inputs[row, :used], targets[row, :used] = dataset.sample(sample)
    return MicroBatch(inputs, targets)


def end_to_end(dataset: Dataset, samples: npt.NDArray[np.intp], length: int, longest: int) -> MicroBatch[Tokens]:
    """Samples in one row of this length, and padding behind them as unlabelled samples of at most `longest`."""
    inputs, targets = padding((1, length))
    positions = np.empty((1, length), dtype=np.int64)
    end = 0
    for sample in samples.tolist():
        start, end = end, end + int(dataset.lengths[sample])
        inputs[0, start:end], targets[0, start:end] = dataset.sample(sample)
        positions[0, start:end] = np.arange(end - start)
    positions[0, end:] = np.arange(length - end) % longest
    return MicroBatch(inputs, targets, positions)


def padding(shape: tuple[int, int]) -> tuple[Tokens, Tokens]:
    """Inputs and targets of rows that are padding throughout."""
    return np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)


def dealt(lengths: npt.NDArray[np.int32], count: int) -> list[list[int]]:
    """Indices of samples with these lengths, dealt to `count` rows: the longest first, to the row with least tokens.

    A function of its arguments alone, so every rank knows the rows of all. With m samples a row in the mean, no row is
    longer than m of the longest: a row that could become so has m samples already, and so have all others.
    """
    rows: list[list[int]] = [[] for _ in range(count)]
    shortest = [(0, row) for row in range(count)]
    for sample in np.argsort(-lengths, kind="stable").tolist():
        tokens, row = shortest[0]
        rows[row].append(sample)
        heapq.heapreplace(shortest, (tokens + int(lengths[sample]), row))
    return rows
