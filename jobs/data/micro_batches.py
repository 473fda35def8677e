"""Micro-batches, and samples as padded rows; jobs.data.packing has those without padding."""

from __future__ import annotations

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


def labels_in(targets: Tokens) -> int:
    """Return the number of targets that contribute to the loss."""
    return int(np.count_nonzero(targets != IGNORED))


def padding(shape: tuple[int, int]) -> tuple[Tokens, Tokens]:
    """Return inputs and targets of rows of padding."""
    return np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
