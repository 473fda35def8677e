"""NeMo's lines and bars: steps counted from 1 and never rounded, no meaningless means."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records

NAME = "NeMo"


def test_a_bar_gives_each_step_once_and_no_rounded_step() -> None:
    found = records(SAMPLES / "nemo.txt", NAME)
    assert [each.values for each in found if each.line in range(3, 7)] == [
        {a.EPOCH: 0, m.STEP: 5, m.STEP_TIME: 41.5, m.LOSS: 3.09, a.SAMPLES_DONE: 640},
        # Its loss is nan.0, and its rate 1.6 steps a second.
        {a.EPOCH: 0, m.STEP: 6, m.STEP_TIME: 0.625, a.LOSS_NOT_FINITE: 1, a.SAMPLES_DONE: 768},
        {a.EPOCH: 0, m.STEP: 2001, m.STEP_TIME: 1.9, m.LOSS: 2.6, a.SAMPLES_DONE: 256000, m.EVALUATION_LOSS: 2.8},
        # In a later epoch only an exact global_step identifies the step.
        {a.EPOCH: 1, m.STEP: 52, m.STEP_TIME: 3.5, m.LOSS: 0.75, a.SAMPLES_DONE: 6656, a.SAMPLES_PER_S: 14.5},
    ]


def test_another_program_s_lightning_bar_is_left_alone() -> None:
    assert not [each for each in records(SAMPLES / "nemo.txt", NAME) if each.line == 7]


def test_iterations_of_nemo_2_are_read_whatever_the_order_of_fields() -> None:
    first, second = (each for each in records(SAMPLES / "nemo.txt", NAME) if each.line in (8, 9))
    assert (first.rank, second.rank) == (0, 0)
    assert first.values == {
        a.EPOCH: 0, m.STEP: 1, m.LEARNING_RATE: 9.804e-8, a.GLOBAL_BATCH_SIZE: 4, m.LOSS: 14.66, m.STEP_TIME: 5.276,
    }  # fmt: skip
    assert second.values == {
        a.EPOCH: 0, m.STEP: 2, a.FLOPS_PER_S_PER_RANK: 412.5e12, a.SAMPLES_DONE: 8, a.GLOBAL_BATCH_SIZE: 4,
        m.GRADIENT_NORM: 1.25, m.LEARNING_RATE: 1.961e-7, m.MEMORY_PEAK: 44271689728,
        m.MEMORY_RESERVED_PEAK: 70833405952, m.TOKENS_PER_S_PER_RANK: 10740, m.STEP_TIME: 2.008,
        m.EVALUATION_LOSS: 4.106, a.LOSS_NOT_FINITE: 1,
    }  # fmt: skip


def test_means_of_counts_over_several_steps_are_not_taken_for_counts() -> None:
    tenth, later = (each.values for each in records(SAMPLES / "nemo.txt", NAME) if each.line in (10, 11))
    assert tenth == {
        a.EPOCH: 0, m.STEP: 10, m.LEARNING_RATE: 1e-6, a.GLOBAL_BATCH_SIZE: 4, m.LOSS: 3.5, m.STEP_TIME: 2.125
    }  # fmt: skip
    assert later == {a.EPOCH: 1, m.LOSS: 3.25}, "its iteration is that of the epoch, which is no step"


def test_the_list_at_the_end_of_nemo_1_gives_times_and_the_speed() -> None:
    found = records(SAMPLES / "nemo.txt", NAME)
    assert [each.values for each in found if each.line == 1] == [{m.STEP_TIME: time} for time in (9.5, 2.25, 2)]
    assert column(found, Kind.summary, a.FLOPS_PER_S_PER_RANK) == [412.5e12]


@pytest.mark.parametrize("prefix", ["", "3: ", "pretraining/0 ", "[default0]:", "[2026-03-04T05:06:07+00:00] "])
def test_iterations_are_read_behind_the_prefix_of_any_launcher(prefix: str, tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    line = "Training epoch 0, iteration 49/99 | lr: 1e-05 | global_batch_size: 128 | reduced_train_loss: 5.5"
    log.write_text(f"{prefix}{line} | train_step_timing in s: 12.5 | consumed_samples: 6400\n")
    (step,) = records(log, NAME)
    assert (step.values[m.STEP], step.values[m.STEP_TIME], step.values[a.GLOBAL_BATCH_SIZE]) == (50, 12.5, 128)
