"""Blocks of ApacheBench."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line
from analysis.parsers.benchmarks import apache_bench
from tests.analysis.parsers.reading import SAMPLES, records

NAME = "ApacheBench"


def test_a_block_is_one_summary_and_the_two_times_per_request_differ() -> None:
    post, *_ = records(SAMPLES / "apache_bench.txt", NAME)
    assert post.kind is Kind.summary
    assert post.values == pytest.approx({
        a.CONCURRENCY: 4, a.DURATION: 1.137, a.REQUESTS_COMPLETED: 40, a.REQUESTS_FAILED: 0, a.RECEIVED: 6120,
        a.SENT: 6360, a.REQUESTS_PER_S: 35.19, a.REQUEST_TIME_OF_CLIENT: 113.658e-3, a.REQUEST_INTERVAL: 28.415e-3,
        a.REQUEST_LATENCY["min"]: 0.021, a.REQUEST_LATENCY["mean"]: 0.11, a.REQUEST_LATENCY["median"]: 0.103,
        a.REQUEST_LATENCY["max"]: 0.291, a.REQUEST_LATENCY["p90"]: 0.168, a.REQUEST_LATENCY["p95"]: 0.27,
        a.REQUEST_LATENCY["p99"]: 0.291,
    })  # fmt: skip


def test_errors_of_the_server_are_counted_though_ab_calls_them_complete() -> None:
    _, missing, _ = records(SAMPLES / "apache_bench.txt", NAME)
    assert missing.values[a.REQUESTS_COMPLETED] == missing.values[a.ERROR_RESPONSES] == 86
    assert missing.values[a.REQUESTS_FAILED] == 0


def test_without_medians_and_percentiles_there_are_none() -> None:
    *_, one = records(SAMPLES / "apache_bench.txt", NAME)
    assert one.values[a.REQUEST_LATENCY["mean"]] == one.values[a.REQUEST_LATENCY["max"]] == pytest.approx(0.022)
    assert a.REQUEST_LATENCY["median"] not in one.values


def test_a_slow_rate_is_computed_from_count_and_time_and_a_torn_block_has_no_percentiles() -> None:
    block = ("Concurrency Level:      2", "Time taken for tests:   62.750 seconds", "Complete requests:      50",
             "Requests per second:    0.80 [#/sec] (mean)", "Percentage of the requests serv")  # fmt: skip
    (found,) = apache_bench.parse(Line(number, text) for number, text in enumerate(block, 1))
    assert found.values == {
        a.CONCURRENCY: 2, a.DURATION: 62.75, a.REQUESTS_COMPLETED: 50, a.REQUESTS_PER_S: pytest.approx(50 / 62.75),
    }  # fmt: skip
