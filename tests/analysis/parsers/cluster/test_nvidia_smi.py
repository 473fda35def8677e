"""nvidia-smi's tables: queries with units, dmon with placeholders, foreign lines between."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, Record, Text
from analysis.parsers.cluster import nvidia_smi
from tests.analysis.parsers.reading import column, texts


def parsed(*lines: str) -> list[Record]:
    return list(nvidia_smi.parse(Line(number, text) for number, text in enumerate(lines, 1)))


def test_a_query_without_units_and_with_one_column_is_read() -> None:
    found = parsed("index, power.draw [W]", "0, 300.5", "power.draw [W]", "12.00 W", "no row")
    assert column(found, Kind.sample, a.POWER) == [300.5, 12]


@pytest.mark.parametrize(
    "lines",
    [
        ("# gpu    pwr", "# Idx      W", "    0      -"),
        ("# gpu    pwr", "# Idx      W", "    0    abc"),
        ("index, power.draw [W]", "0, nan W"),
        ("index, power.draw [W]", "0"),
        ("0, 300.5 W",),
    ],
)
def test_a_torn_line_or_an_absent_value_gives_no_record(lines: tuple[str, ...]) -> None:
    assert parsed(*lines) == []


def test_tables_are_read_past_what_is_typed_between_and_a_lost_first_character() -> None:
    dmon = parsed("$ nvidia-smi dmon -c 1", "# gpu    pwr  mtemp", "# Idx      W      C", "    0    119      -", "^C")
    assert column(dmon, Kind.sample, a.POWER) == [119]
    assert column(dmon, Kind.sample, a.GPU_MEMORY_TEMPERATURE) == []
    table = parsed(
        "timestamp, index, power.draw [W], memory.total [MiB]",
        "026/03/01 12:00:00.123, 0, 38.50 W, 24576 MiB",
        "2026/03/01 12:00:01.123, 0, 36.25 W, 24576 MiB",
    )
    assert column(table, Kind.sample, a.POWER) == [38.5, 36.25]
    assert texts(table, Text.timestamp) == ["2026/03/01 12:00:01.123"]


@pytest.mark.parametrize(
    ("cell", "names"),
    [("NVIDIA A100-SXM4-40GB          On ", ["NVIDIA A100-SXM4-40GB"]), ("Tesla V100-SXM2...  Off", [])],
)
def test_the_summary_names_the_gpu_unless_the_driver_cut_its_name(cell: str, names: list[str]) -> None:
    found = parsed(
        "| NVIDIA-SMI 535.154.05             Driver Version: 535.154.05   CUDA Version: 12.2     |",
        "| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |",
        f"|   0  {cell} | 00000000:03:00.0 Off |                    0 |",
        "| N/A   43C    P0              53W / 400W |      0MiB / 40960MiB |      0%      Default |",
    )
    assert texts(found, Text.gpu_name) == names
    assert {each.kind for each in found} <= {Kind.setting}
