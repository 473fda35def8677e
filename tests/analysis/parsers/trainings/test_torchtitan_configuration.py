"""torchtitan's configurations: the model and its precision as far as they are stated reliably."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Record, Text
from analysis.parsers.detect import read_log
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "torchtitan configuration"
SAMPLE = SAMPLES / "torchtitan_configuration.txt"
MODEL = {
    a.LAYERS: 2, a.HIDDEN_SIZE: 256, a.VOCABULARY_SIZE: 2048, a.HEADS: 16, a.KV_HEADS: 16, a.INTERMEDIATE_SIZE: 768,
    a.GATED: 1, a.TIED_EMBEDDINGS: 0,
}  # fmt: skip


def changed(path: Path, old: str, new: str, *, times: int = -1) -> Record:
    """The first configuration with some of its text changed."""
    text = SAMPLE.read_text()
    assert old in text
    (path / "job.out").write_text(text.replace(old, new, times))
    return records(path / "job.out", NAME)[0]


def test_queries_may_share_keys_and_embeddings_may_be_tied(tmp_path: Path) -> None:
    shared = changed(tmp_path, '            "n_kv_heads": null', '            "n_kv_heads": 4')
    assert shared.values == MODEL | {a.KV_HEADS: 4}
    tied = changed(tmp_path, '"enable_weight_tying": false', '"enable_weight_tying": true')
    assert tied.values == MODEL | {a.TIED_EMBEDDINGS: 1}


@pytest.mark.parametrize(
    ("old", "new", "uncovered"),
    [
        ('"moe": null', '"moe": {', "moe"),
        ('          "moe": null', '          "delta_net": {', "delta_net"),
        ('      "vocab_size": 2048', '      "mtp_layers": [', "mtp_layers"),
        ('            "qk_norm": null', '            "wkv_a": {', "wkv_a"),
        ('            "n_heads": 16', '            "n_heads": 32', "layers of several kinds"),
    ],
)
def test_parts_that_the_formula_does_not_cover_are_texts(old: str, new: str, uncovered: str, tmp_path: Path) -> None:
    assert changed(tmp_path, old, new, times=1).texts[Text.uncovered] == uncovered


def test_a_shape_in_which_layers_differ_is_absent(tmp_path: Path) -> None:
    found = changed(tmp_path, '            "n_heads": 16', '            "n_heads": 32', times=1)
    assert not {a.HEADS, a.KV_HEADS} & found.values.keys()


def test_a_log_that_ends_within_the_model_gives_no_record(tmp_path: Path) -> None:
    text = SAMPLE.read_text()
    (tmp_path / "job.out").write_text(text[: text.index('"training"')])
    assert [record for _, found in read_log(tmp_path / "job.out") for record in found] == []


def test_lines_of_another_rank_in_between_are_not_mixed_up(tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines()
    mixed = [text for line in lines for text in (f"[rank0]:{line}", '[rank1]:      "dim": 512,')]
    (tmp_path / "job.out").write_text("\n".join(mixed))
    assert records(tmp_path / "job.out", NAME)[0].values == MODEL
