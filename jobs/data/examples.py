"""Examples in front of prompts (few-shot prompting): the same ones for all samples of a data set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jobs.data.instruction_records import Record
from jobs.data.split import held_out_of, split_order
from jobs.errors import DataError
from jobs.schema import Data

BETWEEN = "\n\n"
"""Text after each example."""


def with_examples(records: list[Record], data: Data) -> list[Record]:
    """Return the records with data.shots training examples, prompt and response, before each prompt.

    The draw depends on data.split_seed alone, and the first examples of a larger number are those of a smaller one.
    Raise DataError if too few are not held out.
    """
    if not data.shots:
        return records
    trained = split_order(data, len(records))[: max(0, len(records) - held_out_of(data, len(records)))]
    if len(trained) < data.shots:
        raise DataError(
            f"data.shots={data.shots} examples are drawn from the samples that are not held out, and these are "
            f"{len(trained)} of {len(records)}. Set data.shots={len(trained)} or less, or hold out fewer."
        )
    drawn = [records[i] for i in np.random.default_rng(data.split_seed).permutation(trained)[: data.shots]]
    shown = "".join(f"{record.prompt}{record.response}{BETWEEN}" for record in drawn)
    return [replace(record, prompt=shown + record.prompt) for record in records]
