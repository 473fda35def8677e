"""Notices: each event of a run or sweep is told once, by the job itself or by whoever watches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from jobs.cli import main
from jobs.rundir import NOTICES, RunDir, SweepDir, append_record, event_record, read_records
from jobs.submit.notices import tell_end
from tests.support.fake_runs import a_run, ended, prepared, started
from tests.support.real_run import SMALL
from tests.support.waiting import limit_s

LOCAL = [*SMALL, "launcher=local", "ranks_per_node=1", "launcher.requeue_pause_s=0"]


def teller(place: Path, before: str = "") -> str:
    """Write a program that appends what it is told to told.jsonl, and return its path."""
    program = place / "tell"
    program.write_text(f"#!/bin/bash\n{before}\n{{ cat; echo; }} >> {place}/told.jsonl\n")
    program.chmod(0o755)
    return str(program)


def rank_of(run: RunDir) -> psutil.Process:
    """Return the process of the rank of a run on this machine."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if "SUBMITIT_LOCAL_GLOBALID" in process.environ() and str(run.path.parent) in " ".join(process.cmdline()):
                return process
    raise AssertionError("no rank runs")


def told(place: Path) -> list[dict[str, object]]:
    """Return what was told."""
    file = place / "told.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_killed_run_tells_of_its_restart_and_its_end_once_whoever_else_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["sweep=s", "name=r", "job.steps=400", "job.checkpoint_every_steps=5", f"notify.command={teller(tmp_path)}"]
    assert main(["submit", *LOCAL, *line]) == 0
    run = RunDir(tmp_path / "runs/s/r")
    deadline = time.monotonic() + limit_s(120)
    while not any(each["event"] == "checkpoint" for each in read_records(run.status)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    rank_of(run).kill()
    watchers = [
        subprocess.Popen([sys.executable, "-m", "slurmscale", "watch", "runs/s"], stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [each.wait(limit_s(200)) for each in watchers] == [0, 0]
    events = [(each["event"], each["run"]) for each in told(tmp_path)]
    assert sorted(events, key=str) == [("finished", "r"), ("requeued", "r"), ("sweep_ended", None)]
    assert next(each for each in told(tmp_path) if each["event"] == "sweep_ended")["counts"] == {"finished": 1}


def failed_run(place: Path, **notify: str) -> tuple[SweepDir, RunDir]:
    """A sweep of the user with a run that failed, whose configuration names whom to tell."""
    sweep = SweepDir(place / "runs/s")
    run = a_run("r")
    for key, value in notify.items():
        setattr(run.notify, key, value)
    directory = prepared(sweep.path, run)
    started(directory, run)
    ended(directory, "failed", step=2, error="CUDA out of memory\nTraceback", cause="out_of_gpu_memory")
    record = event_record("submitted", run="r", launcher="local", job_id="1", events_before=1, host="login")
    append_record(sweep.submissions, record)
    return sweep, directory


def test_a_notice_names_cause_step_and_the_first_line_of_the_error(tmp_path: Path) -> None:
    sweep, run = failed_run(tmp_path, command=teller(tmp_path))
    tell_end(sweep, run)
    tell_end(sweep, run)
    first, second = told(tmp_path)
    assert (first["event"], first["cause"], first["detail"]) == ("failed", "out_of_gpu_memory", "CUDA out of memory")
    assert (second["event"], second["counts"]) == ("sweep_ended", {"failed": 1})


def test_who_is_killed_before_the_command_has_ended_is_followed_by_another_teller(tmp_path: Path) -> None:
    sweep, run = failed_run(tmp_path, command=teller(tmp_path, f"[ -e {tmp_path}/again ] || sleep 300"))
    program = (
        "from pathlib import Path; from jobs.rundir import RunDir, SweepDir; from jobs.submit.notices import tell_end\n"
        f"tell_end(SweepDir(Path({str(sweep.path)!r})), RunDir(Path({str(run.path)!r})))"
    )
    first = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    deadline = time.monotonic() + limit_s(60)
    while not (run.path / f".{NOTICES}.lock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not told(tmp_path)
    (tmp_path / "again").touch()
    tell_end(sweep, run)
    assert [each["event"] for each in told(tmp_path)] == ["failed", "sweep_ended"]


def test_a_command_that_fails_is_named_and_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, run = failed_run(tmp_path, command=teller(tmp_path, "echo 'no route to host' >&2; exit 7"))
    tell_end(sweep, run)
    assert "nobody was told of failed" in (said := capsys.readouterr().err)
    assert "ended with 7: no route to host" in said


def test_only_the_events_that_were_chosen_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["sweep=s", "job.steps=3", f"notify.command={teller(tmp_path)}", "notify.events=[sweep_ended]", "--wait"]
    assert main(["submit", *LOCAL, *line, "-m", "job.seed=1,2"]) == 0
    assert [(each["event"], each["counts"]) for each in told(tmp_path)] == [("sweep_ended", {"finished": 2})]


def test_apprise_reads_its_addresses_from_its_own_file(tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    (tmp_path / "apprise.yml").write_text("urls:\n  - json://127.0.0.1:9/\n")
    sweep, run = failed_run(tmp_path, apprise=str(tmp_path / "apprise.yml"))
    tell_end(sweep, run)
    first, _ = *read_records(run.path / NOTICES), None
    assert first["event"] == "failed"
    assert len(first["failures"]) == 1, "nobody listens at this address, and apprise tried it"
