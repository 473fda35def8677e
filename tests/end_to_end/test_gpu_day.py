"""`make gpu-day` at its smallest, on a CPU: every stage leaves its figures, and a second run measures nothing again."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import limit_s

DENSE = ("rate_before", "dense", "rate_after")
CHOICES = ("choices_bfloat16", "choices_float32")


def gpu_day(where: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--output", str(where), "--rehearsal", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s(1500), check=False)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(2000)
def test_stages_leave_figures_and_are_not_measured_again(tmp_path: Path) -> None:
    first = gpu_day(tmp_path)
    # Without samples and a tokenizer; every other stage has its file.
    assert first.stderr.splitlines()[-1].endswith("epoch_stock, epoch_padded, epoch_packed, epoch_everything")
    for stage in ("works", "graphs", *DENSE, *CHOICES):
        with (tmp_path / f"{stage}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows, stage
        assert all(row["device"] == "CPU, rehearsal" and "torch" in row["versions"] for row in rows)
    (ratio, *_) = (tmp_path / "summary.csv").read_text().splitlines()[1:]
    assert ratio.startswith("dense,")
    assert "of the matrix rate" in ratio
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.csv") if file.stem != "summary"}
    gpu_day(tmp_path)
    assert written == {file: file.stat().st_mtime_ns for file in written}
