"""IOR's setup, table and best bandwidths."""

from __future__ import annotations

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.record import Kind, Text
from tests.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records, texts

NAME = "IOR"
MIB = 1 << 20


def test_each_whole_row_is_a_measurement_and_a_time_not_taken_is_absent() -> None:
    rows = [each for each in records(SAMPLES / "ior.txt", NAME) if each.kind is Kind.measurement]
    assert texts(rows, Text.benchmark) == ["write", "read", "write", "write"]
    assert rows[0].values == pytest.approx({
        a.IO_BANDWIDTH: 2048 * MIB, a.IO_OPERATIONS_PER_S: 2050, a.BLOCK_SIZE: 1 << 30, a.TRANSFER_SIZE: MIB,
        a.DURATION: 8,
    })  # fmt: skip
    assert rows[1].values[a.IO_BANDWIDTH] == 4096 * MIB
    assert rows[2].values[a.DURATION] == 16


def test_before_3_4_a_row_has_no_operations() -> None:
    old = [each for each in records(SAMPLES / "ior.txt", NAME) if each.kind is Kind.measurement][-1]
    assert old.values == pytest.approx({
        a.IO_BANDWIDTH: MIB / 2, a.BLOCK_SIZE: 512, a.TRANSFER_SIZE: 256 << 10, a.DURATION: 2
    })  # fmt: skip


def test_what_was_set_up_is_said_with_the_version() -> None:
    new, old = (each for each in records(SAMPLES / "ior.txt", NAME) if each.kind is Kind.setting)
    assert new.texts == {Text.software: "IOR-4.0.0"}
    assert new.values == {a.NODES: 2, a.RANKS: 16, a.RANKS_PER_NODE: 8, a.TRANSFER_SIZE: MIB, a.BLOCK_SIZE: 1 << 30}
    assert old.values == {a.TRANSFER_SIZE: 256 << 10, a.BLOCK_SIZE: 512}


def test_the_best_bandwidths_are_summaries() -> None:
    found = [each for each in records(SAMPLES / "ior.txt", NAME) if each.kind is Kind.summary]
    assert texts(found, Text.benchmark) == ["write", "read", "write"]
    assert column(found, Kind.summary, a.IO_BANDWIDTH) == [2048 * MIB, 4096 * MIB, MIB / 2]


def test_a_document_has_the_setting_and_each_access() -> None:
    setting, write, read = records(SAMPLES / "ior.json", NAME + " (JSON)")
    assert setting.texts == {Text.software: "IOR-4.0.0"}
    assert setting.values == {
        a.NODES: 2, a.RANKS: 16, a.RANKS_PER_NODE: 8, a.TRANSFER_SIZE: MIB, a.BLOCK_SIZE: 1 << 30
    }  # fmt: skip
    assert write.values == {
        a.IO_BANDWIDTH: 2048 * MIB, a.IO_OPERATIONS_PER_S: 2050.5, a.BLOCK_SIZE: 1 << 30, a.TRANSFER_SIZE: MIB,
        a.DURATION: 8,
    }  # fmt: skip
    assert read.values == {a.IO_BANDWIDTH: 4096 * MIB, a.BLOCK_SIZE: 1 << 30, a.TRANSFER_SIZE: MIB}
    assert [write.texts[Text.benchmark], read.texts[Text.benchmark]] == ["write", "read"]


@needs_corpus
@pytest.mark.parametrize(
    ("phase", "mib_per_s", "seconds"),
    [
        ("easy-write", 17922, 351.05),
        ("easy-read", 21134, 297.70),
        ("hard-write", 0.113342 * 1024, None),
        ("hard-read", 261.62, 164.50),
    ],
)
def test_real_tables_have_their_one_row(phase: str, mib_per_s: float, seconds: float | None) -> None:
    found = records(CORPUS / "ior" / "io500_aion_2021" / f"ior-{phase}.txt", NAME)
    assert [each.kind for each in found] == [Kind.setting, Kind.measurement]
    assert found[0].values[a.NODES] == 64
    assert found[0].values[a.RANKS] == 128
    assert found[1].texts[Text.benchmark] == phase.partition("-")[2]
    assert found[1].values[a.IO_BANDWIDTH] == pytest.approx(mib_per_s * MIB, rel=1e-3)
    if seconds is not None:
        assert found[1].values[a.DURATION] == seconds
