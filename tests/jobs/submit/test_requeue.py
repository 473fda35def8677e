"""Requeue a run or not, from its records; and the ends that are recorded for ranks that could not."""

from __future__ import annotations

import os
import re
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from jobs.causes import Cause, cause_of
from jobs.errors import CheckpointError, ConfigError
from jobs.rundir import RunDir, SweepDir, append_event, append_record, now
from jobs.submit.requeue import Restart, planned_restart, record_silent_end
from jobs.submit.submissions import Submission, latest_submissions, own_end
from tests.support.real_run import events, make_run, train


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


def failed(run: RunDir, cause: Cause, *, rank: int = 1, node: str = "node02", restart: int = 0) -> None:
    append_event(run, "failed", restart=restart, cause=cause.name, rank=rank, node=node, error=f"{cause.name} it was")


def started(run: RunDir, restart: int = 0) -> None:
    append_event(run, "started", attempt=restart + 1, restart=restart)


# --- the decision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", Cause)
def test_a_fault_of_the_machine_is_tried_again_and_one_of_the_run_is_not(cause: Cause, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    failed(run, cause)
    own = {Cause.out_of_memory, Cause.refused, Cause.code}
    without_checkpoint = {Cause.time_limit}
    assert (decided(run) is None) == (cause in own | without_checkpoint)


def test_the_pause_doubles_and_the_tries_are_counted(tmp_path: Path) -> None:
    run = a_run(tmp_path, "launcher.requeues=3", "launcher.requeue_pause_s=30")
    pauses = []
    for restart in range(3):
        started(run, restart)
        failed(run, Cause.killed, node=f"node0{restart}", restart=restart)
        found = decided(run)
        assert found is not None
        pauses.append(found.pause_s)
        found.record(run)
    assert pauses == [30, 60, 120]
    started(run, 3)
    failed(run, Cause.killed, restart=3)
    assert decided(run) is None


def test_a_node_that_failed_twice_is_avoided_by_every_run_of_the_sweep(tmp_path: Path) -> None:
    first, second = a_run(tmp_path, "name=first"), a_run(tmp_path, "name=second")
    started(first)
    failed(first, Cause.hung, node="node03")
    found = decided(first)
    assert found is not None
    assert found.avoided == []
    started(second)
    failed(second, Cause.killed, node="node03")
    failed(second, Cause.lost_peer, rank=0, node="node01")
    failed(second, Cause.lost_peer, rank=0, node="node01")
    found = decided(second)
    assert found is not None
    assert found.avoided == ["node03"], "a rank that lost another one says nothing against its own node"


def test_a_time_limit_without_progress_is_not_tried_again(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    append_event(run, "checkpoint", attempt=1, step=2)
    append_event(run, "stopped", attempt=1, step=3, reason="time limit", cause=Cause.time_limit.name)
    found = decided(run)
    assert found == Restart(Cause.time_limit, 0, [])
    assert found is not None
    found.record(run)
    started(run, 1)
    append_event(run, "stopped", attempt=2, step=3, reason="time limit", cause=Cause.time_limit.name)
    assert decided(run) is None


def test_who_was_asked_to_end_goes_on_only_if_preempted(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    append_event(run, "stopped", attempt=1, step=3, reason="asked to end (SIGTERM)")
    assert decided(run) is None
    assert decided(run, preempted=True) == Restart(Cause.preempted, 0, [])
    append_record(SweepDir(run.path.parent).submissions, {"time": now(), "event": "cancelled", "job_id": "7"})
    assert decided(run, preempted=True) is None


def test_with_no_requeues_allowed_nothing_goes_on(tmp_path: Path) -> None:
    run = a_run(tmp_path, "launcher.requeues=0")
    started(run)
    failed(run, Cause.killed)
    assert decided(run) is None


# --- the record ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "cause", "rank"),
    [
        ("srun: error: node02: task 3: Killed\nsrun: error: node01: task 0: Terminated\n", "killed", 3),
        ("x\nsrun: error: node02: tasks 2-3: Out Of Memory\n", "out_of_memory", 2),
        ("srun: error: node02: task 1: Exited with exit code 1\nsrun: error: node01: task 0: Killed\n", "code", 1),
        ("srun: error: node01: task 0: Exited with exit code 1\nsrun: error: Node failure on node02\n", "hardware", 1),
        ("srun: error: node02: task 1: User defined signal 2\n", "time_limit", 1),
    ],
)
def test_what_srun_says_first_is_recorded_for_a_rank_without_a_word(
    printed: str, cause: str, rank: int, tmp_path: Path
) -> None:
    run = a_run(tmp_path)
    append_event(run, "started", attempt=1, restart=0, ranks=2, nodes=["node01", "node02"])
    failed(run, Cause.lost_peer, rank=0, node="node01")
    record_silent_end(run, submission(run), printed)
    end = own_end(run, submission(run))
    assert end is not None
    assert (end["cause"], end["rank"], end["node"]) == (cause, rank, "node02")


def test_a_rank_that_spoke_is_not_spoken_for(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run)
    failed(run, Cause.refused)
    record_silent_end(run, submission(run), "srun: error: node01: task 0: Killed\n")
    assert len(events(run, "failed")) == 1


def test_the_failure_of_a_rank_that_outlived_its_attempt_does_not_end_the_next_one(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    started(run, 0)
    started(run, 1)
    failed(run, Cause.lost_peer, restart=0)
    assert own_end(run, submission(run)) is None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConfigError("x"), Cause.refused),
        (CheckpointError("x"), Cause.refused),
        (torch.OutOfMemoryError("CUDA out of memory"), Cause.out_of_memory),
        (MemoryError(), Cause.out_of_memory),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            Cause.out_of_memory,
        ),
        (torch.distributed.DistBackendError("NCCL error"), Cause.lost_peer),
        (RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), Cause.lost_peer),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Cause.hardware),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Cause.code),
        (KeyError("x"), Cause.code),
    ],
)
def test_an_exception_has_a_cause(error: BaseException, cause: Cause) -> None:
    assert cause_of(error) is cause


