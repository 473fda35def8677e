"""Paths of commands on sweeps: a run directory is this run only, and a wrong path is answered by a right one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.errors import RunDirError
from jobs.ranks import started_after_boot_s
from jobs.rundir import RunDir, SweepDir, append_record, now
from jobs.submit.states import State, states
from jobs.submit.sweeps.sweep_at import open_sweep, sweep_at
from jobs.submit.trust.own_sweeps import own
from tests.support.cli import printed, small
from tests.support.fake_runs import a_run, event, finished_run, prepared
from tests.support.paths import ROOT
from tests.support.waiting import wait_until


def given_record(run: str) -> dict[str, object]:
    """The record of a run that was submitted to Slurm."""
    return {"time": now(), "event": "submitted", "run": run, "launcher": "slurm", "job_id": "7", "events_before": 0,
            "host": "h"}  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sweeps, links, and what is none, in a directory `runs` below the current one."""
    where = tmp_path / "runs"
    for sweep in ("demo", "two words", "nest/deep"):
        for name in ("r1", "r2"):
            finished_run(where / sweep, a_run(name, steps=1))
    prepared(where / "demo", a_run("moved")).path.rename(tmp_path / "moved")
    append_record(SweepDir(where / "demo").submissions, given_record("moved"))
    (where / "demo/logs").mkdir()
    (where / "empty").mkdir()
    (where / "notes.txt").write_text("mine")
    (tmp_path / "config.yaml").write_text("of: something else")
    for link, target in {"latest": "demo", "a run": "demo/r1", "gone": "nowhere", "loop": "loop"}.items():
        (where / link).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    return where


@pytest.mark.parametrize(
    ("given", "sweep", "run"),
    [
        ("runs/demo", "demo", None),
        ("runs/demo/", "demo", None),
        ("./runs/./demo//", "demo", None),
        ("runs/demo/r1/..", "demo", None),
        ("runs/latest", "latest", None),
        ("runs/two words", "two words", None),
        ("runs/nest/deep", "nest/deep", None),
        ("runs/demo/r1", "demo", "r1"),
        ("runs/demo/r2///", "demo", "r2"),
        ("runs/latest/r1", "latest", "r1"),
        ("runs/a run", "demo", "r1"),
        ("runs/empty/../demo/r1", "demo", "r1"),
        ("runs/demo/moved", "demo", "moved"),
    ],
)
def test_a_sweep_and_a_run_of_it_are_found_by_any_path(given: str, sweep: str, run: str | None, runs: Path) -> None:
    assert open_sweep(Path(given)) == SweepDir(runs / sweep, run)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("runs", "is not a sweep directory, but contains the sweeps demo, nest/deep, two words. `slurmscale list"),
        ("runs/nest", "but contains the sweep deep."),
        ("runs/empty", "it contains no run with a config.yaml, and no sweep"),
        ("runs/demp", "does not exist. Did you mean {runs}/demo?"),
        ("runs/two word", "Did you mean '{runs}/two words'?"),
        ("runs/another", "does not exist. `slurmscale list {runs}` shows the sweeps there"),
        ("runs/demo/x", "does not exist. The sweep {runs}/demo has the runs r1, r2."),
        ("nowhere/at/all", "does not exist. `slurmscale list` shows the sweeps in runs"),
        ("runs/demo/logs", "is not a run of the sweep {runs}/demo. Pass {runs}/demo"),
        ("runs/demo/submissions.jsonl", "is not a run of the sweep {runs}/demo"),
        ("runs/demo/r1/status.jsonl", "is inside the run {runs}/demo/r1. Pass {runs}/demo/r1"),
        ("runs/demo/r1/x/y", "is inside the run {runs}/demo/r1"),
        ("runs/notes.txt", "is a file. Pass the directory of a sweep or of a run"),
        ("runs/gone", "is a link to nowhere, which leads nowhere"),
        ("runs/loop", "is a link to loop, which leads nowhere"),
    ],
)
def test_a_wrong_path_is_answered_by_what_to_pass(given: str, words: str, runs: Path) -> None:
    with pytest.raises(RunDirError) as refusal:
        sweep_at(Path(given))
    assert str(refusal.value).startswith(f"{given} ")
    assert words.format(runs=runs) in str(refusal.value)


def test_where_no_runs_are_a_missing_path_is_not_answered_by_a_list_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunDirError, match=r"does not exist\. Pass the directory that `slurmscale submit` printed"):
        sweep_at(Path("nowhere"))


@pytest.mark.usefixtures("runs")
def test_every_command_on_a_sweep_answers_a_wrong_path_alike(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "watch", "cancel", "resume", "logs"):
        assert main([command, "runs/demp"]) == 2
        assert "runs/demp does not exist. Did you mean " in printed(capsys)
    assert main(["logs", "runs/demo"]) == 2
    assert "runs/demo is a sweep of 2 runs. Pass the directory of one of them: r1, r2." in printed(capsys)


