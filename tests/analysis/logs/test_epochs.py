"""The time of an epoch, of our runs and of logs."""

from __future__ import annotations

import csv
from pathlib import Path

from analysis.load.discover import read_runs
from analysis.report.report import report
from jobs import metrics as m
from tests.support.fake_events import killed_once
from tests.support.fake_runs import a_run, prepared, with_job
from tests.support.megatron_logs import write


def litgpt(epochs: int, steps: int, *, every: int = 1, time_ms: float = 500.0) -> str:
    """Return a log of LitGPT of epochs of so many steps, which prints every nth of them."""
    numbers = [(epoch, epoch * steps + step) for epoch in range(epochs) for step in range(1, steps + 1)]
    return "".join(
        f"Epoch {epoch + 1} | iter {step} step {step} | loss train: {9 - step / 100:.3f}, val: n/a | "
        f"iter time: {time_ms:.2f} ms (step)\n"
        for epoch, step in numbers
        if step % every == 0
    )


def test_whole_epochs_of_a_log_give_the_time_of_an_epoch_in_runs_csv(tmp_path: Path) -> None:
    write(tmp_path / "train.out", litgpt(3, 20))
    (run,) = read_runs([tmp_path])
    assert run.values[m.EPOCH_TIME] == 10.0
    report([tmp_path], tmp_path / "out")
    (row,) = csv.DictReader((tmp_path / "out" / "runs.csv").read_text().splitlines())
    assert row["epoch_time_s"] == "10.0"
    assert "Epoch time (s)" in (tmp_path / "out" / "report.html").read_text()


def test_torn_epochs_and_logs_of_some_steps_have_no_time_of_an_epoch(tmp_path: Path) -> None:
    for name, text in {"torn": litgpt(2, 20), "some": litgpt(4, 20, every=5)}.items():
        (run,) = read_runs([write(tmp_path / name / "train.out", text)])
        assert m.EPOCH_TIME not in run.values


def test_a_run_of_ours_over_epochs_has_the_mean_time_of_one(tmp_path: Path) -> None:
    killed_once(prepared(tmp_path, with_job(a_run("two", steps=10), epochs=2, steps=None)))
    (found,) = read_runs([tmp_path])
    assert found.values[m.EPOCH_TIME] == found.values[m.USEFUL_TIME] / 2
