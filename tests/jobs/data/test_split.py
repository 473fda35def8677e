"""Samples held out by a draw, and the account of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from litgpt.prompts import Alpaca

from jobs.data import Dataset, open_dataset, prepare
from jobs.data.split import held_out_of, split_order
from jobs.schema import Data, Source, TooLong
from tests.support.tiny_data import data_config, write_json

# A byte-level BPE of 257 tokens has no merges: a token is a byte, and one more ends the response.
BYTES = {"bpe_vocab_size": 257}


def data(**values: Any) -> Data:
    return data_config(Path("cache"), Source.docstrings, **values)


def prepared(tmp_path: Path, outputs: list[int], sequence_length: int = 4096, **values: Any) -> Dataset:
    """Alpaca records whose outputs have these numbers of bytes."""
    rows = [{"instruction": "short", "output": "o" * n} for n in outputs]
    path = write_json(tmp_path / "alpaca.json", rows)
    config = data_config(tmp_path / "cache", Source.alpaca, path=str(path), **BYTES, **values)
    return open_dataset(prepare(config, sequence_length=sequence_length, vocab_size=512, seed=1))


@pytest.mark.parametrize(
    ("split", "samples", "held_out"),
    [(0.2, 1000, 200), (0.2, 999, 200), (0.7, 10, 7), (0.1, 30, 3), (1.0, 50, 1), (25.0, 50, 25), (None, 50, 0)],
)
def test_a_share_is_rounded_up_in_decimal_and_a_count_is_a_count(
    split: float | None, samples: int, held_out: int
) -> None:
    assert held_out_of(data(test_split=split), samples) == held_out


def test_a_draw_depends_on_its_seed_and_keeps_the_order_of_both_parts() -> None:
    orders = {seed: split_order(data(test_split=0.3, split_seed=seed), 40).tolist() for seed in (1, 2)}
    assert orders[1] != orders[2]
    for seed, order in orders.items():
        assert sorted(order) == list(range(40))
        trained, held_out = order[:28], order[28:]
        assert (trained, held_out) == (sorted(trained), sorted(held_out))
        assert held_out != list(range(28, 40))
        assert split_order(data(test_split=0.3, split_seed=seed), 40).tolist() == order
    assert split_order(data(held_out_samples=5), 40).tolist() == list(range(40))


def test_the_drawn_samples_are_stored_last_and_are_those_of_the_file(tmp_path: Path) -> None:
    outputs = list(range(20, 40))
    whole = prepared(tmp_path, outputs)
    split = prepared(tmp_path, outputs, test_split=5)
    order = split_order(data(test_split=5), 20)
    assert (whole.held_out, split.held_out) == (0, 5)
    for position, original in enumerate(order.tolist()):
        assert np.array_equal(split.sample(position)[0], whole.sample(original)[0])


def test_the_account_counts_samples_their_tokens_and_padding(tmp_path: Path) -> None:
    outputs = [3, 10, 50, 200, 7]
    prompt = len(Alpaca().apply(prompt="short"))
    sizes = np.array([prompt + n + 1 for n in outputs[:4]])
    # The third sample fits exactly.
    limit = int(sizes[2])
    found = prepared(tmp_path, outputs, limit, max_samples=4, too_long=TooLong.truncate, test_split=0.5).account
    assert found == {
        "data_samples_read": 5,
        "data_samples_used": 4,
        "data_samples_held_out": 2,
        "data_samples_cut": 1,
        "data_tokens_mean": sizes.mean(),
        "data_tokens_p50": (sizes[1] + sizes[2]) / 2,
        # Linear between the two largest: the 95th percentile of 4 values lies at position 0.95 x 3 = 2.85.
        "data_tokens_p95": pytest.approx(sizes[2] + 0.85 * (sizes[3] - sizes[2])),
        "data_tokens_max": sizes[3],
        "data_padding_share": pytest.approx(1 - (sizes[:3].sum() + limit) / (4 * limit)),
    }


def test_windows_of_text_have_an_account_without_padding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("o" * 100)
    config = data_config(tmp_path / "cache", Source.text, path=str(tmp_path / "a.txt"), **BYTES, test_split=0.25)
    dataset = open_dataset(prepare(config, sequence_length=10, vocab_size=512, seed=1))
    account = dataset.account
    assert (account["data_samples_used"], dataset.held_out) == (10, 3)
    assert (account["data_tokens_mean"], account["data_tokens_max"], account["data_padding_share"]) == (10, 10, 0)
