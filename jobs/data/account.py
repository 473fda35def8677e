"""The account of a data set, by the names of jobs.metrics: samples read, used, held out and cut, tokens, padding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jobs import metrics as m

Account = dict[str, float]


def account_of(sizes: npt.NDArray[np.int64], *, row_length: int, read: int, held_out: int) -> Account:
    """Return the account of samples that have these numbers of tokens before they are cut at `row_length`."""
    p50, p95 = np.percentile(sizes, (50, 95))
    values = {
        m.DATA_SAMPLES_READ: read,
        m.DATA_SAMPLES_USED: len(sizes),
        m.DATA_SAMPLES_HELD_OUT: held_out,
        m.DATA_SAMPLES_CUT: int(np.count_nonzero(sizes > row_length)),
        m.DATA_TOKENS_MEAN: float(sizes.mean()),
        m.DATA_TOKENS_P50: float(p50),
        m.DATA_TOKENS_P95: float(p95),
        m.DATA_TOKENS_MAX: int(sizes.max()),
        m.DATA_PADDING_SHARE: 1 - float(np.minimum(sizes, row_length).mean()) / row_length,
    }
    return {metric.name: value for metric, value in values.items()}
