"""A run of launcher=local that waits for its turn names the sweep and the number of runs before it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.ranks import started_after_boot_s
from jobs.rundir import SweepDir, append_record, now
from jobs.submit.states import states
from tests.support.fake_runs import a_run, prepared
from tests.support.paths import ROOT


@pytest.fixture
def queue_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SweepDir]]:
    """Return a function that gives runs to a new local queue, which lives and waits for their names."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *runs: str) -> SweepDir:
        sweep = SweepDir(tmp_path / "runs" / name)
        command = [sys.executable, "-m", "jobs.submit.local_queue", str(sweep.path)]
        queue = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        started.append(queue)
        for run in runs:
            prepared(sweep.path, a_run(run))
            append_record(sweep.submissions, {
                "event": "submitted", "run": run, "launcher": "local", "job_id": str(queue.pid), "events_before": 1,
                "host": socket.gethostname(), "process_started": started_after_boot_s(queue.pid), "time": now(),
            })  # fmt: skip
        return sweep

    yield start
    for queue in started:
        queue.kill()
        queue.communicate()


def append(sweep: SweepDir, event: str, run: str, **more: str) -> None:
    append_record(sweep.submissions, {"event": event, "run": run, "time": now(), **more})


def details(sweep: SweepDir) -> dict[str, str]:
    return {item.run.name: item.detail for item in states(sweep)}


def test_runs_wait_behind_those_of_their_queue_and_of_the_one_that_runs(
    queue_of: Callable[..., SweepDir], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = queue_of("x", "a", "b", "c"), queue_of("y z", "d", "e")
    assert details(first) == {"a": "", "b": "its turn, behind 1 run of this sweep",
                              "c": "its turn, behind 2 runs of this sweep"}  # fmt: skip
    append(first, "launched", "a", log_id="1")
    assert details(second) == {
        "d": "its turn, behind runs/x (3 runs)",
        "e": "its turn, behind runs/x (3 runs) and 1 run of this sweep",
    }
    assert details(first)["b"] == "its turn, behind 1 run of this sweep", "its own queue has the turn"
    append(first, "ended", "a")
    assert details(second)["d"] == "", "no queue runs anything now"
    append(first, "launched", "b", log_id="2")
    assert main(["cancel", str(first.path / "c")]) == 0
    capsys.readouterr()
    assert main(["status", str(second.path / "d")]) == 0
    assert "queued     -  " in capsys.readouterr().out
    assert details(second)["d"] == "its turn, behind runs/x (1 run)"


def test_a_queue_with_another_record_of_sweeps_takes_no_turns_with_this_one(
    queue_of: Callable[..., SweepDir], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = queue_of("x", "a")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    there = queue_of("y", "b")
    append(there, "launched", "b", log_id="1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert details(here) == {"a": ""}
