"""Many run directories at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from analysis.load import read
from analysis.load.discover import read_runs
from jobs import metrics as m
from tests.support.fake_runs import a_run, finished_run


def test_several_processes_read_the_same_runs_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(1, 5):
        finished_run(tmp_path, a_run(f"run-{i}", nodes=i), step_time_s=1.0 / i)
    alone = read_runs([tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(read, "FEWEST_FOR_PROCESSES", 2)
    together = read_runs([tmp_path], may_spawn=True)
    assert [repr(run) for run in together] == [repr(run) for run in alone]
    assert [run.values[m.FINAL_LOSS] for run in together] == [run.values[m.FINAL_LOSS] for run in alone]
