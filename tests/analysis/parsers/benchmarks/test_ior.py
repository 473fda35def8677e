"""IOR's setup, table and best bandwidths."""

from __future__ import annotations

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

NAME = "IOR"
MIB = 1 << 20


def test_each_row_is_a_measurement() -> None:
    found = records(SAMPLES / "ior_4_0.txt", NAME)
    rows = [each for each in found if each.kind is Kind.measurement]
    assert texts(rows, Text.benchmark) == ["write", "read"] * 4 + ["write"]
    mib_per_s = [1595.85, 19373, 4437, 29959, 970.69, 10204, 901.26, 15520, 121.31]
    assert column(rows, Kind.measurement, a.IO_BANDWIDTH) == pytest.approx([each * MIB for each in mib_per_s])
    assert column(rows, Kind.measurement, a.IO_OPERATIONS_PER_S) == [
        1616.46, 19902, 4527, 30897, 3896, 41077, 3616, 62383, 31058
    ]  # fmt: skip
    assert column(rows, Kind.measurement, a.DURATION) == [
        0.005013, 0.000413, 0.001803, 0.000267, 0.016483, 0.001568, 0.017753, 0.001031, 1.06
    ]  # fmt: skip
    assert column(rows, Kind.measurement, a.BLOCK_SIZE) == [4 * MIB] * 4 + [2 * MIB] * 4 + [64 * MIB]
    assert column(rows, Kind.measurement, a.TRANSFER_SIZE) == [MIB] * 4 + [256 << 10] * 4 + [4 << 10]


def test_the_setting_has_the_version() -> None:
    found = [each for each in records(SAMPLES / "ior_4_0.txt", NAME) if each.kind is Kind.setting]
    assert [each.texts for each in found] == [{Text.software: "IOR-4.0.0rc1+dev"}] * 3
    assert [each.values for each in found] == [
        {a.NODES: 1, a.RANKS: 2, a.RANKS_PER_NODE: 2, a.TRANSFER_SIZE: MIB, a.BLOCK_SIZE: 4 * MIB},
        {a.NODES: 1, a.RANKS: 4, a.RANKS_PER_NODE: 4, a.TRANSFER_SIZE: 256 << 10, a.BLOCK_SIZE: 2 * MIB},
        {a.NODES: 1, a.RANKS: 2, a.RANKS_PER_NODE: 2, a.TRANSFER_SIZE: 4 << 10, a.BLOCK_SIZE: 64 * MIB},
    ]


def test_the_best_bandwidths_which_v_prints_are_summaries() -> None:
    found = [each for each in records(SAMPLES / "ior_4_0.txt", NAME) if each.kind is Kind.summary]
    assert texts(found, Text.benchmark) == ["most, write", "most, read", "most, write"]
    assert column(found, Kind.summary, a.IO_BANDWIDTH) == [970.69 * MIB, 15520.09 * MIB, 121.31 * MIB]


def test_a_time_not_taken_and_a_torn_row_are_absent_and_before_3_4_a_row_has_no_operations() -> None:
    found = records(SAMPLES / "ior.txt", NAME)
    new, old = (each for each in found if each.kind is Kind.measurement)
    assert new.values == pytest.approx({
        a.IO_BANDWIDTH: 1024 * MIB, a.IO_OPERATIONS_PER_S: 1025, a.BLOCK_SIZE: 1 << 30, a.TRANSFER_SIZE: MIB,
        a.DURATION: 16,
    })  # fmt: skip
    assert old.values == pytest.approx({
        a.IO_BANDWIDTH: MIB / 2, a.BLOCK_SIZE: 512, a.TRANSFER_SIZE: 256 << 10, a.DURATION: 2
    })  # fmt: skip
    assert column(found, Kind.summary, a.IO_BANDWIDTH) == [MIB / 2]


def test_the_setting_counts_nodes_and_has_larger_and_smaller_units() -> None:
    new, old = (each for each in records(SAMPLES / "ior.txt", NAME) if each.kind is Kind.setting)
    assert new.values == {a.NODES: 2, a.RANKS: 16, a.RANKS_PER_NODE: 8, a.TRANSFER_SIZE: MIB, a.BLOCK_SIZE: 1 << 30}
    assert old.values == {a.TRANSFER_SIZE: 256 << 10, a.BLOCK_SIZE: 512}


def test_the_table_as_csv_has_the_ranks_too() -> None:
    found = records(SAMPLES / "ior_4_0.csv", NAME)
    assert [each.kind for each in found] == [Kind.measurement] * 4
    assert texts(found, Text.benchmark) == ["write", "read"] * 2
    assert found[0].values == pytest.approx({
        a.IO_BANDWIDTH: 3488.712 * MIB, a.IO_OPERATIONS_PER_S: 3613.443, a.BLOCK_SIZE: 4 * MIB, a.TRANSFER_SIZE: MIB,
        a.DURATION: 0.0023, a.RANKS: 2,
    })  # fmt: skip


def test_a_document_has_the_setting_and_each_access() -> None:
    setting, *rows = records(SAMPLES / "ior_4_0.json", NAME + " (JSON)")
    assert setting.texts == {Text.software: "IOR-4.0.0rc1+dev"}
    assert setting.values == {
        a.NODES: 1, a.RANKS: 2, a.RANKS_PER_NODE: 2, a.TRANSFER_SIZE: MIB, a.BLOCK_SIZE: 4 * MIB
    }  # fmt: skip
    assert texts(rows, Text.benchmark) == ["write", "read"] * 2
    mib_per_s = [4431.9683, 22982.4877, 4925.7827, 31865.5575]
    assert column(rows, Kind.measurement, a.IO_BANDWIDTH) == pytest.approx([each * MIB for each in mib_per_s])
    assert column(rows, Kind.measurement, a.IO_OPERATIONS_PER_S) == [4545.4392, 23596.647, 5022.3667, 32768]
    assert column(rows, Kind.measurement, a.DURATION) == [0.0018, 0.0003, 0.0016, 0.0003]


def test_a_document_of_version_3_has_a_list_for_each_repetition() -> None:
    setting, write, read = records(SAMPLES / "ior.json", NAME + " (JSON)")
    assert setting.texts == {Text.software: "IOR-3.3.0"}
    assert setting.values == {a.RANKS: 16, a.RANKS_PER_NODE: 8, a.TRANSFER_SIZE: MIB, a.BLOCK_SIZE: 1 << 30}
    assert write.values == {
        a.IO_BANDWIDTH: 2048 * MIB, a.BLOCK_SIZE: 1 << 30, a.TRANSFER_SIZE: MIB, a.DURATION: 8
    }  # fmt: skip
    assert read.values == {a.IO_BANDWIDTH: 4096 * MIB, a.BLOCK_SIZE: 1 << 30, a.TRANSFER_SIZE: MIB}
    assert [write.texts[Text.benchmark], read.texts[Text.benchmark]] == ["write", "read"]