# --- real processes ------------------------------------------------------------------------------------------


def test_a_killed_rank_makes_the_other_a_witness(tmp_path: Path) -> None:
    run = a_run(tmp_path, "job.steps=100000")
    process = get_context("fork").Process(target=train, args=(run,))
    process.start()
    _signal_second_rank(run, signal.SIGKILL)
    process.join(60)
    (event,) = events(run, "failed")
    assert (event["cause"], event["rank"]) == ("lost_peer", 0)


def test_a_stopped_rank_is_named_and_stacks_and_collectives_are_kept(tmp_path: Path) -> None:
    run = a_run(tmp_path, "job.steps=100000", "engine.hang_timeout_s=3")
    process = get_context("fork").Process(target=train, args=(run, 12))
    process.start()
    _signal_second_rank(run, signal.SIGSTOP)
    process.join(60)
    (event,) = events(run, "failed")
    assert (event["cause"], event["rank"]) == ("hung", 1)
    assert "no progress for 3 s (engine.hang_timeout_s): rank 1 on" in str(event["error"])
    assert "gave no sign of life for" in str(event["error"])
    assert "jobs/workloads/train.py" in (run.hangs / "restart-0/rank-00000.txt").read_text()
    assert "all_reduce" in (run.hangs / "restart-0/rank-00000.collectives.json").read_text()


def test_a_rank_that_a_library_crashes_leaves_the_python_stack_in_its_log(tmp_path: Path) -> None:
    run = a_run(tmp_path, "job.steps=100000")
    process = get_context("fork").Process(target=train, args=(run,))
    process.start()
    _signal_second_rank(run, signal.SIGSEGV)
    process.join(60)
    said = (run.path / "rank1.log").read_text()
    assert "Fatal Python error: Segmentation fault" in said
    assert re.search(r'File ".*jobs/workloads/train\.py", line \d+ in train', said)


def _signal_second_rank(run: RunDir, number: signal.Signals) -> None:
    """Send a signal to rank 1 once training is under way."""
    deadline = time.monotonic() + 60
    while not (run.metrics.exists() and run.metrics.read_text().count("\n") > 3):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(_process_of(run, 1), number)


def _process_of(run: RunDir, rank: int) -> int:
    log = str(run.path / f"rank{rank}.log")
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if str(link.readlink()) == log:
                return int(link.parts[2])
        except OSError:
            continue
    raise AssertionError(f"no process writes {log}")
