"""Failures of ranks: each in a file of its own, in one order with the other events of the run."""

from __future__ import annotations

import io
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from analysis.load.discover import submissions
from analysis.load.run_directory import read_run
from jobs import rundir
from jobs.cli import main
from jobs.failure_causes import FailureCause, end_of, latest_attempt, record_failure
from jobs.run_events import FAILURE_BYTES, events_or_failure, run_events, write_failure
from jobs.rundir import RunDir, SweepDir, append_event, append_record, read_events
from jobs.submit.sweeps.submissions import latest_submissions, own_end
from tests.support.fake_events import clock, compute, killed_once, meet, submit
from tests.support.fake_runs import a_run, ended, finished_run, prepared, started
from tests.support.waiting import limit_s

RANKS, GUILTY = 64, 17
FORK = multiprocessing.get_context("fork")


def failure_of(rank: int) -> dict[str, Any]:
    """The failure that a rank records: one raised an error, and the others lost it."""
    cause, error = FailureCause.lost_peer, "Connection closed by peer"
    if rank == GUILTY:
        cause, error = FailureCause.code, "ValueError: no such luck"
    return {"cause": cause, "rank": rank, "node": f"node{rank // 8}", "error": error, "restart": 0}


def record(run: RunDir, rank: int) -> None:
    record_failure(run, **failure_of(rank))


def append(run: RunDir, rank: int) -> None:
    """Record a failure as versions without files of their own did."""
    fields = failure_of(rank)
    append_event(run, "failed", **fields | {"cause": fields["cause"].name})


class NfsClient(io.FileIO):
    """A file that is appended to by an NFS client of its own, emulated.

    open(2): "O_APPEND may lead to corrupted files on NFS filesystems if more than one process appends data to a file at
    once", since the protocol cannot append: the client writes at the size that it knows.
    """

    barrier: Barrier

    def __init__(self, path: Path) -> None:
        super().__init__(os.open(path, os.O_RDWR | os.O_CREAT), "r+b")
        self.known_size = self.seek(0, os.SEEK_END)
        self.barrier.wait()

    def write(self, data: Any) -> int:
        return os.pwrite(self.fileno(), data, self.known_size)


