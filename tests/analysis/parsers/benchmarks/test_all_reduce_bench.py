"""all_reduce_bench.py: bits made bytes, and ranks that write into each other's lines."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, Record
from analysis.parsers.benchmarks import all_reduce_bench


def parsed(*lines: str) -> list[Record]:
    return list(all_reduce_bench.parse(Line(number, text) for number, text in enumerate(lines, 1)))


def test_later_versions_name_the_host_and_no_bits() -> None:
    (record,) = parsed(
        "node1:3:", " duration: 0.0500 sec", " algo throughput: 1280.0000 Gbps", " busbw: 640.0000  Gbps"
    )
    assert (record.rank, record.host) == (None, "node1"), "3 is the rank on its host"
    assert record.values[a.ALGORITHM_BANDWIDTH] == pytest.approx(80e9)


def test_the_table_of_means_is_read_with_its_ranks() -> None:
    ranks, first, last = parsed(
        "The average bandwidth of all_reduce over 16 ranks (5 warmups / 20 trials):",
        "| payload |    busbw   |    algbw   |",
        "| ------: | ---------: | ---------: |",
        "|   32KiB |   0.49GBps |   0.26GBps |",
        "|   64KiB |   0.00GBps |   0.00GBps |",
        "|    4GB  |   1.00GBps |",
        "|   16GiB | 359.42GBps | 191.69GBps |",
    )
    assert (ranks.kind, ranks.values) == (Kind.setting, {a.RANKS: 16})
    assert first.values == pytest.approx(
        {a.MESSAGE_SIZE: 1 << 15, a.BUS_BANDWIDTH: 0.49e9, a.ALGORITHM_BANDWIDTH: 0.26e9}
    )
    assert last.values[a.MESSAGE_SIZE] == 1 << 34


@pytest.mark.parametrize(
    "torn", ["3:", "0 data size: 4.0 GB", " busbw: 64", " algo throughput: 1280000000000.0000 bps, 12"]
)
def test_a_torn_line_gives_no_record(torn: str) -> None:
    assert parsed(torn) == []
