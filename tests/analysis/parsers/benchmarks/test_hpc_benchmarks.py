"""HPL, HPCG, OSU, STREAM and elbencho: their results in base units, and no result where their own check failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind
from tests.analysis.parsers.reading import records


def test_osu_with_its_validation_has_no_value_of_a_size_that_failed(tmp_path: Path) -> None:
    text = "# OSU MPI-CUDA Latency Test v7.3\n# Size          Latency (us)        Validation\n"
    (tmp_path / "osu.txt").write_text(f"{text}1  2.50  Pass\n2  2.75  Pass\n4  9.99  Fail\n")
    found = [each for each in records(tmp_path / "osu.txt", "OSU") if each.kind is Kind.measurement]
    assert [each.values.get(a.MESSAGE_LATENCY) for each in found] == [
        pytest.approx(2.5e-6), pytest.approx(2.75e-6), None,
    ]  # fmt: skip
