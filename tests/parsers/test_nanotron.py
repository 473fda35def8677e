"""nanotron's lines: thousands, and the figures of a quoted log."""

from __future__ import annotations

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.record import Kind, LocalRank, Text
from jobs import metrics as m
from tests.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records

NAME = "nanotron"


def test_k_m_and_g_are_powers_of_a_thousand_and_a_batch_in_tokens_is_told_from_one_in_samples() -> None:
    first, last = records(SAMPLES / "nanotron.txt", NAME)
    assert (first.rank, first.host, first.texts) == (LocalRank(0), "node-7", {Text.timestamp: "03/04/2026 05:06:07"})
    assert first.values == pytest.approx({
        m.STEP: 1, a.PLANNED_STEPS: 200, a.TOKENS_DONE: 640, m.STEP_TIME: 2.35, m.TOKENS_PER_S: 272,
        m.TOKENS_PER_S_PER_RANK: 34, a.GLOBAL_BATCH_SIZE: 20, m.LOSS: 10.9, m.LEARNING_RATE: 1e-5,
        a.FLOPS_PER_S_PER_RANK: 1.25e9, m.GRADIENT_NORM: 0.5, a.MEMORY_RESERVED_PEAK: 547e6,
    })  # fmt: skip
    assert last.values == pytest.approx({
        m.STEP: 200, a.PLANNED_STEPS: 200, a.TOKENS_DONE: 1.28e9, m.STEP_TIME: 0.0455, m.TOKENS_PER_S: 14200,
        m.TOKENS_PER_S_PER_RANK: 1750, m.PADDED_TOKENS: 646, m.LEARNING_RATE: 3e-4,
    })  # fmt: skip


@needs_corpus
def test_a_quoted_log_agrees_with_itself() -> None:
    found = records(CORPUS / "nanotron" / "excerpts" / "nanotron_2024_humanized.txt", NAME)
    assert column(found, Kind.step, m.STEP) == [991, 992, 993]
    assert {each.host for each in found} == {"ip-26-0-160-225"}
    assert column(found, Kind.step, a.MEMORY_RESERVED_PEAK) == [547e6]
    assert column(found, Kind.step, a.GLOBAL_BATCH_SIZE) == [20] * 3
    for each in found:
        # Sequences of 32 tokens.
        assert each.values[a.TOKENS_DONE] == pytest.approx(each.values[m.STEP] * 640, rel=1e-3)
        assert each.values[m.TOKENS_PER_S] * each.values[m.STEP_TIME] == pytest.approx(640, rel=5e-3)
