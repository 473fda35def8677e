"""LitGPT's lines of three generations: which time is that of a step and which that of a micro-batch."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, Text
from analysis.parsers.trainings import litgpt
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records

NAME = "LitGPT"


def test_a_run_gives_its_settings_micro_batches_evaluations_and_end() -> None:
    found = records(SAMPLES / "litgpt.txt", NAME)
    setting, first, *_, last_step, _, time, speed, final = found
    assert (setting.kind, setting.texts) == (Kind.setting, {Text.precision: "32-true"})
    assert setting.values == {
        a.RANKS_PER_NODE: 1, a.NODES: 1, a.GLOBAL_BATCH_SIZE: 4, a.MICRO_BATCH_SIZE: 2, a.PLANNED_STEPS: 4,
        a.SEQUENCE_LENGTH: 48, a.TIED_EMBEDDINGS: 0,
    }  # fmt: skip
    assert first.values == pytest.approx({
        a.EPOCH: 1, a.MICRO_BATCHES_DONE: 1, m.STEP: 0, m.LOSS: 6.028, a.MICRO_BATCH_TIME: 0.01823
    })  # fmt: skip
    assert last_step.values == pytest.approx({
        a.EPOCH: 1, a.MICRO_BATCHES_DONE: 8, m.STEP: 4, m.LOSS: 5.97, m.EVALUATION_LOSS: 5.995,
        a.MICRO_BATCH_TIME: 0.00369,
    })  # fmt: skip
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [5.995, 5.9621, 5.962]
    assert (time.values, speed.values) == ({a.TRAINING_TIME: 0.16}, {m.TOKENS_PER_S: 4796.89})
    assert final.values == {m.EVALUATION_LOSS: 5.962, m.EVALUATION_PERPLEXITY: 388.442}
    assert column(found, Kind.step, m.STEP_TIME) == [], "two micro-batches make a step"


def test_lines_of_2023_and_of_march_2024_are_read() -> None:
    found = records(SAMPLES / "litgpt_older.txt", NAME)
    steps = [each.values for each in found if each.kind is Kind.step]
    assert [values[a.MICRO_BATCHES_DONE] for values in steps] == [0, 1, 2, 3, 4]
    assert steps[0] == pytest.approx({
        m.STEP: 1, a.MICRO_BATCHES_DONE: 0, m.LOSS: 4.125, a.MICRO_BATCH_TIME: 0.3105
    })  # fmt: skip
    assert m.LOSS not in steps[2]
    assert m.EVALUATION_LOSS not in steps[3]
    assert steps[4] == pytest.approx({
        a.EPOCH: 2, a.MICRO_BATCHES_DONE: 4, m.STEP: 4, m.LOSS: 1.585, m.EVALUATION_LOSS: 1.5, m.STEP_TIME: 0.099
    })  # fmt: skip
    (evaluation,) = (each.values for each in found if each.kind is Kind.evaluation)
    assert evaluation == pytest.approx({
        a.MICRO_BATCHES_DONE: 2, m.EVALUATION_LOSS: 3.9375, m.EVALUATION_TIME: 0.8405
    })  # fmt: skip
    assert column(found, Kind.summary, a.TRAINING_TIME) == [2.51]
    assert column(found, Kind.summary, m.MEMORY_PEAK) == [1.5e9]


def test_pretraining_prints_the_time_that_remains_and_a_table() -> None:
    printed = (
        "Epoch 1 | iter 2 step 2 | loss train: 9.500, val: n/a | iter time: 250.00 ms (step) remaining time: 0:01:00",
        "| - Training Time : 62.50 s",
        "| - Tok/sec       : 4096.00 tok/s",
        "| - Memory Used   : 1.50 GB",
    )
    found = list(litgpt.parse(Line(number, text) for number, text in enumerate(printed, 1)))
    assert [each.values for each in found] == [
        {a.EPOCH: 1, a.MICRO_BATCHES_DONE: 2, m.STEP: 2, m.LOSS: 9.5, m.STEP_TIME: 0.25},
        {a.TRAINING_TIME: 62.5},
        {m.TOKENS_PER_S: 4096},
        {m.MEMORY_PEAK: 1.5e9},
    ]


def test_the_end_of_a_stranger_s_log_is_not_litgpt_s() -> None:
    lines = [Line(1, "Training time: 3.00s"), Line(2, " 'num_nodes': 2,"), Line(3, "Memory used: 1.00 GB")]
    assert list(litgpt.parse(lines)) == []


def test_of_two_nodes_each_prints_its_own_times_and_end_and_both_the_same_settings() -> None:
    found = records(SAMPLES / "litgpt_two_nodes.txt", NAME)
    (setting,) = (each for each in found if each.kind is Kind.setting)
    assert setting.values == {
        a.NODES: 2, a.RANKS_PER_NODE: 4, a.GLOBAL_BATCH_SIZE: 96, a.MICRO_BATCH_SIZE: 12, a.SEQUENCE_LENGTH: 512,
    }  # fmt: skip
    assert setting.texts == {Text.precision: "bf16-true"}
    assert column(found, Kind.step, m.STEP) == [1, 1, 2, 2, 3, 3]
    assert column(found, Kind.step, m.STEP_TIME) == pytest.approx([4.2105, 4.21525, 1.51025, 1.5085, 0.3, 0.30275])
    assert column(found, Kind.summary, a.TRAINING_TIME) == [31.25, 32.5]
    assert column(found, Kind.summary, m.MEMORY_PEAK) == pytest.approx([21.5e9, 21.75e9])
