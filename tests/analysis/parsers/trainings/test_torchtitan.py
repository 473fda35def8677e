"""torchtitan's lines, coloured or not, of old and new versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "torchtitan"
SAMPLE = SAMPLES / "torchtitan.txt"


def test_a_coloured_step_has_its_numbers_in_base_units() -> None:
    first = next(each for each in records(SAMPLE, NAME) if each.kind is Kind.step)
    assert first.rank == 0
    assert first.texts == {Text.timestamp: "2026-03-04 05:06:10,505"}
    assert first.values == pytest.approx({
        m.STEP: 1, m.LOSS: 8.125, m.GRADIENT_NORM: 1.5, m.MEMORY_RESERVED_PEAK: 1.25 * 2**30,
        m.TOKENS_PER_S_PER_RANK: 12345, a.FLOPS_PER_S_PER_RANK: 1000.25e12, a.MODEL_FLOPS_UTILIZATION: 0.125,
    })  # fmt: skip


def test_a_loss_of_minus_one_and_a_memory_of_zero_are_absent() -> None:
    second = [each.values for each in records(SAMPLE, NAME) if each.kind is Kind.step][1]
    assert m.LOSS not in second
    assert m.MEMORY_RESERVED_PEAK not in second
    assert second[m.TOKENS_PER_S_PER_RANK] == 212462


def test_until_2024_tokens_were_called_words_and_before_that_not_counted() -> None:
    words, oldest = (each.values for each in records(SAMPLE, NAME) if each.rank == 1)
    assert words[m.TOKENS_PER_S_PER_RANK] == 5380
    assert oldest == {m.STEP: 3, m.LOSS: 7.25, a.COMPUTE_TIME: 0.125, a.DATA_TIME: 0.0125}


def test_of_a_torn_line_only_whole_numbers_count_and_a_loss_of_nan_is_marked() -> None:
    torn = records(SAMPLE, NAME)[-1].values
    assert torn == pytest.approx(
        {m.STEP: 3, a.LOSS_NOT_FINITE: 1, m.GRADIENT_NORM: 0, m.MEMORY_RESERVED_PEAK: 1.25 * 2**30}
    )


def test_a_validation_is_an_evaluation() -> None:
    assert column(records(SAMPLE, NAME), Kind.evaluation, m.EVALUATION_LOSS) == [7.75]


def test_settings_are_read_before_the_first_step() -> None:
    found = records(SAMPLE, NAME)
    assert texts(found, Text.gpu_name) == ["NVIDIA H100 80GB HBM3"]
    assert texts(found, Text.model) == ["llama3 debugmodel"]
    settings = {metric: value for each in found if each.kind is Kind.setting for metric, value in each.values.items()}
    assert settings == pytest.approx({
        a.DEVICE_MEMORY: 79.25 * 2**30, a.PARAMETERS: 6163712, a.PEAK_FLOPS_PER_S: 9.89e14, a.MICRO_BATCH_SIZE: 8,
        a.GLOBAL_BATCH_SIZE: 64, a.ACCUMULATION: 2, a.SEQUENCE_LENGTH: 2048, a.PLANNED_STEPS: 10,
    })  # fmt: skip


def test_version_0_3_is_read_with_its_mesh_and_without_a_utilization_by_the_peak_of_another_gpu() -> None:
    found = records(SAMPLES / "torchtitan_0_3.txt", NAME)
    mesh = {a.RANKS: 4, a.PIPELINE_PARALLEL_SIZE: 1, a.CONTEXT_PARALLEL_SIZE: 1, a.TENSOR_PARALLEL_SIZE: 2}
    assert [each.values for each in found if each.kind is Kind.setting] == [mesh, mesh], "of two runs"
    assert column(found, Kind.step, m.LOSS) == [7.79376, 7.75894, 7.8561, 8.03208] * 2
    assert column(found, Kind.step, m.GRADIENT_NORM) == [0.9998, 1.0008, 1.0094, 1.0437] * 2
    assert column(found, Kind.step, m.TOKENS_PER_S_PER_RANK) == [411, 4065, 4070, 5056, 590, 4539, 4578, 5452]
    assert column(found, Kind.evaluation, m.EVALUATION_LOSS) == [7.8124, 8.4047] * 2
    assert column(found, Kind.step, a.MODEL_FLOPS_UTILIZATION) == [], "of an A100, which it warns of, or N/A"
    assert column(found, Kind.step, m.MEMORY_RESERVED_PEAK) == [], "-0.00GiB: a CPU does not report it"


def test_the_peak_of_a_gpu_that_is_known_counts_again_after_a_run_on_one_that_is_not(tmp_path: Path) -> None:
    head = "[titan] 2026-03-04 05:06:10,505 - root - "
    step = "step:  1  loss:  8.0  memory:  1.00GiB(1.25%)  tps: 100  tflops: 0.01  mfu: 5.00%\n"
    peak = f"{head}INFO - Peak FLOPS used for computing MFU: "
    unknown = f"{head}WARNING - Peak flops undefined for: NVIDIA B999, fallback to A100\n{peak}3.120e+14\n"
    log = tmp_path / "two_runs.log"
    log.write_text(f"{unknown}{head}INFO - {step}{peak}9.890e+14\n{head}INFO - {step}")
    found = records(log, NAME)
    assert column(found, Kind.setting, a.PEAK_FLOPS_PER_S) == [9.89e14]
    assert [each.values.get(a.MODEL_FLOPS_UTILIZATION) for each in found if each.kind is Kind.step] == [None, 0.05]


def test_a_line_that_every_rank_prints_without_its_rank_is_read_each_time(tmp_path: Path) -> None:
    log = tmp_path / "slurm.out"
    line = "[titan] 2026-03-04 05:06:10,505 - root - INFO - step:  4  loss:  8.5  memory: 12.5GiB(15.75%)  tps: 10,007"
    log.write_text(f"{line}  mfu: 4.5%\n" * 3)
    found = records(log, NAME)
    assert column(found, Kind.step, m.STEP) == [4, 4, 4]
    assert {each.rank for each in found} == {None}
