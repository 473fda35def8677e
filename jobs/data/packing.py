"""Packing: samples end to end in one row, and their distribution over the rows of all ranks."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from jobs.data.dataset import Dataset, Tokens
from jobs.data.micro_batches import MicroBatch, labels_in, padding


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
