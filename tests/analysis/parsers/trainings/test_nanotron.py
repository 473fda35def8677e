"""nanotron's lines, whose numbers have suffixes for thousands."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, LocalRank, Text
from jobs import metrics as m
from tests.analysis.parsers.reading import SAMPLES, column, records

NAME = "nanotron"


def test_k_m_and_g_are_powers_of_a_thousand_and_a_batch_in_tokens_differs_from_one_in_samples() -> None:
    first, last = records(SAMPLES / "nanotron.txt", NAME)
    assert (first.rank, first.host, first.texts) == (LocalRank(0), "node-7", {Text.timestamp: "03/04/2026 05:06:07"})
    assert first.values == pytest.approx({
        m.STEP: 1, a.PLANNED_STEPS: 200, a.TOKENS_DONE: 640, m.STEP_TIME: 2.35, m.TOKENS_PER_S: 272,
        m.TOKENS_PER_S_PER_RANK: 34, a.GLOBAL_BATCH_SIZE: 20, m.LOSS: 10.9, m.LEARNING_RATE: 1e-5,
        a.FLOPS_PER_S_PER_RANK: 1.25e9, m.GRADIENT_NORM: 0.5, m.MEMORY_RESERVED_PEAK: 547e6,
    })  # fmt: skip
    assert last.values == pytest.approx({
        m.STEP: 200, a.PLANNED_STEPS: 200, a.TOKENS_DONE: 1.28e9, m.STEP_TIME: 0.0455, m.TOKENS_PER_S: 14200,
        m.TOKENS_PER_S_PER_RANK: 1750, m.PADDED_TOKENS: 646, m.LEARNING_RATE: 3e-4, a.LOSS_NOT_FINITE: 1,
    })  # fmt: skip


def test_version_0_4_prints_its_host_only_under_slurm() -> None:
    found = records(SAMPLES / "nanotron_0_4.txt", NAME)
    assert column(found, Kind.step, m.STEP) == [1, 2, 3, 4, 5, 6] * 2
    assert [each.host for each in found] == [None] * 6 + ["toynode"] * 6
    assert found[0].texts == {Text.timestamp: "11/23/2026 02:40:46"}
    # A CPU has no device memory.
    assert found[0].values == pytest.approx({
        m.STEP: 1, a.PLANNED_STEPS: 6, a.TOKENS_DONE: 2050, m.STEP_TIME: 0.0324, m.TOKENS_PER_S: 63300,
        m.TOKENS_PER_S_PER_RANK: 63300, a.GLOBAL_BATCH_SIZE: 16, m.LOSS: 6.39, m.LEARNING_RATE: 7.5e-5,
        a.FLOPS_PER_S_PER_RANK: 0.0251e12, m.GRADIENT_NORM: 0.18,
    })  # fmt: skip
    assert column(found, Kind.step, m.STEP_TIME)[-1] == pytest.approx(9.86e-3)
