"""Requeue a run or not, from its records; and the ends that are recorded for ranks that could not."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from jobs.failure_causes import FailureCause, record_failure
from jobs.ranks import LOCAL_RESTART_COUNT, node_name, restart_count
from jobs.rundir import RunDir, SweepDir, append_event, append_record, now
from jobs.submit import local_queue
from jobs.submit.requeue import Restart, planned_restart, record_exit_codes, record_silent_end
from jobs.submit.sweeps.submissions import Submission, latest_submissions, own_end
from tests.support.paths import ROOT
from tests.support.real_run import events, make_run, rank, train
from tests.support.training import long
from tests.support.waiting import limit_s, wait_until


def a_run(where: Path, *overrides: str) -> RunDir:
    """A run on record as submitted to Slurm."""
    run = make_run(where, "ranks_per_node=2", *overrides)
    sweep = SweepDir(run.path.parent)
    record = {"time": now(), "event": "submitted", "run": run.name, "launcher": "slurm", "job_id": "7", "host": "h",
              "events_before": 0}  # fmt: skip
    append_record(sweep.submissions, record)
    return run


def submission(run: RunDir) -> Submission:
    return latest_submissions(SweepDir(run.path.parent))[run.name]


def decided(run: RunDir, *, preempted: bool = False) -> Restart | None:
    return planned_restart(run, submission(run), SweepDir(run.path.parent), preempted=preempted)


def failed(run: RunDir, cause: FailureCause, *, rank: int = 1, node: str = "node02", restart: int = 0) -> None:
    record_failure(run, cause, rank=rank, node=node, error=f"{cause.name} it was", restart=restart)


def started(run: RunDir, restart: int = 0) -> None:
    append_event(run, "started", attempt=restart + 1, restart=restart)


# --- the decision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", FailureCause)
def test_a_run_goes_on_after_a_retryable_failure(cause: FailureCause, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    failed(run, cause)
    # A run without a checkpoint would reach its time limit again.
    assert (decided(run) is not None) == (cause.retryable and cause is not FailureCause.time_limit)


def test_the_pause_doubles_and_the_tries_are_counted(tmp_path: Path) -> None:
    run = a_run(tmp_path, "launcher.requeues=3", "launcher.requeue_pause_s=30")
    pauses = []
    for restart in range(3):
        started(run, restart)
        failed(run, FailureCause.killed, node=f"node0{restart}", restart=restart)
        found = decided(run)
        assert found is not None
        pauses.append(found.pause_s)
        found.record(run)
    assert pauses == [30, 60, 120]
    started(run, 3)
    failed(run, FailureCause.killed, restart=3)
    assert decided(run) is None


def test_each_start_on_this_machine_has_the_next_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path, "launcher.requeues=3", "launcher.requeue_pause_s=0")
    local = {"launcher": "local", "job_id": str(os.getpid()), "host": socket.gethostname(), "events_before": 0}
    append_record(
        SweepDir(run.path.parent).submissions, {"event": "submitted", "run": run.name, "time": now(), **local}
    )
    numbers = []

    def start(_sweep: SweepDir, run: RunDir, _code: str) -> tuple[str, list[int]]:
        numbers.append(restart_count())
        started(run, numbers[-1])
        failed(run, FailureCause.killed, node=f"node0{numbers[-1]}", restart=numbers[-1])
        return "7", [1, -9]

    monkeypatch.setenv(LOCAL_RESTART_COUNT, "5")
    monkeypatch.setattr(local_queue, "start_and_wait", start)
    local_queue.run_to_its_end(SweepDir(run.path.parent), run, "code")
    assert numbers == [0, 1, 2, 3]


def test_a_node_that_failed_twice_is_avoided_by_every_run_of_the_sweep(tmp_path: Path) -> None:
    first, second = a_run(tmp_path, "name=first"), a_run(tmp_path, "name=second")
    started(first)
    failed(first, FailureCause.hung, node="node03")
    found = decided(first)
    assert found is not None
    assert found.avoided == []
    started(second)
    failed(second, FailureCause.killed, node="node03")
    failed(second, FailureCause.lost_peer, rank=0, node="node01")
    failed(second, FailureCause.lost_peer, rank=0, node="node01")
    found = decided(second)
    assert found is not None
    assert found.avoided == ["node03"], "a rank that lost another one does not incriminate its own node"


def requeued(run: RunDir, where: Path) -> tuple[str, str]:
    """The output of the run's batch script at its end, and its calls of scontrol."""
    (where / "bin").mkdir()
    (where / "bin/scontrol").write_text(
        f'#!/bin/sh\necho "$*" >> {where}/calls\n'
        'case "$*" in *partition*) echo PartitionName=p TotalNodes=9 ;; *) echo JobState=RUNNING Partition=p ;; esac\n'
    )
    (where / "bin/scontrol").chmod(0o755)
    env = os.environ | {"PATH": f"{where}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "0"}
    done = subprocess.run([sys.executable, "-m", "jobs.submit.requeue", str(run.path.parent)], cwd=ROOT, env=env,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, (where / "calls").read_text()


def test_the_unreadable_record_of_another_run_keeps_none_from_its_restart(tmp_path: Path) -> None:
    run, other = a_run(tmp_path, "name=first"), a_run(tmp_path, "name=second")
    started(run)
    failed(run, FailureCause.hung)
    append_record(SweepDir(run.path.parent).submissions, {"event": "ended", "run": "second"})
    other.status.unlink()
    os.mkfifo(other.status)
    assert decided(run) == Restart(FailureCause.hung, 30, [])


def test_a_run_whose_record_cannot_be_read_ends_with_the_reason_in_its_log(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.status.unlink()
    os.mkfifo(run.status)
    printed, calls = requeued(run, tmp_path)
    assert (
        printed == f"slurmscale: {run.name} does not restart: status.jsonl cannot be read: it is a FIFO, not a "
        "regular file\n"
    )
    assert "requeue" not in calls


def test_a_run_whose_configuration_was_damaged_does_not_restart(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    failed(run, FailureCause.hung)
    run.config.write_text("sweep: [")
    printed, calls = requeued(run, tmp_path)
    assert printed == f"slurmscale: {run.name} does not restart: hung it was\n"
    assert "requeue" not in calls


def test_a_time_limit_without_progress_is_not_tried_again(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    append_event(run, "checkpoint", attempt=1, step=2)
    append_event(run, "stopped", attempt=1, step=3, reason="time limit", cause=FailureCause.time_limit.name)
    found = decided(run)
    assert found == Restart(FailureCause.time_limit, 0, [])
    assert found is not None
    found.record(run)
    started(run, 1)
    append_event(run, "stopped", attempt=2, step=3, reason="time limit", cause=FailureCause.time_limit.name)
    assert decided(run) is None


def test_who_was_asked_to_end_goes_on_only_if_preempted(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    append_event(run, "stopped", attempt=1, step=3, reason="asked to end (SIGTERM)")
    assert decided(run) is None
    assert decided(run, preempted=True) == Restart(FailureCause.preempted, 0, [])
    append_record(SweepDir(run.path.parent).submissions, {"time": now(), "event": "cancelled", "job_id": "7"})
    assert decided(run, preempted=True) is None


def test_preemptions_use_up_no_restart(tmp_path: Path) -> None:
    run = a_run(tmp_path, "launcher.requeues=1")
    for restart in range(3):
        started(run, restart)
        append_event(run, "stopped", attempt=restart + 1, step=3, reason="asked to end (SIGTERM)")
        found = decided(run, preempted=True)
        assert found is not None
        found.record(run)
    started(run, 3)
    failed(run, FailureCause.killed, restart=3)
    assert decided(run) is not None


def test_with_no_requeues_allowed_nothing_goes_on(tmp_path: Path) -> None:
    run = a_run(tmp_path, "launcher.requeues=0")
    started(run)
    failed(run, FailureCause.killed)
    assert decided(run) is None


# --- the record ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "cause", "rank"),
    [
        ("srun: error: node02: task 3: Killed\nsrun: error: node01: task 0: Terminated\n", "killed", 3),
        ("x\nsrun: error: node02: tasks 2-3: Out Of Memory\n", "out_of_host_memory", 2),
        ("srun: error: node02: task 1: Exited with exit code 1\nsrun: error: node01: task 0: Killed\n", "code", 1),
        ("srun: error: node01: task 0: Exited with exit code 1\nsrun: error: Node failure on node02\n", "hardware", 1),
        ("srun: error: node02: task 1: User defined signal 2\n", "time_limit", 1),
    ],
)
def test_what_srun_states_first_is_recorded_for_a_rank_without_a_word(
    printed: str, cause: str, rank: int, tmp_path: Path
) -> None:
    run = a_run(tmp_path)
    append_event(run, "started", attempt=1, restart=0, ranks=2, nodes=["node01", "node02"])
    failed(run, FailureCause.lost_peer, rank=0, node="node01")
    record_silent_end(run, submission(run), printed)
    end = own_end(run, submission(run))
    assert end is not None
    assert (end["cause"], end["rank"], end["node"]) == (cause, rank, "node02")


@pytest.mark.parametrize(("task", "more"), [(0, "; the last line of its log: here it broke"), (1, ""), (10, "")])
def test_the_last_line_of_the_log_is_quoted_for_the_rank_that_wrote_it(task: int, more: str, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    printed = f"here it broke\nsrun: error: node01: task {task}: Exited with exit code 1\n"
    record_silent_end(run, submission(run), printed)
    end = own_end(run, submission(run))
    assert end is not None
    words = f"rank {task} ended without recording a cause; srun reports: Exited with exit code 1{more}"
    assert (end["error"], end["rank"]) == (words, task)


@pytest.mark.parametrize(
    ("exit_codes", "witnessed", "cause", "error"),
    [
        ([1, -9], True, "killed", "rank 1 ended without recording a cause: signal 9 (Killed)"),
        # The aborted rank noticed that the other one was gone.
        ([-6, -9], False, "killed", "rank 1 ended without recording a cause: signal 9 (Killed)"),
        ([1, -11], True, "code", "rank 1 ended without recording a cause: signal 11 (Segmentation fault)"),
        ([0, 3], False, "code", "rank 1 ended without recording a cause: exit code 3"),
        ([0, None], False, "time_limit", "reached its time limit before the ranks reached a step boundary"),
        ([1, 1], True, "lost_peer", "lost_peer it was"),
    ],
)
def test_a_rank_of_this_machine_is_named_by_its_exit_code(
    exit_codes: list[int | None], witnessed: bool, cause: str, error: str, tmp_path: Path
) -> None:
    run = a_run(tmp_path)
    started(run)
    if witnessed:
        failed(run, FailureCause.lost_peer, rank=0, node=node_name())
    record_exit_codes(run, submission(run), exit_codes)
    end = own_end(run, submission(run))
    assert end is not None
    rank = 0 if cause == "lost_peer" else 1
    assert (end["cause"], end["error"], end["rank"], end["node"]) == (cause, error, rank, node_name())


def test_a_rank_that_spoke_is_not_spoken_for(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    failed(run, FailureCause.refused)
    record_silent_end(run, submission(run), "srun: error: node01: task 0: Killed\n")
    assert len(events(run, "failed")) == 1


def test_the_failure_of_a_rank_that_outlived_its_attempt_does_not_end_the_next_one(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run, 0)
    started(run, 1)
    failed(run, FailureCause.lost_peer, restart=0)
    assert own_end(run, submission(run)) is None


# --- real processes ------------------------------------------------------------------------------------------


def test_a_killed_rank_makes_the_other_a_witness(tmp_path: Path) -> None:
    run = a_run(tmp_path, "job.steps=100000")
    process = get_context("fork").Process(target=train, args=(run,))
    process.start()
    _signal(run, 1, signal.SIGKILL)
    process.join(limit_s(180))
    (event,) = events(run, "failed")
    assert (event["cause"], event["rank"]) == ("lost_peer", 0)


@pytest.mark.parametrize(("stopped", "witness"), [(1, 0), long(0, 1)])
def test_a_stopped_rank_is_named_and_stacks_and_collectives_are_kept(
    stopped: int, witness: int, tmp_path: Path
) -> None:
    run = a_run(tmp_path, "job.steps=100000", "engine.hang_timeout_s=10")
    process = get_context("fork").Process(target=train, args=(run,))
    process.start()
    _signal(run, stopped, signal.SIGSTOP)
    wait_until(lambda: events(run, "failed"))
    os.kill(_process_of(run, stopped), signal.SIGKILL)
    process.join(limit_s(180))
    (event,) = events(run, "failed")
    assert (event["cause"], event["rank"]) == ("hung", stopped)
    assert f"no progress for 10 s (engine.hang_timeout_s): rank {stopped} on" in str(event["error"])
    assert "wrote no heartbeat for" in str(event["error"])
    assert "jobs/work/train/loop.py" in (run.hangs / f"restart-0/rank-0000{witness}.txt").read_text()
    assert "all_reduce" in (run.hangs / f"restart-0/rank-0000{witness}.collectives.json").read_text()


def test_a_rank_that_a_library_crashes_leaves_the_python_stack_in_its_log(tmp_path: Path) -> None:
    run = a_run(tmp_path, "job.steps=100000")
    process = get_context("fork").Process(target=train, args=(run,), kwargs={"of_rank": _rank_that_can_crash})
    process.start()
    _signal(run, 1, signal.SIGWINCH)
    process.join(limit_s(180))
    log = (run.path / "rank1.log").read_text()
    assert "Fatal Python error: Segmentation fault" in log
    assert re.search(r'File ".*jobs/work/train/loop\.py", line \d+ in train', log)


def _rank_that_can_crash(directory: Path, number: int, world: int, start: str) -> None:
    """Run a rank that SIGWINCH crashes as a library would that Python called.

    A SIGSEGV from outside finds other threads running, and their changing frames can end the dump of the stacks.
    """
    signal.signal(signal.SIGWINCH, lambda *_: ctypes.string_at(0))
    rank(directory, number, world, start)


def _signal(run: RunDir, rank: int, number: signal.Signals) -> None:
    """Send a signal to a rank once training is under way."""
    wait_until(lambda: run.metrics.exists() and run.metrics.read_text().count("\n") > 3)
    os.kill(_process_of(run, rank), number)


def _process_of(run: RunDir, rank: int) -> int:
    log = str(run.path / f"rank{rank}.log")
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if str(link.readlink()) == log:
                return int(link.parts[2])
        except OSError:
            continue
    raise AssertionError(f"no process writes {log}")
