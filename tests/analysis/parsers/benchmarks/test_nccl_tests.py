"""Tables of nccl-tests and rccl-tests, in both layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from tests.analysis.parsers.reading import column, records

NAME = "nccl-tests"


@pytest.mark.parametrize("wrong", ["9" * 400, "²", "1e-07"])
def test_anything_but_a_count_of_wrong_values_is_absent(wrong: str, tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(
        f"{1 << 20:12} 262144 float     sum      -1    41.30   25.39   25.39      0 40.11 26.14 26.14 {wrong}\n"
    )
    outside, inside = (each.values for each in records(log, NAME))
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
