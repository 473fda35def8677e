"""Examples in front of prompts: drawn from the samples that are not held out, the same for every sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.data.examples import with_examples
from jobs.data.instruction_records import Record
from jobs.data.split import split_order
from jobs.errors import DataError
from jobs.schema import Source
from tests.support.tiny_data import data_config

RECORDS = [Record(f"record {i}", f"Question {i}?\n", f"answer {i}") for i in range(10)]


def prompts(shots: int, split: float = 4, seed: int = 3) -> list[str]:
    data = data_config(Path("cache"), Source.dolly, shots=shots, test_split=split, split_seed=seed)
    shown = with_examples(RECORDS, data)
    assert [(each.where, each.response) for each in shown] == [(each.where, each.response) for each in RECORDS]
    return [each.prompt for each in shown]


def test_every_prompt_follows_the_same_examples_none_of_them_held_out() -> None:
    data = data_config(Path("cache"), Source.dolly, test_split=4, split_seed=3)
    trained = split_order(data, 10)[:6].tolist()
    two = prompts(2)
    (begin,) = {prompt.removesuffix(record.prompt) for prompt, record in zip(two, RECORDS, strict=True)}
    shown = [i for i in range(10) if f"Question {i}?\nanswer {i}\n\n" in begin]
    assert len(shown) == 2
    assert set(shown) <= set(trained)
    assert sum(len(f"Question {i}?\nanswer {i}\n\n") for i in shown) == len(begin)
    assert prompts(2) == two
    assert two[0].startswith(prompts(1)[0].removesuffix(RECORDS[0].prompt)), "one more example keeps the first"
    assert prompts(2, seed=4) != two
    assert prompts(0) == [record.prompt for record in RECORDS]


def test_more_examples_than_samples_that_are_not_held_out_are_refused() -> None:
    with pytest.raises(DataError) as refused:
        prompts(3, split=8)
    assert str(refused.value) == (
        "data.shots=3 examples are drawn from the samples that are not held out, and these are 2 of 10. Set "
        "data.shots=2 or less, or hold out fewer."
    )
