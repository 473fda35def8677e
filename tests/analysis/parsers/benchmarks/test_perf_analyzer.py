"""Blocks of perf_analyzer and the token metrics after them."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "perf_analyzer"


def test_a_concurrency_is_one_summary_with_the_token_metrics_after_it() -> None:
    whole, torn = records(SAMPLES / "perf_analyzer.txt", NAME)
    assert (whole.kind, whole.line) == (Kind.summary, 6)
    assert whole.values == pytest.approx({
        a.CONCURRENCY: 4, a.REQUESTS_COMPLETED: 100, a.REQUESTS_PER_S: 8.25, a.REQUEST_LATENCY["mean"]: 0.48,
        a.REQUEST_LATENCY["median"]: 0.479, a.REQUEST_LATENCY["p90"]: 0.49, a.REQUEST_LATENCY["p95"]: 0.495,
        a.REQUEST_LATENCY["p99"]: 0.499, a.INPUT_TOKENS_PER_S: 1056, a.OUTPUT_TOKENS_PER_S: 528.5,
        a.INPUT_LENGTH: 128, a.OUTPUT_LENGTH: 64, a.TIME_TO_FIRST_TOKEN["mean"]: 0.03025,
        a.TIME_TO_FIRST_TOKEN["median"]: 0.03, a.TIME_TO_FIRST_TOKEN["p90"]: 0.0355,
        a.TIME_TO_FIRST_TOKEN["p99"]: 0.04, a.INTER_TOKEN_LATENCY["mean"]: 0.00725,
        a.INTER_TOKEN_LATENCY["median"]: 0.007, a.INTER_TOKEN_LATENCY["p99"]: 0.0095,
    })  # fmt: skip
    assert torn.values == {a.CONCURRENCY: 8, a.REQUESTS_COMPLETED: 100, a.REQUESTS_PER_S: 12.5}


def test_blocks_without_token_metrics_are_read_too() -> None:
    two, four = records(SAMPLES / "perf_analyzer_2_51.txt", NAME)
    assert (two.line, four.line) == (11, 21)
    assert two.values == pytest.approx({
        a.CONCURRENCY: 2, a.REQUESTS_COMPLETED: 64, a.REQUESTS_PER_S: 17.7732, a.REQUEST_LATENCY["mean"]: 0.101398,
        a.REQUEST_LATENCY["median"]: 0.098749, a.REQUEST_LATENCY["p90"]: 0.101523, a.REQUEST_LATENCY["p95"]: 0.104927,
        a.REQUEST_LATENCY["p99"]: 0.105229,
    })  # fmt: skip
    assert (four.values[a.CONCURRENCY], four.values[a.REQUESTS_PER_S]) == (4, 37.4851)


def test_a_row_of_the_csv_file_is_one_summary() -> None:
    two, four = records(SAMPLES / "perf_analyzer.csv", "perf_analyzer (CSV)")
    assert two.values == pytest.approx({
        a.CONCURRENCY: 2, a.REQUESTS_PER_S: 17.7732, a.REQUEST_LATENCY["median"]: 0.098749,
        a.REQUEST_LATENCY["p90"]: 0.101523, a.REQUEST_LATENCY["p95"]: 0.104927, a.REQUEST_LATENCY["p99"]: 0.105229,
    })  # fmt: skip
    assert (four.line, four.values[a.CONCURRENCY], four.values[a.REQUESTS_PER_S]) == (3, 4, 37.4851)
