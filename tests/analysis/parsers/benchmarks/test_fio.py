"""fio's jobs and groups: text of 2 and 3, and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

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


def test_a_document_has_no_record_of_directions_without_transfers() -> None:
    (read,) = records(SAMPLES / "fio_3.json", "fio (JSON)")
    assert read.texts == {Text.software: "fio-3.33", Text.variant: "read1", Text.benchmark: "read"}
    assert read.values[a.IO_BANDWIDTH] == 4194304000
    assert read.values[a.IO_OPERATIONS_PER_S] == 64000
    assert read.values[a.DURATION] == 1e-3
    assert read.values[a.COMPLETION_LATENCY["median"]] == pytest.approx(4896e-9)
    assert read.values[a.COMPLETION_LATENCY["p99"]] == pytest.approx(224256e-9)


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
