"""Checkpoints in a report: number, size, the stall of training, GB/s, and those that failed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from analysis.report.report import report
from jobs import metrics as m
from jobs.rundir import RunDir
from tests.support.fake_runs import a_run, ended, event, finished_run, prepared, started, step
from tests.support.measured_runs import only

FULL = "OSError: [Errno 28] No space left on device: 'checkpoints/.step-00000006.writing/__0_0.distcp' " + "x" * 200


def saved(directory: RunDir, number: int, size: Any, time_s: Any, *, attempt: int = 1) -> None:
    """A checkpoint that was written."""
    sizes = {"checkpoint_size_bytes": size, "checkpoint_write_time_s": time_s}
    event(directory, "checkpoint", attempt=attempt, step=number, **sizes)


def saving(directory: RunDir) -> None:
    """Two starts of steps of 2 s: stalls of 0.1, 0.3, 0.2 and 0.2 s, three checkpoints written, one not."""
    started(directory, a_run())
    for number, stall in ((1, None), (2, 0.1), (3, None), (4, 0.3), (5, None)):
        step(directory, number, step_time_s=2.0, checkpoint_time_s=stall)
    saved(directory, 2, 3e9, 1.5)
    saved(directory, 4, 3e9, 6.0)
    started(directory, a_run(), attempt=2, from_step=4)
    for number, stall in ((5, None), (6, 0.2), (7, None), (8, 0.2)):
        step(directory, number, attempt=2, step_time_s=2.0, checkpoint_time_s=stall)
    event(directory, "checkpoint_failed", attempt=2, step=6, error=FULL)
    saved(directory, 8, 3e9, 2.0, attempt=2)
    ended(directory, attempt=2)


def test_stalls_sizes_and_bandwidth_are_those_of_all_starts(tmp_path: Path) -> None:
    saving(prepared(tmp_path, a_run(steps=8)))
    values = only(tmp_path).values
    assert values[m.CHECKPOINT_STALL] == pytest.approx(0.2)
    assert values[m.CHECKPOINT_STALL_SHARE] == pytest.approx(0.8 / 18)
    assert values[m.CHECKPOINT_SIZE] == 3e9
    assert values[m.CHECKPOINT_BANDWIDTH] == 1.5e9
    assert (values[m.CHECKPOINT_BANDWIDTH_LOW], values[m.CHECKPOINT_BANDWIDTH_HIGH]) == (0.5e9, 2e9)


def test_the_report_has_a_row_of_each_run_that_saved_or_could_not_with_the_first_words_of_failures(
    tmp_path: Path,
) -> None:
    saving(prepared(tmp_path, a_run("saving", steps=8)))
    finished_run(tmp_path, a_run("never"))
    page = report([tmp_path], None).read_text()
    assert ">Checkpoints</h2>" in page
    text = (tmp_path / "report.md").read_text()
    section = text[text.index("## Checkpoints") :].split("\n## ")[0].splitlines()
    assert section[2] == (
        "| Run | Written | Checkpoint size (GB) | Checkpoint stall (s) | Checkpoint stall share (%) | "
        "Checkpoint bandwidth (GB/s) | Failed |"
    )
    assert len(section) == 5
    assert section[4].startswith("| saving | 3 | 3.000 | 0.200 | 4.44 | 1.50 (0.500 to 2.00) | 1: OSError: ")
    assert "No space left on device" in section[4]
    assert len(section[4]) < 250
    never, row = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert (row["checkpoints"], row["checkpoints_failed"], row["checkpoint_bandwidth_bytes_per_s"]) == (
        "3",
        "1",
        "1500000000.0",
    )
    assert (never["checkpoints"], never["checkpoint_stall_s"], never["checkpoint_size_bytes"]) == ("0", "", "")


def test_a_report_of_runs_that_never_save_reports_nothing_of_checkpoints(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run())
    assert ">Checkpoints</h2>" not in report([tmp_path], None).read_text()
    assert "## Checkpoints" not in (tmp_path / "report.md").read_text()


def test_a_checkpoint_without_a_size_or_a_time_has_no_bandwidth(tmp_path: Path) -> None:
    directory = prepared(tmp_path, a_run())
    started(directory, a_run())
    for number in range(1, 7):
        step(directory, number)
    for size, time_s in ((1e9, 0), (1e9, None), ("much", 1.0), (None, 1.0), (1e9, True)):
        saved(directory, 6, size, time_s)
    ended(directory)
    values = only(tmp_path).values
    assert m.CHECKPOINT_BANDWIDTH not in values
    assert values[m.CHECKPOINT_SIZE] == 1e9
    assert "| run | 5 | 1.000 | — | — | — | none |" in markdown(tmp_path)


def markdown(path: Path) -> str:
    """The report's tables as Markdown."""
    report([path], None)
    return (path / "report.md").read_text()
