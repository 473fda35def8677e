"""The samples held out of training: the last of the data, or a share drawn at random.

Those held out are the last samples on disk, so whoever reads a data set needs only their number.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from jobs.schema import Data


def held_out_of(data: Data, samples: int) -> int:
    """Return the number of samples held out; a share is rounded up, as scikit-learn's train_test_split does."""
    if data.test_split is None:
        return data.held_out_samples
    # In decimal: 0.7 of 10 samples are 7, and 0.7 * 10 is above 7.
    share = Fraction(str(data.test_split))
    return math.ceil(share * samples if share < 1 else share)


def split_order(data: Data, samples: int) -> npt.NDArray[np.intp]:
    """Return the samples in the order in which they are stored: those trained on, then those held out.

    Both parts keep the order of the files. The draw depends on the number of samples and on data.split_seed alone.
    """
    order = np.arange(samples)
    if data.test_split is None:
        return order
    drawn = np.random.default_rng(data.split_seed).permutation(samples)[: held_out_of(data, samples)]
    held_out = np.isin(order, drawn)
    return np.concatenate([order[~held_out], order[held_out]])
