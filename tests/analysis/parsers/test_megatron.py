"""Megatron-LM's lines: what they say, what they leave open, and the figures of real logs."""

from __future__ import annotations

from statistics import median

import pytest

from analysis.parsers import megatron
from analysis.parsers import metrics as a
from analysis.parsers.base import Kind, Text
from analysis.parsers.detect import read_log
from jobs import metrics as m
from tests.analysis.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records, texts

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
        m.LEARNING_RATE: 6e-6, a.GLOBAL_BATCH_SIZE: 64, m.LOSS: 10.79001, a.LOSS_SCALE: 1, m.GRADIENT_NORM: 11.87,
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


def test_the_arguments_say_what_was_run() -> None:
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


def test_ranks_that_print_their_memory_into_one_line_are_told_apart() -> None:
    first, second = (each for each in records(AROUND, NAME) if m.MEMORY_PEAK in each.values)
    assert (first.rank, second.rank) == (1, 0)
    assert first.values == {
        m.STEP: 20, a.MEMORY_ALLOCATED: 19494.5 * 2**20, m.MEMORY_PEAK: 22106.25 * 2**20,
        a.MEMORY_RESERVED_PEAK: 26718 * 2**20,
    }  # fmt: skip


def test_of_the_fork_that_estimates_operations_the_rate_and_the_size_are_read() -> None:
    (effective,) = (each.values for each in records(AROUND, NAME) if a.PARAMETERS in each.values)
    assert effective == pytest.approx({a.FLOPS_PER_S_PER_RANK: 2.25e12, a.PARAMETERS: 0.375e9})


def test_primus_says_the_memory_of_the_gpu_and_of_pairs_this_line_counts() -> None:
    (step,) = (each for each in records(AROUND, NAME) if each.kind is Kind.step)
    assert step.rank == 15
    assert step.values == pytest.approx({
        m.STEP: 1, a.PLANNED_STEPS: 50, a.SAMPLES_DONE: 640, m.STEP_TIME: 9.25, a.DEVICE_MEMORY_USED: 192.5 * 2**30,
        a.DEVICE_MEMORY: 256 * 2**30, a.FLOPS_PER_S_PER_RANK: 163.5e12, m.TOKENS_PER_S_PER_RANK: 368.5, m.LOSS: 10.645,
        a.LOSS_SCALE: 1, m.GRADIENT_NORM: 0, a.SKIPPED_STEPS: 0, a.NAN_STEPS: 0,
    })  # fmt: skip
    assert [each.values for each in records(AROUND, NAME) if each.kind is Kind.setting and each.rank == 0] == [
        {a.RANKS: 16}
    ]


@needs_corpus
def test_a_line_broken_in_two_gives_the_throughput_that_its_source_states() -> None:
    found = records(CORPUS / "megatron/excerpts/ascend_gloabl_typo.txt", NAME)
    (batch,), (time_s,) = column(found, Kind.step, a.GLOBAL_BATCH_SIZE), column(found, Kind.step, m.STEP_TIME)
    assert batch / time_s == pytest.approx(9.710, rel=1e-4)


@needs_corpus
@pytest.mark.parametrize(
    ("nodes", "job", "steps", "median_s"), [(4, 1809579, 20, 1.381), (8, 1809562, 20, 1.618), (16, 1809577, 9, 2.738)]
)
def test_grown_models_take_the_time_that_their_table_states(nodes: int, job: int, steps: int, median_s: float) -> None:
    path = CORPUS / f"megatron/bigscience_gpt2_base_n4_to_n64/meg_gpt2_base_n{nodes}_dp1_tp4_pp{nodes}-{job}.out"
    found = records(path, NAME)
    times = column(found, Kind.step, m.STEP_TIME)
    assert len(times) == steps
    assert median(times) == pytest.approx(median_s, rel=0.005)
    assert column(found, Kind.setting, a.RANKS) == [4 * nodes]
    assert column(found, Kind.setting, a.PIPELINE_PARALLEL_SIZE) == [nodes]
    assert len(column(found, Kind.sample, m.MEMORY_PEAK)) == 4 * nodes


@needs_corpus
@pytest.mark.parametrize(
    ("file", "ranks", "time_s", "tflops", "tokens_per_s", "batch"),
    [
        ("run-llama2-70B-2N.log", 16, 92.5749, 786.7, 1769.8, 640),
        ("run-llama2-7B-8N.log", 64, 6.4031, 943.4, 20470, 2048),
        ("run-mixtral-8x7B-8N.log", 64, 3.0608, 443.9, 5352.9, 256),
    ],
)
def test_primus_logs_end_with_the_figures_stated(
    file: str, ranks: int, time_s: float, tflops: float, tokens_per_s: float, batch: int
) -> None:
    found = records(CORPUS / "primus/hisohara_mi300x_8n" / file, NAME)
    assert column(found, Kind.step, m.STEP) == list(range(1, 51))
    assert {each.rank for each in found if each.kind is Kind.step} == {ranks - 1}
    assert column(found, Kind.setting, a.RANKS) == [ranks]
    for metric, value in (
        (m.STEP_TIME, time_s),
        (a.FLOPS_PER_S_PER_RANK, tflops * 1e12),
        (m.TOKENS_PER_S_PER_RANK, tokens_per_s),
        (a.GLOBAL_BATCH_SIZE, batch),
    ):
        assert column(found, Kind.step, metric)[-1] == pytest.approx(value, rel=1e-5)


@needs_corpus
def test_megatron_deepspeed_says_samples_and_operations_per_second() -> None:
    with_deepspeed = dict(read_log(CORPUS / "megatron_deepspeed/superbench_fixture/megatron_deepspeed.log"))
    found = list(with_deepspeed[megatron.FORMAT])
    assert column(found, Kind.step, m.STEP) == [1, 2, 3, 4, 5]
    last = [each.values for each in found if each.kind is Kind.step][-1]
    assert last[m.STEP_TIME] == pytest.approx(74.4949)
    assert last[a.SAMPLES_PER_S] == pytest.approx(27.492)
    assert last[a.FLOPS_PER_S_PER_RANK] == pytest.approx(150.62e12)


@needs_corpus
@pytest.mark.parametrize(
    ("file", "steps", "with_loss"),
    [("mcore_mixtral_16xH100.txt", 3, 3), ("mlm_2022_bert_skipped.txt", 1, 0), ("epfllm_250k.txt", 8, 8)],
)
def test_real_lines_give_a_step_each_and_one_of_skipped_steps_no_loss(file: str, steps: int, with_loss: int) -> None:
    found = records(CORPUS / "megatron/excerpts" / file, NAME)
    assert len(column(found, Kind.step, m.STEP_TIME)) == steps
    assert len(column(found, Kind.step, m.LOSS)) == with_loss
