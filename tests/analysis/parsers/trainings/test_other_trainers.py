"""MaxText, Composer, OLMo, LLaMA-Factory and GPT-NeoX: steps, settings, and what their clocks leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Record, Text
from analysis.parsers.detect import read_log
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records


def settings_of(found: list[Record]) -> dict[str, float | str]:
    settings: dict[str, float | str] = {}
    for each in found:
        if each.kind is Kind.setting:
            settings |= {metric.name: value for metric, value in each.values.items()}
            settings |= {text.value: words for text, words in each.texts.items()}
    return settings


def test_the_second_step_of_maxtext_has_a_loss_and_no_time_because_it_is_only_dispatched() -> None:
    found = records(SAMPLES / "maxtext.txt", "MaxText")
    steps = [each.values for each in found if each.kind is Kind.step]
    assert [each.get(m.STEP_TIME) for each in steps] == pytest.approx([41.21, None, 2.0, 2.1, 2.11, 2.05])
    assert [each.get(m.TOKENS_PER_S_PER_RANK) for each in steps] == pytest.approx(
        [397.574, None, 8192, 7801.905, 7764.929, None]
    )
    assert [each[m.STEP] for each in steps] == [1, 2, 3, 4, 4, 5]
    assert steps[1][m.LOSS] == 11.87
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [11.42]


def test_maxtexts_configuration_states_ranks_batch_model_and_layout() -> None:
    assert settings_of(records(SAMPLES / "maxtext.txt", "MaxText")) == {
        a.RANKS.name: 16,
        a.TENSOR_PARALLEL_SIZE.name: 2,
        Text.precision.value: "bfloat16",
        a.GLOBAL_BATCH_SIZE.name: 64,
        a.ACCUMULATION.name: 1,
        a.SEQUENCE_LENGTH.name: 4096,
        Text.model.value: "llama3-8b",
        a.PLANNED_STEPS.name: 6,
        a.PARAMETERS.name: pytest.approx(8.03e9),
    }


def test_llama_factorys_steps_take_the_mean_since_the_line_before_and_its_clock_starts_again_after_a_resume() -> None:
    found = records(SAMPLES / "llama_factory.jsonl", "LLaMA-Factory")
    steps = [each.values for each in found if each.kind is Kind.step]
    # The third line follows an evaluation, whose time is in its mean; the fifth is of a day later.
    assert [each.get(m.STEP_TIME) for each in steps] == pytest.approx([7, 4, 23 / 5, (86400 + 20) / 5, None, 4])
    assert [each[m.STEP] for each in steps] == [5, 10, 15, 20, 16, 20]
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [1.7712]
    assert settings_of(found) == {a.PLANNED_STEPS.name: 40}


def test_a_trainer_log_of_one_line_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "trainer_log.jsonl"
    path.write_text('{"current_steps": 1, "total_steps": 9, "loss": 2.5, "elapsed_time": "0:00:05"}\n')
    found = {form.name: list(rows) for form, rows in read_log(path)}
    assert [each.values for each in found["LLaMA-Factory (one line)"] if each.kind is Kind.step] == [
        {m.STEP: 1, m.LOSS: 2.5}
    ]


def test_composers_blocks_are_steps_counted_over_epochs() -> None:
    found = records(SAMPLES / "composer.txt", "Composer")
    steps = [each.values for each in found if each.kind is Kind.step]
    assert [each[m.STEP] for each in steps][:2] == [1, 42]
    assert steps[1] == pytest.approx(
        {
            m.STEP: 42,
            m.LOSS: 10.4023,
            m.GRADIENT_NORM: 1.2501,
            m.TOKENS_PER_S: 131229.2864,
            a.SAMPLES_PER_S: 64.0768,
            m.TOKENS_PER_S_PER_RANK: 4100.9152,
            a.SAMPLES_PER_S_PER_RANK: 2.0024,
            a.MODEL_FLOPS_UTILIZATION: 0.4312,
            m.LEARNING_RATE: 0.0002,
        }
    )
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [10.1034]


def test_composers_ranks_and_batch_follow_from_its_rates_where_rounding_leaves_one_number() -> None:
    found = settings_of(records(SAMPLES / "composer.txt", "Composer"))
    assert found == {a.PLANNED_STEPS.name: 40, a.RANKS.name: 32, a.GLOBAL_BATCH_SIZE.name: 256}


def test_olmos_steps_have_the_time_of_the_step_itself() -> None:
    found = records(SAMPLES / "olmo.txt", "OLMo")
    steps = [each.values for each in found if each.kind is Kind.step]
    assert steps[1] == pytest.approx(
        {
            m.STEP: 2,
            m.LOSS: 10.92,
            m.STEP_TIME: 4.0,
            m.TOKENS_PER_S_PER_RANK: 16384,
            a.DATA_TIME: 0.0031,
            a.MODEL_FLOPS_UTILIZATION: 0.4621,
            a.SKIPPED_STEPS: 0,
        }
    )
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [10.81]
    assert settings_of(found) == {a.PLANNED_STEPS.name: 500}


def test_the_first_olmo_has_other_names_for_the_same() -> None:
    (step,) = [each for each in records(SAMPLES / "olmo_2024.txt", "OLMo") if each.kind is Kind.step]
    assert step.values == pytest.approx(
        {
            m.STEP: 20,
            m.LOSS: 3.412,
            m.STEP_TIME: 1 / 0.217,
            m.TOKENS_PER_S_PER_RANK: 9102,
            a.TOKENS_DONE: 83_886_080,
            m.GRADIENT_NORM: 0.8123,
            m.MEMORY_PEAK: 52431e6,
        }
    )


def test_gpt_neox_has_its_rate_its_batch_and_its_loss() -> None:
    steps = [each.values for each in records(SAMPLES / "gpt_neox.txt", "Megatron-LM", beside=("DeepSpeed",))]
    assert [each[m.LOSS] for each in steps] == [10.812, 10.207, 9.9]
    assert [each[a.SAMPLES_PER_S] for each in steps] == [48.78, 49.042, 3021.7]
    assert [each.get(a.GLOBAL_BATCH_SIZE) for each in steps] == [64, 64, None]
    assert steps[0][a.FLOPS_PER_S_PER_RANK] == pytest.approx(98.4e12)
