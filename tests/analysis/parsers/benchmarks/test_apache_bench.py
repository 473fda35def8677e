"""Blocks of ApacheBench."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Line
from analysis.parsers.benchmarks import apache_bench


def test_a_slow_rate_is_computed_from_count_and_time_and_a_torn_block_has_no_percentiles() -> None:
    block = ("Concurrency Level:      2", "Time taken for tests:   62.750 seconds", "Complete requests:      50",
             "Requests per second:    0.80 [#/sec] (mean)", "Percentage of the requests serv")  # fmt: skip
    (found,) = apache_bench.parse(Line(number, text) for number, text in enumerate(block, 1))
    assert found.values == {
        a.CONCURRENCY: 2, a.DURATION: 62.75, a.REQUESTS_COMPLETED: 50, a.REQUESTS_PER_S: pytest.approx(50 / 62.75),
    }  # fmt: skip