def test_the_load_of_a_run_is_a_part_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished_run(tmp_path / "s", a_run("r", steps=1))
    finished_run(run.path, a_run("served", steps=1))
    assert main(["resume", "--trust", str(run.path / "served")]) == 2
    assert f"is inside the run {run.path}" in printed(capsys)
    assert sweep_at(run.path) == SweepDir(tmp_path / "s", "r")


def test_a_link_in_a_received_sweep_cancels_no_run_of_another_one(tmp_path: Path) -> None:
    mine = prepared(tmp_path / "mine", a_run("r"))
    received = SweepDir(tmp_path / "received")
    finished_run(received.path, a_run("x", steps=1))
    received.submissions.touch()
    (received.path / "r").symlink_to(mine.path)
    assert sweep_at(received.path / "r") == SweepDir(received.path, "r")


@pytest.fixture
def received(tmp_path: Path) -> Path:
    """A folder that was unpacked, with links to runs and sweeps of mine and to its own, below a link of mine."""
    for sweep in ("mine", "disk/received/own"):
        for name in ("r1", "r2"):
            prepared(tmp_path / sweep, a_run(name))
        (tmp_path / sweep / "submissions.jsonl").touch()
    where = tmp_path / "disk/received"
    prepared(where / "without ledger", a_run("x"))
    for link, target in {
        "run": tmp_path / "mine/r1",
        "sweep": tmp_path / "mine",
        "chain": where / "one more",
        "one more": Path("../../mine"),
        "without ledger/r1": tmp_path / "mine/r1",
        "without ledger/sweep": tmp_path / "mine",
        "inside": Path("own"),
        "inside too": where / "inside",
        "inside run": Path("own/r1"),
    }.items():
        (where / link).symlink_to(target)
    (tmp_path / "work").symlink_to("disk")
    return tmp_path / "work/received"


@pytest.mark.parametrize("command", ["cancel", "remove", "resume", "note", "clone", "status"])
@pytest.mark.parametrize(
    "link",
    [
        "run",
        "sweep",
        "sweep/r1",
        "chain",
        "chain/r1",
        "without ledger/r1",
        "without ledger/sweep/r1",
        "sweep/../mine/r1",
    ],
)
def test_a_link_in_a_received_folder_leads_no_command_to_a_sweep_of_mine(
    command: str, link: str, received: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path for path in (received.parent.parent / "mine").rglob("*") if path.name != ".lock"}
    assert main([command, str(received / link), *(["words"] if command == "note" else [])]) == 2
    assert "link" in printed(capsys)
    assert {path for path in (received.parent.parent / "mine").rglob("*") if path.name != ".lock"} == before


