"""GenAI-Perf's table, CSV and JSON."""

from __future__ import annotations

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.record import Kind, Text
from tests.parsers.reading import SAMPLES, records

NAME = "GenAI-Perf"


def test_a_box_is_one_summary() -> None:
    genai_perf, aiperf = records(SAMPLES / "genai_perf.txt", NAME)
    assert (genai_perf.kind, genai_perf.line) == (Kind.summary, 2)
    assert genai_perf.values == pytest.approx({
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.0405, a.TIME_TO_FIRST_TOKEN["min"]: 0.02125,
        a.TIME_TO_FIRST_TOKEN["max"]: 1.04175, a.TIME_TO_FIRST_TOKEN["p99"]: 1, a.TIME_TO_FIRST_TOKEN["p90"]: 0.04125,
        a.REQUEST_LATENCY["mean"]: 1.8, a.REQUEST_LATENCY["min"]: 1.75, a.REQUEST_LATENCY["max"]: 1.85,
        a.REQUEST_LATENCY["p99"]: 1.849, a.REQUEST_LATENCY["p90"]: 1.84,
        a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.01775, a.TIME_PER_OUTPUT_TOKEN["max"]: 0.018,
        a.TIME_PER_OUTPUT_TOKEN["p99"]: 0.018, a.TIME_PER_OUTPUT_TOKEN["p90"]: 0.0179,
        a.OUTPUT_LENGTH: 99.5, a.INPUT_LENGTH: 128, a.OUTPUT_TOKENS_PER_S: 1054.5, a.REQUESTS_PER_S: 10.55,
        a.REQUESTS_COMPLETED: 250,
    })  # fmt: skip
    assert aiperf.values == pytest.approx(
        {a.TIME_TO_FIRST_TOKEN["mean"]: 0.0205, a.TIME_TO_FIRST_TOKEN["min"]: 0.01025}
    )


def test_both_tables_of_a_csv_file_are_one_summary() -> None:
    (found,) = records(SAMPLES / "genai_perf.csv", NAME)
    assert found.values[a.TIME_TO_FIRST_TOKEN["max"]] == pytest.approx(1.04175)
    assert found.values[a.REQUEST_LATENCY["median"]] == pytest.approx(1.799)
    assert found.values[a.REQUEST_LATENCY["p95"]] == pytest.approx(1.845)
    assert a.TIME_PER_OUTPUT_TOKEN["mean"] not in found.values
    assert found.values[a.OUTPUT_LENGTH] == 99.5
    assert found.values[a.OUTPUT_TOKENS_PER_S] == 1054.5
    assert found.values[a.REQUESTS_COMPLETED] == 250


def test_a_document_also_says_model_and_concurrency() -> None:
    (found,) = records(SAMPLES / "genai_perf.json", NAME + " (JSON)")
    assert found.texts == {Text.model: "org/toy-1b"}
    assert found.values == pytest.approx({
        a.REQUESTS_PER_S: 10.55, a.REQUEST_LATENCY["mean"]: 1.8, a.REQUEST_LATENCY["median"]: 1.799,
        a.REQUEST_LATENCY["p99"]: 1.849, a.TIME_TO_FIRST_TOKEN["mean"]: 0.0405, a.TIME_TO_FIRST_TOKEN["p90"]: 0.04125,
        a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.01775, a.OUTPUT_TOKENS_PER_S: 1054.5, a.OUTPUT_LENGTH: 99.5,
        a.CONCURRENCY: 20,
    })  # fmt: skip


def test_requests_that_were_measured_and_answered_are_samples() -> None:
    found = records(SAMPLES / "aiperf_requests.jsonl", "AIPerf requests (JSON lines)")
    assert {each.kind for each in found} == {Kind.sample}
    assert [each.line for each in found] == [2, 3]
    assert found[0].values == pytest.approx({
        a.TIME_TO_FIRST_TOKEN["mean"]: 0.0405, a.TIME_PER_OUTPUT_TOKEN["mean"]: 0.01125,
        a.REQUEST_LATENCY["mean"]: 0.4005, a.OUTPUT_LENGTH: 32, a.INPUT_LENGTH: 64,
    })  # fmt: skip
