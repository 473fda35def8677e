"""Tables of nccl-tests and rccl-tests, in both layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "nccl-tests"


def test_each_row_is_two_measurements_in_base_units() -> None:
    found = records(SAMPLES / "nccl_tests.txt", NAME)
    rows = [each for each in found if each.kind is Kind.measurement]
    assert [each.texts[Text.variant] for each in rows] == ["out-of-place", "in-place"] * 2
    assert {each.texts[Text.benchmark] for each in rows} == {"all_reduce"}
    assert rows[0].values == pytest.approx({
        a.MESSAGE_SIZE: 1 << 20, a.COLLECTIVE_TIME: 41.3e-6, a.ALGORITHM_BANDWIDTH: 25.39e9, a.BUS_BANDWIDTH: 25.39e9,
        a.WRONG_VALUES: 0,
    })  # fmt: skip
    assert rows[2].values[a.COLLECTIVE_TIME] == pytest.approx(13042e-6)
    assert a.WRONG_VALUES not in rows[3].values, "N/A is not 0"
    assert column(found, Kind.summary, a.BUS_BANDWIDTH) == [pytest.approx(21.515e9)]


@pytest.mark.parametrize("wrong", ["9" * 400, "²", "1e-07"])
def test_anything_but_a_count_of_wrong_values_is_absent(wrong: str, tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        f"{1 << 20:12} 262144 float     sum      -1    41.30   25.39   25.39      0 40.11 26.14 26.14 {wrong}\n"
    )
    outside, inside = (each.values for each in records(log, NAME))
    assert outside[a.WRONG_VALUES] == 0
    assert a.WRONG_VALUES not in inside


def test_the_devices_name_host_and_gpu_of_each_rank() -> None:
    found = [each for each in records(SAMPLES / "nccl_tests.txt", NAME) if each.kind is Kind.setting]
    devices = [each for each in found if Text.gpu_name in each.texts]
    assert [(each.rank, each.host) for each in devices] == [(0, "gpu01"), (1, "gpu01")]
    assert texts(devices, Text.gpu_name) == ["NVIDIA H100 80GB HBM3"] * 2


def test_tables_of_before_2_13_have_neither_a_root_nor_a_count_of_wrong_values() -> None:
    found = records(SAMPLES / "nccl_tests_versions.txt", NAME)
    old = [each for each in found if each.kind is Kind.measurement and each.rank == 0]
    assert column(old, Kind.measurement, a.MESSAGE_SIZE) == [1 << 10, 1 << 10, 1 << 20, 1 << 20, 1 << 30, 1 << 30]
    assert column(old, Kind.measurement, a.WRONG_VALUES) == [], "5e-07 is an error and no count"
    assert max(column(old, Kind.measurement, a.BUS_BANDWIDTH)) == pytest.approx(203.97e9)
    assert column(found, Kind.summary, a.BUS_BANDWIDTH) == [pytest.approx(69.5933e9)], (
        "no version prints GB/s behind it"
    )


def test_a_bandwidth_rounded_to_0_is_absent_and_its_time_is_not() -> None:
    new = [each for each in records(SAMPLES / "nccl_tests_versions.txt", NAME) if each.rank is None]
    assert column(new, Kind.measurement, a.COLLECTIVE_TIME) == pytest.approx([30.25e-6, 29.75e-6])
    assert column(new, Kind.measurement, a.BUS_BANDWIDTH) == []
    assert texts(new, Text.benchmark) == ["all_gather"] * 2


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
    assert column(records(log, NAME), Kind.setting, a.RANKS) == ranks


def test_listed_devices_are_the_ranks_if_none_is_left_out(tmp_path: Path) -> None:
    devices = [
        f"#  Rank {n:2} Group  0 Pid   99 on node0{n // 2} device  {n % 2} [0x04] NVIDIA H100\n" for n in range(4)
    ]
    log = tmp_path / "job.out"
    log.write_text("".join(devices))
    assert column(records(log, NAME), Kind.setting, a.RANKS) == [4]
    log.write_text("".join(devices[1:]))
    assert column(records(log, NAME), Kind.setting, a.RANKS) == []
