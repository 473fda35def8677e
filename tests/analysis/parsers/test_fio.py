"""fio's jobs and groups: text of 2 and 3, and JSON."""

from __future__ import annotations

import pytest

from analysis.parsers import metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import CORPUS, SAMPLES, column, needs_corpus, records, texts

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def test_fio_2_counts_in_1024_and_each_direction_of_a_job_has_its_times() -> None:
    read, write, *groups = records(SAMPLES / "fio_2.txt", "fio")
    assert read.texts == {Text.variant: "seq1", Text.benchmark: "read"}
    assert read.values == pytest.approx({
        a.IO_BANDWIDTH: 102400 * KIB, a.IO_OPERATIONS_PER_S: 800, a.DURATION: 10.24,
        a.COMPLETION_LATENCY["min"]: 200e-6, a.COMPLETION_LATENCY["max"]: 12e-3,
        a.COMPLETION_LATENCY["mean"]: 2500.5e-6,
        a.IO_LATENCY["min"]: 210e-6, a.IO_LATENCY["max"]: 12.5e-3, a.IO_LATENCY["mean"]: 2511e-6,
        a.COMPLETION_LATENCY["median"]: 2.4e-3, a.COMPLETION_LATENCY["p90"]: 3e-3, a.COMPLETION_LATENCY["p95"]: 4e-3,
        a.COMPLETION_LATENCY["p99"]: 8e-3,
    })  # fmt: skip
    assert write.values == pytest.approx({
        a.IO_BANDWIDTH: 50 * MIB, a.IO_OPERATIONS_PER_S: 400, a.DURATION: 10.24,
        a.COMPLETION_LATENCY["min"]: 1e-3, a.COMPLETION_LATENCY["max"]: 20e-3, a.COMPLETION_LATENCY["mean"]: 5.25e-3,
        a.IO_LATENCY["min"]: 1e-3, a.IO_LATENCY["max"]: 20e-3, a.IO_LATENCY["mean"]: 5.5e-3,
    })  # fmt: skip
    assert [each.values for each in groups] == [
        {a.IO_BANDWIDTH: 102400 * KIB, a.DURATION: 10.241},
        {a.IO_BANDWIDTH: 51200 * KIB, a.DURATION: 10.24},
    ]
    assert texts(groups, Text.benchmark) == ["read", "write"], "a torn rate is no rate"


def test_fio_3_prints_both_units_and_suffixes_of_large_numbers() -> None:
    found = records(SAMPLES / "fio_3.txt", "fio")
    assert [(each.kind, each.texts[Text.variant], each.texts[Text.benchmark]) for each in found] == [
        (Kind.measurement, "mixed1", "read"),
        (Kind.measurement, "mixed1", "write"),
        (Kind.measurement, "write1", "write"),
        (Kind.summary, "group 0", "read"),
        (Kind.summary, "group 0", "write"),
        (Kind.summary, "group 1", "write"),
    ]
    assert found[0].values == pytest.approx({
        a.IO_BANDWIDTH: 3839 * KIB, a.IO_OPERATIONS_PER_S: 959, a.DURATION: 2.065,
        a.COMPLETION_LATENCY["min"]: 1172e-9, a.COMPLETION_LATENCY["max"]: 437.949e-3,
        a.COMPLETION_LATENCY["mean"]: 1644055.92e-9, a.COMPLETION_LATENCY["median"]: 65e-6,
        a.COMPLETION_LATENCY["p90"]: 2311e-6, a.COMPLETION_LATENCY["p95"]: 6783e-6,
        a.COMPLETION_LATENCY["p99"]: 20317e-6, a.IO_LATENCY["min"]: 3e-6, a.IO_LATENCY["max"]: 0.688584,
        a.IO_LATENCY["mean"]: 3645.34e-6,
    })  # fmt: skip
    assert found[2].values[a.COMPLETION_LATENCY["median"]] == pytest.approx(954368e-9)
    assert found[5].values == pytest.approx({a.IO_BANDWIDTH: 10.8 * MIB, a.DURATION: 0.739})


def test_a_document_says_nothing_of_directions_that_moved_nothing() -> None:
    (read,) = records(SAMPLES / "fio_3.json", "fio (JSON)")
    assert read.texts == {Text.software: "fio-3.33", Text.variant: "read1", Text.benchmark: "read"}
    assert read.values[a.IO_BANDWIDTH] == 4194304000
    assert read.values[a.IO_OPERATIONS_PER_S] == 64000
    assert read.values[a.DURATION] == 1e-3
    assert read.values[a.COMPLETION_LATENCY["median"]] == pytest.approx(4896e-9)
    assert read.values[a.COMPLETION_LATENCY["p99"]] == pytest.approx(224256e-9)


@needs_corpus
@pytest.mark.parametrize(
    ("file", "rates"),
    [
        ("fio_2_old_aggrb.txt", [56946 * KIB, 472902 * KIB]),
        ("fio_3_four_groups_quoted_printable.txt", [60.8 * GIB, 51.4 * GIB, 4934 * MIB]),
        ("fio_3_rw_and_kib.txt", [35 * MIB, 9696 * KIB]),
        ("fio_3_write_nvme.txt", [512 * MIB]),
    ],
)
def test_groups_of_real_logs_have_their_bandwidth(file: str, rates: list[float]) -> None:
    found = records(CORPUS / "fio" / "excerpts" / file, "fio")
    assert column(found, Kind.summary, a.IO_BANDWIDTH) == pytest.approx(rates)
    assert texts(found, Text.variant) == [f"group {number}" for number in range(len(rates))]


@needs_corpus
def test_a_real_document_has_a_measurement_for_each_direction() -> None:
    found = records(CORPUS / "fio" / "superbench_disk_performance" / "disk_performance.log", "fio (JSON)")
    assert texts(found, Text.benchmark) == ["read", "write"]
    assert column(found, Kind.measurement, a.IO_BANDWIDTH) == [348743777, 348450387]
    assert column(found, Kind.measurement, a.IO_OPERATIONS_PER_S) == [85138.890741, 85066.128925]
    assert column(found, Kind.measurement, a.IO_LATENCY["p99"]) == pytest.approx([2.244608e-3, 2.072576e-3])
