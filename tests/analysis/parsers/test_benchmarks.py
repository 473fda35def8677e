"""Results of benchmarks that the samples do not show: other versions, torn and odd values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from analysis.parsers.benchmarks import all_reduce_bench, apache_bench
from analysis.parsers.search import BLOCK_BYTES
from tests.analysis.parsers.reading import SAMPLES, column, parsed, records, texts

# --- all_reduce_bench.py: bits made bytes, and ranks that write into each other's lines ----------------------------


def test_later_versions_name_the_host_and_no_bits() -> None:
    (record,) = parsed(
        all_reduce_bench.parse, "node1:3:", " duration: 0.0500 sec", " algo throughput: 1280.0000 Gbps",
        " busbw: 640.0000  Gbps",
    )  # fmt: skip
    assert (record.rank, record.host) == (None, "node1"), "3 is the rank on its host"
    assert record.values[a.ALGORITHM_BANDWIDTH] == pytest.approx(80e9)


def test_the_table_of_means_is_read_with_its_ranks() -> None:
    ranks, first, last = parsed(
        all_reduce_bench.parse,
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


# --- Blocks of ApacheBench -----------------------------------------------------------------------------------------


def test_a_slow_rate_is_computed_from_count_and_time_and_a_torn_block_has_no_percentiles() -> None:
    block = ("Concurrency Level:      2", "Time taken for tests:   62.750 seconds", "Complete requests:      50",
             "Requests per second:    0.80 [#/sec] (mean)", "Percentage of the requests serv")  # fmt: skip
    (found,) = parsed(apache_bench.parse, *block)
    assert found.values == {
        a.CONCURRENCY: 2, a.DURATION: 62.75, a.REQUESTS_COMPLETED: 50, a.REQUESTS_PER_S: pytest.approx(50 / 62.75),
    }  # fmt: skip


# --- fio's jobs and groups: text of 2 and 3, and JSON --------------------------------------------------------------


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def test_groups_quoted_by_a_mail_and_in_thousands_have_their_bandwidth(tmp_path: Path) -> None:
    log = tmp_path / "mail.txt"
    log.write_text(
        "Run status group 0 (all jobs):\n"
        "   READ: bw=3D12.5GiB/s (13.4GB/s), 12.5GiB/s-12.5GiB/s (13.4GB/s-13.4GB/s), run=3D60001-60001msec\n"
        "Run status group 1 (all jobs):\n"
        "  WRITE: bw=9696KiB/s (9929kB/s), 2424KiB/s-2424KiB/s (2482kB/s-2482kB/s), io=568MiB, run=60003-60005msec\n"
    )
    found = records(log, "fio")
    assert column(found, Kind.summary, a.IO_BANDWIDTH) == pytest.approx([12.5 * (1 << 30), 9696 * KIB])
    assert texts(found, Text.variant) == ["group 0", "group 1"]


def test_a_document_has_a_measurement_for_each_direction(tmp_path: Path) -> None:
    document = json.loads((SAMPLES / "fio_3.json").read_text())
    (job,) = document["jobs"]
    job["write"] = job["read"]
    (tmp_path / "both.log").write_text(json.dumps(document))
    assert texts(records(tmp_path / "both.log", "fio (JSON)"), Text.benchmark) == ["read", "write"]


# --- HPL, HPCG, OSU, STREAM and elbencho: their results in base units, and no result where their own check failed --


def test_osu_with_its_validation_has_no_value_of_a_size_that_failed(tmp_path: Path) -> None:
    text = "# OSU MPI-CUDA Latency Test v7.3\n# Size          Latency (us)        Validation\n"
    (tmp_path / "osu.txt").write_text(f"{text}1  2.50  Pass\n2  2.75  Pass\n4  9.99  Fail\n")
    found = [each for each in records(tmp_path / "osu.txt", "OSU") if each.kind is Kind.measurement]
    assert [each.values.get(a.MESSAGE_LATENCY) for each in found] == [
        pytest.approx(2.5e-6), pytest.approx(2.75e-6), None,
    ]  # fmt: skip


# --- Tables of nccl-tests and rccl-tests, in both layouts ----------------------------------------------------------


@pytest.mark.parametrize("wrong", ["9" * 400, "²", "1e-07"])
def test_anything_but_a_count_of_wrong_values_is_absent(wrong: str, tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        f"{1 << 20:12} 262144 float     sum      -1    41.30   25.39   25.39      0 40.11 26.14 26.14 {wrong}\n"
    )
    outside, inside = (each.values for each in records(log, "nccl-tests"))
    assert outside[a.WRONG_VALUES] == 0
    assert a.WRONG_VALUES not in inside


def row(size: int, algorithm: float, ratio: float) -> str:
    half = f"{100.0:9.1f} {algorithm:7.2f} {algorithm * ratio:7.2f}      0"
    return f"{size:12} {size // 4:12}     float     sum      -1 {half} {half}\n"


@pytest.mark.parametrize(
    ("ratio", "ranks"),
    [
        (2 * 15 / 16, [16]),  # an all-reduce
        (15 / 16, [16]),  # an all-gather, a reduce-scatter, an all-to-all
        (1 / 2, [2]),
        (1.0, []),  # an all-reduce of two ranks, or a broadcast of any number
        (2 * 4095 / 4096, []),  # bandwidths are rounded to 0.01 GB/s
    ],
)
def test_without_devices_the_number_of_ranks_follows_from_the_ratio_of_the_bandwidths(
    ratio: float, ranks: list[int], tmp_path: Path
) -> None:
    log = tmp_path / "job.out"
    rows = [row(1 << 20, 3.4, ratio), row(1 << 28, 51.55, ratio), row(1 << 31, 56.25, ratio)]
    log.write_text("".join(rows) + "# Avg bus bandwidth    : 29.0\n")
    assert column(records(log, "nccl-tests"), Kind.setting, a.RANKS) == ranks


def test_listed_devices_are_the_ranks_if_none_is_left_out(tmp_path: Path) -> None:
    devices = [
        f"#  Rank {n:2} Group  0 Pid   99 on node0{n // 2} device  {n % 2} [0x04] NVIDIA H100\n" for n in range(4)
    ]
    log = tmp_path / "job.out"
    log.write_text("".join(devices))
    assert column(records(log, "nccl-tests"), Kind.setting, a.RANKS) == [4]
    log.write_text("".join(devices[1:]))
    assert column(records(log, "nccl-tests"), Kind.setting, a.RANKS) == []


# --- Results of serving benchmarks: the table of vLLM and its kin, and the JSON document ---------------------------


def test_a_line_of_megabytes_is_read_whole_and_one_that_is_cut_off_not_at_all(tmp_path: Path) -> None:
    result = json.loads((SAMPLES / "vllm_bench.json").read_text())
    long = json.dumps(result | {"itls": [[0.0125] * 1000] * 1000, "duration": 50.0})
    log = tmp_path / "results.jsonl"
    log.write_text("\n".join((json.dumps(result), long, long[: len(long) // 2], json.dumps(result))))
    assert log.stat().st_size > 2 * BLOCK_BYTES
    found = records(log, "vLLM and SGLang serving benchmark" + " (JSON)")
    assert [(each.line, each.values[a.DURATION]) for each in found] == [(1, 12.5), (2, 50), (4, 12.5)]
