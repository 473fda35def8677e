"""DeepSpeed's reports: progress, throughput, overflows and phases, of old and new versions."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "DeepSpeed"
SAMPLE = SAMPLES / "deepspeed.txt"


def test_progress_and_throughput_of_a_step_are_two_records() -> None:
    progress, throughput = (each for each in records(SAMPLE, NAME) if each.values.get(m.STEP) == 10)
    assert progress.values == {m.STEP: 10, a.SKIPPED_STEPS_SO_FAR: 2, m.LEARNING_RATE: 3e-5}
    assert progress.rank == 0
    assert progress.texts == {Text.timestamp: "2026-03-04 05:06:17,404"}
    assert throughput.values == pytest.approx({
        m.STEP: 10, a.EPOCH: 0, a.SAMPLES_PER_S_TIMED: 64.25, a.SAMPLES_PER_S_TIMED_MEAN: 61.51234567890123,
        a.MEMORY_ALLOCATED: 1.5 * 2**30, m.MEMORY_PEAK: 2.75 * 2**30,
    })  # fmt: skip


def test_the_pipeline_engine_prints_loss_time_and_samples_of_the_whole_step() -> None:
    first, second = (each.values for each in records(SAMPLE, NAME) if m.STEP_TIME in each.values)
    assert first == {m.STEP: 20, m.LOSS: 9.8765, m.STEP_TIME: 1.25, a.SAMPLES_PER_S: 25.6}
    assert second == {m.STEP: 30, a.LOSS_NOT_FINITE: 1, m.STEP_TIME: 1.375, a.SAMPLES_PER_S: 23.273}


def test_a_step_left_out_is_an_event_with_the_scale_that_overflowed() -> None:
    found = records(SAMPLE, NAME)
    assert texts(found, Text.event) == ["overflow", "overflow"]
    assert column(found, Kind.event, m.LOSS_SCALE) == [65536, 65536]


def test_phases_are_of_a_micro_batch_or_of_a_step_and_other_timers_are_left_out() -> None:
    micro, step = (each for each in records(SAMPLE, NAME) if each.kind is Kind.sample)
    assert (micro.texts[Text.variant], step.texts[Text.variant]) == ("micro-batch", "step")
    assert micro.values == pytest.approx({
        a.FORWARD_TIME: 0.12025, a.BACKWARD_TIME: 0.3105, a.GRADIENT_REDUCTION_TIME: 0.02025, a.OPTIMIZER_TIME: 0.00005,
    })  # fmt: skip
    assert step.values == pytest.approx({
        a.FORWARD_TIME: 0.481, a.BACKWARD_TIME: 1.242, a.GRADIENT_REDUCTION_TIME: 0.081, a.OPTIMIZER_TIME: 0.0125,
    })  # fmt: skip


def test_old_versions_count_micro_steps_and_print_a_mean() -> None:
    mean, torn = records(SAMPLE, NAME)[-2:]
    assert mean.values == {a.SAMPLES_PER_S_TIMED_MEAN: 14.012345678901234}
    assert a.SAMPLES_PER_S_TIMED in torn.values
    assert m.STEP not in torn.values
    assert m.MEMORY_PEAK not in torn.values, "the line ends within 2.6"


def test_what_deepspeed_really_prints_is_read() -> None:
    found = records(SAMPLES / "deepspeed_0_19.txt", NAME)
    assert column(found, Kind.step, m.STEP) == [2, 4, 4, 2, 2, 4, 4]
    assert column(found, Kind.step, m.LEARNING_RATE) == [0.001] * 4
    assert column(found, Kind.step, a.SAMPLES_PER_S_TIMED) == [4528.144691413479]
    assert column(found, Kind.step, m.MEMORY_PEAK) == [0.34 * 2**30]
    assert column(found, Kind.step, m.STEP_TIME) == [0.043, 0.016]
    assert column(found, Kind.step, m.LOSS) == [1.1643, 0.4244]
    assert column(found, Kind.step, a.SAMPLES_PER_S) == [185.164, 507.113]
    phases = [each for each in found if each.kind is Kind.sample]
    assert texts(phases, Text.variant) == ["micro-batch", "micro-batch", "step"] * 4
    assert phases[2].values == pytest.approx({
        a.FORWARD_TIME: 0.00129, a.BACKWARD_TIME: 0.00242, a.GRADIENT_REDUCTION_TIME: 0.00202, a.OPTIMIZER_TIME: 0.0057,
    })  # fmt: skip


def test_what_deepspeed_0_12_really_prints_is_read() -> None:
    found = records(SAMPLES / "deepspeed_0_12.txt", NAME)
    settings = {metric: value for each in found if each.kind is Kind.setting for metric, value in each.values.items()}
    assert settings == {a.GLOBAL_BATCH_SIZE: 8, a.MICRO_BATCH_SIZE: 4, a.ACCUMULATION: 2, a.DATA_PARALLEL_SIZE: 1}
    assert texts(found, Text.precision) == [], "neither fp16 nor bfloat16"
    assert column(found, Kind.step, m.STEP) == [2, 4, 4, 2, 2, 4, 4], "that of a new engine, 0, is none"
    assert column(found, Kind.step, a.SAMPLES_PER_S_TIMED) == [409.5650029904671]
    assert column(found, Kind.step, m.LOSS) == [1.0133, 0.9051]
    assert column(found, Kind.step, a.SAMPLES_PER_S) == [1660.371, 2696.868]
    phases = [each for each in found if each.kind is Kind.sample]
    assert texts(phases, Text.variant) == ["micro-batch", "micro-batch", "step"] * 4
    assert phases[2].values == pytest.approx({
        a.FORWARD_TIME: 0.00625, a.BACKWARD_TIME: 0.0027, a.GRADIENT_REDUCTION_TIME: 0.00024, a.OPTIMIZER_TIME: 0.00309,
    })  # fmt: skip


def test_newer_versions_print_the_precision_as_a_section_and_ranks_as_a_quotient() -> None:
    found = [each for each in records(SAMPLE, NAME) if each.kind is Kind.setting]
    assert texts(found, Text.precision) == ["bfloat16"]
    assert column(found, Kind.setting, a.DATA_PARALLEL_SIZE) == [4]


def test_the_timer_may_claim_twelve_times_what_megatron_reports_of_the_same_step() -> None:
    path = SAMPLES / "megatron_deepspeed.txt"
    found = records(path, NAME, beside=("Megatron-LM",))
    assert column(found, Kind.step, a.SAMPLES_PER_S_TIMED) == [510.25]
    assert column(records(path, "Megatron-LM", beside=(NAME,)), Kind.step, a.SAMPLES_PER_S) == [40.96]
    assert {each.host for each in found} == {"vm-02"}, "the launcher's prefix names the host"
    settings = {metric: value for each in found if each.kind is Kind.setting for metric, value in each.values.items()}
    assert settings == {a.GLOBAL_BATCH_SIZE: 256, a.MICRO_BATCH_SIZE: 2, a.ACCUMULATION: 16, a.DATA_PARALLEL_SIZE: 8}
    assert texts(found, Text.precision) == ["float16"]
