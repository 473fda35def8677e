"""Lines of Megatron-LM and its forks: numbers in base units, and absent where a line leaves them open."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "Megatron-LM"
AROUND = SAMPLES / "megatron_around.txt"


def test_each_logged_step_has_its_numbers_in_base_units() -> None:
    steps = [each for each in records(SAMPLES / "megatron.txt", NAME) if each.kind is Kind.step]
    assert [each.values[m.STEP] for each in steps] == [1, 2, 3, 4]
    assert [each.line for each in steps] == [2, 3, 5, 9]
    second = steps[1]
    assert second.texts == {Text.timestamp: "2026-03-04 05:06:08"}
    assert second.values == pytest.approx({
        m.STEP: 2, a.PLANNED_STEPS: 200, a.SAMPLES_DONE: 128, m.STEP_TIME: 1.0164, a.FLOPS_PER_S_PER_RANK: 249.2e12,
        m.LEARNING_RATE: 6e-6, a.GLOBAL_BATCH_SIZE: 64, m.LOSS: 10.79001, m.LOSS_SCALE: 1, m.GRADIENT_NORM: 11.87,
        a.SKIPPED_STEPS: 0, a.NAN_STEPS: 0,
    })  # fmt: skip


def test_a_step_without_loss_or_time_has_none_and_a_torn_field_is_not_believed() -> None:
    found = records(SAMPLES / "megatron.txt", NAME)
    third, torn = (each.values for each in found if each.kind is Kind.step and each.values[m.STEP] > 2)
    assert m.LOSS not in third
    assert m.STEP_TIME not in third
    assert third[a.SKIPPED_STEPS] == 1
    assert torn[m.STEP_TIME] == pytest.approx(1.0125), "of instant and mean the instant one"
    assert a.GLOBAL_BATCH_SIZE not in torn, "the line ends within 64"


def test_a_validation_is_an_evaluation() -> None:
    assert column(records(SAMPLES / "megatron.txt", NAME), Kind.evaluation, m.EVALUATION_LOSS) == [10.715]


def test_the_arguments_are_the_settings_of_the_run() -> None:
    found = [each for each in records(AROUND, NAME) if each.kind is Kind.setting and each.rank is None]
    assert texts(found, Text.precision) == ["fp8 hybrid", "bfloat16"]
    assert {metric: value for each in found for metric, value in each.values.items()} == {
        a.CONTEXT_PARALLEL_SIZE: 2, a.DATA_PARALLEL_SIZE: 4, a.EXPERT_PARALLEL_SIZE: 1, a.GLOBAL_BATCH_SIZE: 64,
        a.MICRO_BATCH_SIZE: 2, a.PIPELINE_PARALLEL_SIZE: 1, a.SEED: 4321, a.SEQUENCE_LENGTH: 4096,
        a.TENSOR_PARALLEL_SIZE: 2, a.RANKS: 16,
    }  # fmt: skip


def test_timers_are_read_in_both_layouts_of_ranks_the_slowest() -> None:
    timers = [each.values for each in records(AROUND, NAME) if each.texts.get(Text.variant) == "step"]
    older, torn, forward, reduction = timers
    assert older == pytest.approx({
        a.FORWARD_TIME: 0.3065, a.BACKWARD_TIME: 0.57525, a.GRADIENT_REDUCTION_TIME: 0.02675, a.OPTIMIZER_TIME: 0.0945,
        a.DATA_TIME: 0.00275,
    })  # fmt: skip
    assert a.DATA_TIME not in torn, "the line ends within 1.0"
    assert forward == pytest.approx({a.FORWARD_TIME: 0.3105})
    assert reduction == pytest.approx({a.GRADIENT_REDUCTION_TIME: 0.0405})


def test_ranks_that_print_their_memory_into_one_line_are_separate_records() -> None:
    first, second = (each for each in records(AROUND, NAME) if m.MEMORY_PEAK in each.values)
    assert (first.rank, second.rank) == (1, 0)
    assert first.values == {
        m.STEP: 20, a.MEMORY_ALLOCATED: 19494.5 * 2**20, m.MEMORY_PEAK: 22106.25 * 2**20,
        m.MEMORY_RESERVED_PEAK: 26718 * 2**20,
    }  # fmt: skip


def test_of_the_fork_that_estimates_operations_the_rate_and_the_size_are_read() -> None:
    (effective,) = (each.values for each in records(AROUND, NAME) if a.PARAMETERS in each.values)
    assert effective == pytest.approx({a.FLOPS_PER_S_PER_RANK: 2.25e12, a.PARAMETERS: 0.375e9})


def test_primus_prints_the_memory_of_the_gpu_and_pairs_of_which_the_first_counts() -> None:
    (step,) = (each for each in records(AROUND, NAME) if each.kind is Kind.step)
    assert step.rank == 15
    assert step.values == pytest.approx({
        m.STEP: 1, a.PLANNED_STEPS: 50, a.SAMPLES_DONE: 640, m.STEP_TIME: 9.25, a.DEVICE_MEMORY_USED: 192.5 * 2**30,
        a.DEVICE_MEMORY: 256 * 2**30, a.FLOPS_PER_S_PER_RANK: 163.5e12, m.TOKENS_PER_S_PER_RANK: 368.5, m.LOSS: 10.645,
        m.LOSS_SCALE: 1, m.GRADIENT_NORM: 0, a.SKIPPED_STEPS: 0, a.NAN_STEPS: 0,
    })  # fmt: skip
    assert [each.values for each in records(AROUND, NAME) if each.kind is Kind.setting and each.rank == 0] == [
        {a.RANKS: 16}
    ]


def test_megatron_deepspeed_reports_samples_and_operations_per_second() -> None:
    (step,) = records(SAMPLES / "megatron_deepspeed.txt", NAME, beside=("DeepSpeed",))
    assert (step.host, step.values[m.STEP_TIME], step.values[a.SAMPLES_PER_S]) == ("vm-02", 6.25, 40.96)
    assert step.values[a.FLOPS_PER_S_PER_RANK] == pytest.approx(120.5e12)


def test_a_misspelt_field_is_read_and_a_line_broken_in_two_keeps_its_first_half(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        " iteration       50/     200 | consumed samples:        25600 | elapsed time per iteration (ms): 51200.0 | "
        "learning rate: 1.000E-06 | gloabl batch size:   512 | lm loss: 9.5E+00 |\n loss scale: 1.0 |\n"
    )
    (step,) = records(log, NAME)
    assert (step.values[a.GLOBAL_BATCH_SIZE], step.values[m.STEP_TIME]) == (512, 51.2)


def test_of_steps_that_were_all_skipped_there_is_a_time_and_no_loss(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        " iteration       10/     100 | consumed samples:          320 | elapsed time per iteration (ms): 512.5 | "
        "learning rate: 0.000E+00 | global batch size:    32 | loss scale: 4194304.0 | "
        "number of skipped iterations:  10 | number of nan iterations:   0 |\n"
    )
    (step,) = records(log, NAME)
    assert step.values[m.STEP_TIME] == 0.5125
    assert step.values[a.SKIPPED_STEPS] == 10
    assert m.LOSS not in step.values
