"""The watchdog: a step hangs after engine.hang_timeout_s, a write of many bytes has the time that they need."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch.distributed as dist

from jobs.lease import Lease
from jobs.ranks import Rank
from jobs.rundir import RunDir, read_events
from jobs.runtime.watchdog import LEAST_BYTES_PER_S, Watchdog
from tests.support.real_run import make_run, printed, train
from tests.support.waiting import limit_s, wait_until

LIMIT_S = 0.2
SUSPENDED_S = 5.0


def test_a_long_write_is_no_hang_and_the_step_after_it_can_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(Watchdog, "end", lambda _: ended.set())  # the real one ends this process
    watchdog = Watchdog(Lease(RunDir(tmp_path)), Rank(0, 1, 0, "127.0.0.1", "1"), LIMIT_S)
    watchdog.begins("writing the checkpoint of step 1", 1000 * LEAST_BYTES_PER_S)
    assert not ended.wait(5 * LIMIT_S)
    watchdog.begins("in step 2")
    assert ended.wait(limit_s(20))
    watchdog.stop()


def work(directory: Path, seconds: float) -> None:
    """Run a rank with short pieces of work under a watchdog until the file `enough` exists."""
    watchdog = Watchdog(Lease(RunDir(directory)), Rank(0, 1, 0, "127.0.0.1", "1"), seconds)
    while not (directory / "enough").exists():
        watchdog.begins("in a step")
        (directory / "at_work").touch()
        time.sleep(seconds / 10)
    watchdog.stop()


def test_a_job_that_slurm_suspends_for_longer_than_the_limit_does_not_hang(tmp_path: Path) -> None:
    rank = get_context("fork").Process(target=work, args=(tmp_path, SUSPENDED_S / 2))
    rank.start()
    assert rank.pid is not None
    wait_until((tmp_path / "at_work").exists)
    os.kill(rank.pid, signal.SIGSTOP)
    time.sleep(SUSPENDED_S)
    os.kill(rank.pid, signal.SIGCONT)
    rank.join(SUSPENDED_S)
    assert rank.is_alive(), "it works on"
    (tmp_path / "enough").touch()
    rank.join(limit_s(60))
    assert rank.exitcode == 0
    assert not (tmp_path / "failures").exists()
    (suspended,) = read_events(RunDir(tmp_path).status)
    # The time between two heartbeats is not counted: it may have passed before the job was stopped.
    assert suspended["event"] == "suspended"
    assert SUSPENDED_S / 2 < suspended["suspended_time_s"] <= SUSPENDED_S + limit_s(1)


def test_a_hang_after_a_suspension_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(Watchdog, "end", lambda _: ended.set())  # the real one ends this process
    watchdog = Watchdog(Lease(RunDir(tmp_path)), Rank(0, 1, 0, "127.0.0.1", "1"), LIMIT_S)
    watchdog.begins("in step 2")
    watchdog.forgive(1000 * LIMIT_S)
    assert ended.wait(limit_s(20)), "the work has no more time than its limit from now on"
    watchdog.stop()


@pytest.mark.parametrize(
    ("overrides", "codes"), [((), [0, 0]), (("job.checkpoint_every_steps=2",), [1, 1]), (("job.export=true",), [1, 1])]
)
def test_only_a_run_that_writes_weights_connects_every_rank_with_every_other_one(
    overrides: tuple[str, ...], codes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_group = dist.new_group

    def no_gloo(*arguments: object, **keywords: object) -> object:
        if keywords.get("backend") == "gloo":
            raise RuntimeError("this node cannot use gloo")
        return new_group(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(dist, "new_group", no_gloo)
    run = make_run(tmp_path, "parallelism=fsdp_full", "job.steps=2", "job.warmup_steps=0", *overrides)
    assert train(run) == codes, printed(run)
