"""fio's jobs and groups: text of 2 and 3, and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from tests.analysis.parsers.reading import SAMPLES, column, records, texts

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
