"""NeMo's configurations: the model and the run as far as they are stated reliably."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Text
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "NeMo configuration"


def changed(path: Path, old: str, new: str) -> Path:
    """NeMo 1's configuration with a line changed."""
    text = (SAMPLES / "nemo_configuration.txt").read_text()
    assert text.count(old) == 1
    (path / "job.out").write_text(text.replace(old, new))
    return path / "job.out"


def test_what_nemo_1_prints_of_its_experiment_is_its_model_its_layout_and_its_data() -> None:
    (found,) = records(SAMPLES / "nemo_configuration.txt", NAME, beside=("NeMo",))
    assert found.values == {
        a.LAYERS: 32, a.HIDDEN_SIZE: 4096, a.HEADS: 32, a.KV_HEADS: 32, a.INTERMEDIATE_SIZE: 11008, a.GATED: 1,
        a.TIED_EMBEDDINGS: 0, a.NODES: 2, a.RANKS_PER_NODE: 8, a.RANKS: 16, a.PLANNED_STEPS: 100,
        a.MICRO_BATCH_SIZE: 1, a.GLOBAL_BATCH_SIZE: 16, a.TENSOR_PARALLEL_SIZE: 2, a.PIPELINE_PARALLEL_SIZE: 1,
        a.SEQUENCE_LENGTH: 4096, a.SEED: 1234, a.FULL_SAMPLES: 1,
    }  # fmt: skip
    assert found.texts == {Text.precision: "bf16"}


def test_the_model_of_a_checkpoint_of_nemo_2_has_neither_precision_nor_layout() -> None:
    (found,) = records(SAMPLES / "nemo_model.yaml", NAME)
    assert found.values == {
        a.LAYERS: 2, a.HIDDEN_SIZE: 16, a.HEADS: 4, a.KV_HEADS: 2, a.INTERMEDIATE_SIZE: 32, a.GATED: 1,
        a.TIED_EMBEDDINGS: 0, a.SEQUENCE_LENGTH: 32,
    }  # fmt: skip
    assert found.texts == {}


def test_an_expression_is_no_number(tmp_path: Path) -> None:
    path = changed(tmp_path, "ffn_hidden_size: 11008", "ffn_hidden_size: ${multiply:4,${.hidden_size}}")
    (found,) = records(path, NAME, beside=("NeMo",))
    assert a.INTERMEDIATE_SIZE not in found.values


@pytest.mark.parametrize(
    ("old", "new", "text", "expected"),
    [
        ("fp8: false", "fp8: true", Text.precision, "fp8"),
        ("precision: bf16", "precision: '16'", Text.precision, "fp16"),
        ("seed: 1234", "peft:\n        peft_scheme: ptuning", Text.uncovered, "peft_scheme ptuning"),
        ("seed: 1234", "multi_latent_attention: true", Text.uncovered, "multi_latent_attention true"),
    ],
)
def test_settings_that_decide_about_the_formula_and_the_peak_are_texts(
    old: str, new: str, text: Text, expected: str, tmp_path: Path
) -> None:
    (found,) = records(changed(tmp_path, old, new), NAME, beside=("NeMo",))
    assert found.texts[text] == expected


def test_a_fine_tuning_prints_its_layout_and_adapters_but_not_the_model_that_it_loads(tmp_path: Path) -> None:
    text = (SAMPLES / "nemo_configuration.txt").read_text()
    head, tail = text.split("      num_layers: 32\n")[0], text.split("      seed: 1234\n")[1]
    adapters = "      peft:\n        peft_scheme: lora\n        lora_tuning:\n          adapter_dim: 16\n"
    (tmp_path / "job.out").write_text(f"{head}{adapters}      seed: 77\n{tail.replace('mmap', 'jsonl')}")
    (found,) = records(tmp_path / "job.out", NAME, beside=("NeMo",))
    assert found.values == {
        a.NODES: 2, a.RANKS_PER_NODE: 8, a.RANKS: 16, a.PLANNED_STEPS: 100, a.MICRO_BATCH_SIZE: 1,
        a.GLOBAL_BATCH_SIZE: 16, a.TENSOR_PARALLEL_SIZE: 2, a.PIPELINE_PARALLEL_SIZE: 1, a.SEQUENCE_LENGTH: 4096,
        a.SEED: 77, a.LORA_RANK: 16,
    }  # fmt: skip
