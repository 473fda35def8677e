"""Virtual tokens in front of every sample: their numbers are negative, and they have no label.

They are positions like others from here on: of rows that are padded, packed, bucketed by length, or split over ranks.
"""

from __future__ import annotations

import numpy as np

from jobs.data.dataset import IGNORED, Dataset, Tokens


class WithVirtualTokens(Dataset):
    """The samples of a dataset, each behind the virtual tokens -n .. -1."""

    def __init__(self, dataset: Dataset, count: int) -> None:
        lengths = (dataset.lengths + count).astype(dataset.lengths.dtype)
        super().__init__(dataset.directory, dataset.meta, lengths, dataset.label_counts)
        self.virtual_tokens = count
        self._dataset = dataset

    def sample(self, index: int) -> tuple[Tokens, Tokens]:
        """Return the dataset's inputs and targets behind the virtual tokens."""
        inputs, targets = self._dataset.sample(index)
        virtual = np.arange(-self.virtual_tokens, 0, dtype=np.int64)
        return np.concatenate([virtual, inputs]), np.concatenate([np.full_like(virtual, IGNORED), targets])


def with_virtual_tokens(dataset: Dataset, count: int) -> Dataset:
    """Return a dataset whose samples are behind this number of virtual tokens."""
    return WithVirtualTokens(dataset, count) if count else dataset
