"""Samples stored as preparation stores them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from jobs.data import Dataset, open_dataset
from jobs.data.account import account_of
from jobs.data.dataset import META, SAMPLE_DTYPE, SAMPLES, TOKENS, write_tokens


def stored(directory: Path, lengths: list[int], unlabelled: list[int] | None = None) -> Dataset:
    """A dataset whose samples have these lengths, and tokens that are never repeated."""
    directory.mkdir(exist_ok=True, parents=True)
    samples = np.zeros(len(lengths), dtype=SAMPLE_DTYPE)
    samples["length"] = lengths
    samples["start"] = np.cumsum(samples["length"] + 1) - samples["length"] - 1
    if unlabelled is not None:
        samples["unlabelled"] = unlabelled
    np.save(directory / SAMPLES, samples)
    write_tokens(directory / TOKENS, [np.arange(1, sum(lengths) + len(lengths) + 1)], np.uint32)
    account = account_of(np.array(lengths), row_length=max(lengths), read=len(lengths), held_out=0)
    meta = {"description": "Numbers in order.", "account": account, "tokenizer_files": [], "tokenizer_size": 10_000}
    (directory / META).write_text(json.dumps(meta))
    return open_dataset(directory)
