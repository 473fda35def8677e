"""`make gpu-day` at its smallest, on a CPU: every stage leaves its figures once, also if it was killed in between."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from contextlib import suppress
from email.message import Message
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import cast

import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.benchmarks.gpu_wheels import SOURCES, missing, wanted
from tests.support.paths import ROOT
from tests.support.waiting import limit_s, wait_until

DENSE = ("rate_before", "dense", "rate_after")
CHOICES = ("choices_bfloat16", "techniques", "choices_float32")


def command(where: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "tests.benchmarks.gpu", "--output", str(where), "--rehearsal", *options]


def gpu_day(where: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(where, *options), cwd=ROOT, capture_output=True, text=True, timeout=limit_s(1500), check=False
    )


def with_a_run_killed(where: Path, runs: Path) -> None:
    """Kill the command while a run of the stage `graphs` starts; the run goes on."""
    day = subprocess.Popen(command(where), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: list(runs.glob("gpu-day-*/graphs/*/heartbeats")), 900)
    os.killpg(day.pid, signal.SIGKILL)
    day.wait()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_stages_leave_figures_and_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setenv("TMPDIR", str(runs))
    with_a_run_killed(tmp_path, runs)
    works = (tmp_path / "works.csv").stat().st_mtime_ns
    assert not (tmp_path / "graphs.csv").exists()
    again = gpu_day(tmp_path)
    assert (tmp_path / "works.csv").stat().st_mtime_ns == works
    assert not list(runs.glob("gpu-day-*"))
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(runs) in " ".join(each.info["cmdline"] or ())]
    # Without samples and a tokenizer; every other stage has its file.
    assert again.stderr.splitlines()[-1].endswith("epoch_stock, epoch_padded, epoch_packed, epoch_larger, epoch_whole")
    for stage in ("works", "graphs", *DENSE, *CHOICES, "memory_1"):
        with (tmp_path / f"{stage}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows, stage
        assert all(row["device"] == "CPU, rehearsal" and "torch" in row["versions"] for row in rows)
        assert all(row["command"].startswith("python -m tests.benchmarks.gpu") and row["date"] for row in rows)
    (ratio, *_) = (tmp_path / "summary.csv").read_text().splitlines()[1:]
    assert ratio.startswith("dense,")
    assert "of the matrix rate" in ratio
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.csv") if file.stem != "summary"}
    gpu_day(tmp_path)
    assert written == {file: file.stat().st_mtime_ns for file in written}


def test_the_wheels_have_all_that_they_need_beside_what_the_machine_has() -> None:
    carried = []
    for name in {canonicalize_name(Requirement(text).name) for text in [*wanted(), *SOURCES]}:
        with suppress(PackageNotFoundError):  # Liger and torchao are for GPUs
            carried.append(cast(Message, metadata(name)))
    assert len(carried) > 20
    assert missing(carried) == []