def all_fail(run: RunDir, fail: Callable[[RunDir, int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let as many processes as ranks record their failures at once, each on a node of its own."""
    barrier = FORK.Barrier(RANKS, timeout=limit_s(60))

    def rank_fails(rank: int) -> None:
        # In this process only.
        NfsClient.barrier = barrier
        monkeypatch.setattr("jobs.rundir.open_to_append", NfsClient)
        barrier.wait()
        fail(run, rank)

    processes = [FORK.Process(target=rank_fails, args=(rank,)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0}


def of_ranks(run: RunDir) -> list[int]:
    return [event["rank"] for event in run_events(run) if event["event"] == "failed"]


def test_ranks_of_many_nodes_that_append_to_one_file_lose_their_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared(tmp_path, a_run("run", ranks_per_node=RANKS))
    all_fail(run, append, monkeypatch)
    assert len(of_ranks(run)) < RANKS / 2


def test_ranks_that_fail_together_leave_a_record_each_and_one_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared(tmp_path, a_run("run", ranks_per_node=RANKS))
    started(run, a_run("run", ranks_per_node=RANKS), restart=0)
    before = run.status.read_bytes()
    all_fail(run, record, monkeypatch)
    assert run.status.read_bytes() == before
    assert sorted(of_ranks(run)) == list(range(RANKS))
    assert len(list(run.failures.iterdir())) == RANKS, "no two share a file, and nothing is left beside them"
    end = end_of(latest_attempt(run_events(run)))
    assert end is not None
    assert (end["rank"], end["cause"]) == (GUILTY, "code")
    assert main(["status", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("run state step job run failed")
    assert "rank 17 on node2: ValueError: no such luck STOP: the program would raise it again (run)" in shown
    assert shown.endswith(" 1 run: 1 failed")
    assert read_run(run.path).reason == "failed at step 0 of 6: rank 17 on node2: ValueError: no such luck"


@pytest.mark.parametrize("year", [1999, 2099])
def test_a_failure_stands_where_it_would_have_been_appended_whatever_the_clock_of_its_node(
    year: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_files, in_lines = prepared(tmp_path, a_run("files")), prepared(tmp_path, a_run("lines"))
    for run, fail in ((in_files, record), (in_lines, append)):
        for restart in range(2):
            started(run, a_run(), restart=restart)
            with monkeypatch.context() as context:
                context.setattr(rundir, "now", lambda: f"{year}-01-02T03:04:05.000+00:00")
                fail(run, 0)
                fail(run, GUILTY)
            append_event(run, "requeued", cause="killed")
    shown = [[(event["event"], event.get("rank")) for event in run_events(run)] for run in (in_files, in_lines)]
    assert shown[0] == shown[1]
    assert shown[0][:4] == [("prepared", None), ("started", None), ("failed", 0), ("failed", GUILTY)]
    by_report = [read_run(run.path) for run in (in_files, in_lines)]
    assert [event["event"] for event in by_report[0].events] == [event["event"] for event in by_report[1].events]
    assert by_report[0].reason == by_report[1].reason


def end_since_submission(run: RunDir) -> object:
    end = own_end(run, latest_submissions(SweepDir(run.path.parent))[run.name])
    return None if end is None else end["rank"]


def test_a_submission_does_not_count_the_failures_before_it(tmp_path: Path) -> None:
    run = prepared(tmp_path, a_run("run"))
    submit(run, 0)
    for rank in (1, 2):
        record(run, rank)
    assert end_since_submission(run) == 1
    submit(run, 10)
    assert end_since_submission(run) is None, "though nothing was written to status.jsonl since"
    (first, _) = sorted(run.failures.iterdir())
    first.unlink()
    assert end_since_submission(run) is None, "a file that was removed moves no other one"
    record(run, 3)
    assert end_since_submission(run) == 3


def test_a_report_counts_lost_time_alike_for_failures_in_files_and_in_lines(tmp_path: Path) -> None:
    found = {}
    for name in ("files", "lines"):
        run = prepared(tmp_path, a_run(name))
        submit(run, 0)
        meet(run, 14, startup=4, restart=0)
        compute(run, 1, 6)
        for rank, cause in enumerate(["lost_peer", "killed"]):
            failure = {"event": "failed", "time": clock(33), "restart": 0, "cause": cause, "rank": rank, "node": "n"}
            if name == "files":
                write_failure(run, failure | {"error": "gone"}, restart=0, rank=rank)
            else:
                append_record(run.status, failure | {"error": "gone"})
        submit(run, 50)
        meet(run, 75, startup=5, attempt=2, from_step=4, restart=0)
        compute(run, 5, 10, attempt=2)
        ended(run, attempt=2, time=clock(100))
        found[name] = read_run(run.path, submissions(tmp_path)[name])
    assert found["files"].values == found["lines"].values
    assert found["files"].lost_to == found["lines"].lost_to
    assert [each.cause for each in found["files"].lost_to] == ["killed"]


def a_link(path: Path) -> None:
    (path.parent.parent / "outside.json").write_text(path.read_text())
    path.unlink()
    path.symlink_to("../outside.json")


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def content(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        a_link,
        a_fifo,
        a_directory,
        content(b""),
        content(b'{"event": "failed", "rank": 1, "err'),
        content(b'{"event": "finished", "step": 6}'),
        content(b"[]"),
        content(bytes(range(256))),
        content(b'{"event": "failed", "rank": 2, "error": "gone"}' + b" " * FAILURE_BYTES),
    ],
)
def test_a_damaged_failure_costs_itself_alone(damage: Callable[[Path], object], tmp_path: Path) -> None:
    run = prepared(tmp_path, a_run("run"))
    for rank in (1, 2, 3):
        record(run, rank)
    _, second, _ = sorted(run.failures.iterdir())
    damage(second)
    assert [(event["event"], event.get("rank")) for event in run_events(run)] == [
        ("prepared", None), ("failed", 1), ("failed", 3)
    ]  # fmt: skip
    assert [event.get("rank") for event in read_run(run.path).events] == [None, 1, 3]
    record(run, 4)
    assert of_ranks(run) == [1, 3, 4]


def test_of_too_many_failures_the_last_ones_are_read_and_a_long_error_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared(tmp_path, a_run("run"))
    for rank in range(4):
        record_failure(run, **failure_of(rank) | {"error": "\U0001f600" * FAILURE_BYTES})
    monkeypatch.setattr("jobs.run_events.MOST_FAILURES", 2)
    assert of_ranks(run) == [2, 3]


@pytest.mark.parametrize("place", [lambda path: path.symlink_to("/tmp"), lambda path: path.write_text("")])
def test_failures_that_are_no_directory_cost_their_own_row(
    place: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path, a_run("good"))
    run = finished_run(tmp_path, a_run("bad"))
    place(run.failures)
    assert main(["status", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "failures cannot be read: it is a link or not a directory" in shown
    assert shown.endswith("2 runs: 1 finished, 1 failed")
    assert str(read_run(run.path).reason).endswith("failures cannot be read: it is a link or not a directory")


def test_the_record_of_an_earlier_version_is_read_as_it_was(tmp_path: Path) -> None:
    run = prepared(tmp_path, a_run("run"))
    killed_once(run)
    lines = list(read_events(run.status))
    assert [event["event"] for event in lines].count("failed") == 2
    assert run_events(run) == lines
    assert list(read_run(run.path).events) == lines
    assert events_or_failure(run, 4) == lines[4:]
    assert latest_submissions(SweepDir(tmp_path))["run"].failures_before == 0
