"""The lines and the state file of the Trainer of transformers, in its several versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "Hugging Face Trainer"
STATE_NAME = "Hugging Face trainer_state.json"
VERSIONS = SAMPLES / "hf_trainer_versions.txt"


def test_the_log_and_the_state_of_a_run_have_the_same_numbers() -> None:
    log, state = records(SAMPLES / "hf_trainer.txt", NAME), records(SAMPLES / "trainer_state.json", STATE_NAME)
    for metric in (m.LOSS, m.GRADIENT_NORM, m.LEARNING_RATE):
        assert column(log, Kind.step, metric) == column(state, Kind.step, metric)
    assert column(state, Kind.step, m.STEP) == [2, 4, 6]
    assert column(log, Kind.step, m.LOSS) == [3.9069, 3.8959, 3.8972]
    assert texts(log, Text.benchmark) == texts(state, Text.benchmark) == ["easy", "hard"] * 2
    assert column(log, Kind.evaluation, m.EVALUATION_LOSS)[:4] == column(state, Kind.evaluation, m.EVALUATION_LOSS)
    assert column(log, Kind.setting, a.GLOBAL_BATCH_SIZE) == [8]
    assert column(log, Kind.summary, a.SAMPLES_PER_S) == [87.371, 87.371], "of the dictionary and of the block"
    assert column(state, Kind.summary, a.SAMPLES_PER_S) == [87.371]


def test_version_5_quotes_its_numbers_and_a_step_that_counts_tokens_is_not_the_end() -> None:
    log, state = records(SAMPLES / "hf_trainer_5.txt", NAME), records(SAMPLES / "trainer_state_5.json", STATE_NAME)
    assert [each.values for each in log if each.kind is Kind.step] == [
        {m.LOSS: 3.681, m.GRADIENT_NORM: 0.6404, m.LEARNING_RATE: 5e-05, a.EPOCH: 0.1818},
        {m.LOSS: 3.676, m.GRADIENT_NORM: 0.586, m.LEARNING_RATE: 2.5e-05, a.EPOCH: 0.3636},
    ]
    assert [each.kind for each in state] == [Kind.setting, Kind.step, Kind.step, Kind.evaluation, Kind.summary]
    assert column(state, Kind.step, m.STEP) == [1, 2]
    assert column(state, Kind.step, m.LOSS) == [3.680508613586426, 3.6757099628448486]
    for of_dictionary, of_block in zip(
        column(log, Kind.summary, a.SAMPLES_PER_S), column(state, Kind.summary, a.SAMPLES_PER_S) * 2, strict=True
    ):
        assert of_dictionary == pytest.approx(of_block, rel=1e-3)
    assert column(log, Kind.summary, a.TRAINING_TIME) == [0.1008, 0.1]


def test_version_5_prints_another_line_when_it_resumes() -> None:
    found = records(SAMPLES / "hf_trainer_5_resumed.txt", NAME)
    assert [each.values for each in found if each.kind is Kind.event] == [{m.STEP: 2}]
    assert column(found, Kind.step, m.LOSS) == [3.672, 3.679]
    assert [each.values for each in found if each.kind is Kind.summary] == [
        {a.EPOCH: 0.7273, a.TRAINING_TIME: 0.109},
        {a.EPOCH: 0.7273, a.TRAINING_TIME: 0.1, a.TRAINING_SAMPLES: 44},
    ]


def test_settings_are_one_record_though_every_rank_prints_them() -> None:
    (setting,) = (each for each in records(VERSIONS, NAME) if each.kind is Kind.setting)
    assert setting.values == {
        a.MICRO_BATCH_SIZE: 8, a.GLOBAL_BATCH_SIZE: 1024, a.ACCUMULATION: 2, a.PLANNED_STEPS: 1640
    }  # fmt: skip


def test_a_loss_that_is_not_a_number_is_marked_and_a_torn_step_is_not_read() -> None:
    steps = [each.values for each in records(VERSIONS, NAME) if each.kind is Kind.step]
    assert steps == [
        {m.LOSS: 3.25, m.LEARNING_RATE: 5e-5, a.EPOCH: 0.5},
        {a.LOSS_NOT_FINITE: 1, a.NORM_NOT_FINITE: 1, m.LEARNING_RATE: 1e-5, a.EPOCH: 1.5},
    ]


def test_evaluations_of_a_named_set_and_of_a_block_are_read() -> None:
    named = records(VERSIONS, NAME)
    assert [each.values for each in named if each.kind is Kind.evaluation] == [
        {a.EPOCH: 1.5, m.EVALUATION_LOSS: 2.5, m.EVALUATION_TIME: 12.5}
    ]
    assert texts(named, Text.benchmark) == ["code"]
    log = records(SAMPLES / "hf_trainer_5.txt", NAME)
    assert [each.values for each in log if each.kind is Kind.evaluation] == [
        {a.EPOCH: 0.3636, m.EVALUATION_LOSS: 3.675, a.EVALUATION_SCORE: 0.008333, m.EVALUATION_TIME: 0.0047},
        # Printed to hundredths of a second the time is none.
        {a.EPOCH: 0.3636, m.EVALUATION_LOSS: 3.6746, a.EVALUATION_SCORE: 0.0083, m.EVALUATION_SAMPLES: 8,
         m.EVALUATION_PERPLEXITY: 39.4343},
    ]  # fmt: skip


def test_rates_at_the_end_are_believed_only_of_a_training_that_began_at_its_first_step() -> None:
    assert [each.values for each in records(VERSIONS, NAME) if each.kind is Kind.summary] == [
        # From before 4.7, since there is no train_steps_per_second.
        {a.EPOCH: 2, a.TRAINING_TIME: 100, a.STEPS_PER_S: 16.4},
        # Nothing was left to do.
        {a.EPOCH: 2, a.TRAINING_TIME: 90},
        {a.EPOCH: 2, a.MEAN_LOSS: 2.8125, a.TRAINING_TIME: 86500.5, a.TRAINING_SAMPLES: 1280,
         a.SAMPLES_PER_S: 19.412, a.STEPS_PER_S: 0.019},
        # Resumed.
        {a.EPOCH: 2, a.TRAINING_TIME: 50},
    ]  # fmt: skip


def test_the_mean_loss_of_a_resumed_training_shows_that_its_rates_are_wrong() -> None:
    state = records(SAMPLES / "trainer_state_resumed.json", STATE_NAME)
    assert column(state, Kind.step, m.STEP) == [2, 4, 6, 8, 10]
    (end,) = (each.values for each in state if each.kind is Kind.summary)
    # Six of ten steps' losses by ten, and ten steps by the time of six.
    assert end == {m.STEP: 10, a.EPOCH: 1.25, a.TRAINING_TIME: 0.0818}


def test_each_node_prints_its_own_end_and_rank_0_a_block_of_it(tmp_path: Path) -> None:
    log = tmp_path / "slurm.out"
    ends = [f"{{'train_runtime': {time}, 'train_samples_per_second': 2.5, 'train_steps_per_second': 0.039, "
            "'train_loss': 6.5, 'epoch': 1.0}\n" for time in (400.5, 400.25)]  # fmt: skip
    rows = ("train_runtime = 0:06:40.25", "train_samples_per_second = 2.5", "train_steps_per_second = 0.039")
    log.write_text("".join([*ends, "***** train metrics *****\n", *(f"  {row}\n" for row in rows)]))
    found = records(log, NAME)
    assert column(found, Kind.summary, a.TRAINING_TIME) == [400.5, 400.25, 400.25]
    assert column(found, Kind.summary, a.SAMPLES_PER_S) == [2.5] * 3