@pytest.mark.parametrize(
    ("link", "sweep", "run"),
    [
        ("own", "own", None),
        ("inside", "inside", None),
        ("inside too", "inside too", None),
        ("inside/r1", "inside", "r1"),
        ("inside too/../own", "own", None),
    ],
)
def test_a_link_within_its_folder_and_one_of_mine_on_the_way_are_followed(
    link: str, sweep: str, run: str | None, received: Path
) -> None:
    found = sweep_at(received / link)
    assert (found.path.resolve(), found.only) == ((received / sweep).resolve(), run)
    assert sweep_at(received / "inside run").path.resolve() == (received / "own").resolve()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with links to a sweep of mine and its run, and to links of a received folder."""
    home, mine = tmp_path / "home/me", SweepDir(tmp_path / "disk/mine")
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    for name in ("r1", "r2"):
        prepared(mine.path, a_run(name))
    own(mine)
    prepared(tmp_path / "received", a_run("theirs"))
    for link, target in {
        home / "current": mine.path,
        home / "relative": Path("../../disk/mine"),
        home / "twice": Path("current"),
        home / "run": mine.path / "r1",
        home / "theirs": tmp_path / "received/sweep",
        home / "their run": tmp_path / "received/sweep/r1",
        home / "work": tmp_path / "received",
        mine.path.parent / "beside": Path("../disk/../disk/mine"),
        tmp_path / "received/sweep": mine.path,
    }.items():
        link.symlink_to(target)
    return home


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ("~/current", None),
        ("current/", None),
        ("../me/relative", None),
        ("~/twice", None),
        ("~/twice/r2", "r2"),
        ("run/", "r1"),
        ("~/run/..", None),
        ("../../disk/beside", None),
        ("~/relative/../../disk/mine", None),
    ],
)
def test_a_link_of_mine_in_the_home_directory_is_followed(given: str, run: str | None, home: Path) -> None:
    found = sweep_at(Path(given))
    assert (found.path.resolve(), found.only) == (home.parent.parent / "disk/mine", run)


@pytest.mark.parametrize("given", ["~/theirs", "theirs/r1", "~/their run", "work/sweep", "~/work/sweep/r2"])
def test_a_link_of_mine_to_a_link_of_somebody_else_is_not_followed(
    given: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cancel", given]) == 2
    assert f"is a link out of its folder, which somebody else may have made, and leads to {home.parent.parent}" in (
        printed(capsys)
    )


def test_a_received_sweep_whose_run_is_a_link_is_neither_cloned_nor_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = prepared(tmp_path / "mine", a_run("r"))
    (tmp_path / "received").mkdir()
    for sweep in ("mine", "received"):
        append_record(SweepDir(tmp_path / sweep).submissions, given_record("r"))
    (tmp_path / "received/r").symlink_to(mine.path)
    assert main(["clone", str(tmp_path / "received")]) == 2
    assert f"is a link out of its folder, which somebody else may have made, and leads to {mine.path}." in printed(
        capsys
    )
    assert main(["resume", "--trust", str(tmp_path / "received")]) == 2
    assert f"leads to {mine.path}." in printed(capsys)


def test_status_and_resume_of_a_run_concern_no_other_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_run(tmp_path, a_run("done", steps=1))
    event(prepared(tmp_path, a_run("broken")), "failed", rank=0, node="n", error="ValueError: no")
    event(prepared(tmp_path, a_run("also-broken")), "failed", rank=0, node="n", error="ValueError: no")
    assert main(["status", str(tmp_path / "broken")]) == 0
    assert "1 run: 1 failed" in printed(capsys)
    assert main(["resume", str(tmp_path / "broken")]) == 2
    shown = printed(capsys)
    assert "also-broken" not in shown
    assert f"run `slurmscale resume --trust {tmp_path / 'broken'}`" in shown
    assert main(["resume", str(tmp_path / "done"), "--trust"]) == 0
    assert "1 run: 1 finished; 0 to resume" in printed(capsys)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A local queue that waits for the names of its runs."""
    command = [sys.executable, "-m", "jobs.submit.local_queue", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.communicate()


def given_to(queue: subprocess.Popen[bytes], *runs: RunDir) -> SweepDir:
    """Record runs as submitted to a local queue."""
    sweep = SweepDir(runs[0].path.parent)
    own(sweep)
    for run in runs:
        append_record(sweep.submissions, {
            "event": "submitted", "run": run.name, "launcher": "local", "job_id": str(queue.pid), "events_before": 1,
            "host": socket.gethostname(), "process_started": started_after_boot_s(queue.pid), "time": now(),
        })  # fmt: skip
    return sweep


def test_a_waiting_run_is_cancelled_alone_and_its_queue_lives(
    tmp_path: Path, queue: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = given_to(queue, *(prepared(tmp_path, a_run(name)) for name in ("a", "b", "c")))
    assert main(["cancel", str(tmp_path / "b")]) == 0
    assert f"cancelled b of {tmp_path}" in printed(capsys)
    assert [item.state for item in states(sweep)] == [State.queued, State.cancelled, State.queued]
    assert queue.poll() is None
    assert main(["cancel", str(tmp_path / "b")]) == 0
    assert "b neither waits nor runs" in printed(capsys)


def test_a_waiting_run_of_a_pilot_is_cancelled_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        run = prepared(tmp_path, a_run(name))
        record = {"time": now(), "event": "submitted", "run": run.name, "launcher": "pilot", "job_id": "7", "nodes": 1}
        append_record(SweepDir(tmp_path).submissions, record | {"events_before": 1, "host": "h"})
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["cancel", str(tmp_path / "b")]) == 0
    assert f"cancelled b of {tmp_path}" in printed(capsys)
    assert [item.state for item in states(SweepDir(tmp_path))] == [State.queued, State.cancelled, State.queued]


@pytest.mark.slow
@pytest.mark.long
def test_a_running_run_is_cancelled_alone_and_the_next_one_runs(tmp_path: Path) -> None:
    given = [arg for arg in small(tmp_path) if not arg.startswith("job.steps")]
    assert main(["submit", "-m", *given, "job.steps=100000,3,4", "name=s${job.steps}"]) == 0
    sweep = SweepDir(tmp_path / "s")

    def state_of(name: str) -> State:
        return next(item.state for item in states(sweep) if item.run.name == name)

    try:
        wait_until(lambda: state_of("s100000") is State.running)
        assert main(["cancel", str(tmp_path / "s/s4")]) == 0
        assert main(["cancel", str(tmp_path / "s/s100000")]) == 0
        assert state_of("s100000") is State.cancelled
        wait_until(lambda: state_of("s3") is State.finished)
        wait_until(lambda: not any(item.state.is_alive for item in states(sweep)))
        assert state_of("s4") is State.cancelled
        assert main(["resume", str(tmp_path / "s/s4")]) == 0
        wait_until(lambda: state_of("s4") is State.finished)
        assert state_of("s100000") is State.cancelled
    finally:
        main(["cancel", str(sweep.path)])
