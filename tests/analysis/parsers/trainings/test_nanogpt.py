"""Lines of llm.c, modded-nanogpt and nanoGPT."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "nanoGPT family"


def test_of_a_log_that_begins_with_its_program_only_what_was_printed_counts() -> None:
    found = records(SAMPLES / "nanogpt.txt", NAME)
    assert [(each.line, each.kind) for each in found] == [
        (6, Kind.evaluation), (7, Kind.step), (8, Kind.step), (9, Kind.evaluation), (11, Kind.summary)
    ]  # fmt: skip
    assert [each.values for each in found] == [
        # The first steps are not on the clock.
        {m.STEP: 0, a.PLANNED_STEPS: 1750, m.EVALUATION_LOSS: 10.8258},
        {m.STEP: 1, a.PLANNED_STEPS: 1750, m.LOSS: 10.5, a.STEPS_TIME: pytest.approx(0.096)},
        {m.STEP: 12, a.PLANNED_STEPS: 1750, a.STEPS_TIME: pytest.approx(0.194)},
        {m.STEP: 125, a.PLANNED_STEPS: 1750, m.EVALUATION_LOSS: 4.25, a.STEPS_TIME: 11.5},
        {m.MEMORY_PEAK: 32 << 20, m.MEMORY_RESERVED_PEAK: 64 << 20},
    ]


def test_llm_c_prints_in_four_ways() -> None:
    found = [each.values for each in records(SAMPLES / "llm_c.txt", NAME) if 2 <= each.line <= 11]
    assert found == [
        {m.STEP: 1, a.PLANNED_STEPS: 18865, m.LOSS: 11, m.GRADIENT_NORM: 15.5, m.LEARNING_RATE: 8.57e-7,
         m.STEP_TIME: 2.5, m.TOKENS_PER_S: 209715},
        {m.STEP: 2, a.PLANNED_STEPS: 18865, a.LOSS_NOT_FINITE: 1, m.GRADIENT_NORM: 14.5, m.LEARNING_RATE: 1.71e-6,
         m.STEP_TIME: 1.25, m.TOKENS_PER_S: 419430},
        {m.STEP: 3, a.PLANNED_STEPS: 40, m.LOSS: 5.25, m.GRADIENT_NORM: 1.25, m.LEARNING_RATE: 1e-4,
         m.STEP_TIME: 0.1255, m.TOKENS_PER_S: 4096},
        {m.STEP: 4, a.PLANNED_STEPS: 40, m.LOSS: 5.125, m.STEP_TIME: 0.1255, m.TOKENS_PER_S: 4096},
        {m.EVALUATION_LOSS: 5.0625},
        {m.STEP: 3, m.EVALUATION_LOSS: 5.0625},
        {m.STEP: 5, m.LOSS: 5, m.LEARNING_RATE: 1e-4, m.GRADIENT_NORM: 1.25},
        {m.STEP: 6, m.LOSS: 4.875},
        {a.MEAN_STEP_TIME: 0.1255},
        {m.MEMORY_PEAK: 32 << 20},
    ]  # fmt: skip


def test_nanogpt_counts_iterations_from_0_and_evaluates_before_them() -> None:
    found = [each.values for each in records(SAMPLES / "llm_c.txt", NAME) if each.line > 11]
    assert found == [
        {m.STEP: 0, m.EVALUATION_LOSS: 10.9375},
        {m.STEP: 1, m.LOSS: 10.9375, m.STEP_TIME: pytest.approx(1.50025)},
        {m.STEP: 11, m.LOSS: 9.5, m.STEP_TIME: 0.1505},
    ]
