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
