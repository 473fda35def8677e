"""The watchdog: a step hangs after engine.hang_timeout_s, a write of many bytes has the time that they need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch.distributed as dist

from jobs.lease import Lease
from jobs.ranks import Rank
from jobs.rundir import RunDir, read_events
from jobs.runtime.watchdog import EXIT_CODE, LEAST_BYTES_PER_S, Beat, Watchdog, startup_in_words
from tests.support.paths import ROOT
from tests.support.real_run import events, make_run, printed, rank, rank_environment, train
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
    worker = get_context("fork").Process(target=work, args=(tmp_path, SUSPENDED_S / 2))
    worker.start()
    assert worker.pid is not None
    wait_until((tmp_path / "at_work").exists)
    os.kill(worker.pid, signal.SIGSTOP)
    time.sleep(SUSPENDED_S)
    os.kill(worker.pid, signal.SIGCONT)
    worker.join(SUSPENDED_S)
    assert worker.is_alive(), "it works on"
    (tmp_path / "enough").touch()
    worker.join(limit_s(60))
    assert worker.exitcode == 0
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


def first_rank(run: RunDir, world: int, packages: Path) -> subprocess.CompletedProcess[str]:
    """Rank 0 of a run in a process of its own, with packages in front of those that are installed."""
    own = rank_environment(0, world, "start") | {"PYTHONPATH": f"{packages}:{ROOT}", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "jobs.run", str(run.path)]
    return subprocess.run(
        command, env=os.environ | own, cwd=run.path, capture_output=True, text=True, timeout=limit_s(120), check=False
    )


def test_a_rank_that_imports_for_too_long_ends_with_its_seconds_and_a_remedy(tmp_path: Path) -> None:
    slow = tmp_path / "packages" / "torch" / "__init__.py"
    slow.parent.mkdir(parents=True)
    slow.write_text("import time\ntime.sleep(1000)\n")
    run = make_run(tmp_path, "parallelism=single", "ranks_per_node=1", "engine.startup_limit_s=2")
    done = first_rank(run, 1, slow.parent.parent)
    (event,) = events(run, "failed")
    assert (event["cause"], event["rank"]) == ("startup_limit", 0), done.stderr
    error = str(event["error"])
    assert error.startswith(
        "no first step within 2 s (engine.startup_limit_s): all ranks importing, none stands out; the "
    )
    assert " s of rank 0: importing " in error
    assert ". Set cluster.stage_environment=/tmp; stacks in " in error
    assert "most recent call first" in (run.hangs / "restart-0/rank-00000.txt").read_text()
    assert done.returncode == EXIT_CODE


def test_a_start_without_one_of_its_ranks_names_it_and_what_the_others_waited_in(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=ddp", "engine.startup_limit_s=4")
    alone = get_context("fork").Process(target=rank, args=(run.path, 0, 2, "start"))
    alone.start()
    alone.join(limit_s(120))
    (event,) = events(run, "failed")
    error = str(event["error"])
    assert "(engine.startup_limit_s): 1 of 2 ranks have not started, the first is rank 1; the " in error
    assert " s of rank 0: " in error


def test_a_late_start_is_told_by_its_longest_parts_and_has_a_remedy_where_imports_are_it() -> None:
    def words(**spent: float) -> str:
        return startup_in_words(Beat(3, "gpu01", "importing", 0, "", 0.0, {**spent}))

    slow = {"copying the environment": 0.0, "importing": 93.4, "meeting the other ranks": 26.7}
    assert words(**slow) == (
        "the 120 s of rank 3: importing 93 s, meeting the other ranks 27 s. Set cluster.stage_environment=/tmp"
    )
    copied = slow | {"copying the environment": 5.0}
    assert words(**copied) == (
        "the 125 s of rank 3: importing 93 s, meeting the other ranks 27 s, copying the environment 5 s"
    )


def test_a_run_whose_first_step_is_made_in_time_may_take_longer_than_its_start_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(Watchdog, "end", lambda _: ended.set())  # the real one ends this process
    watchdog = Watchdog(Lease(RunDir(tmp_path)), Rank(0, 1, 0, "127.0.0.1", "1"), 1000, startup_limit_s=10_000_000)
    watchdog.begins("in step 1")
    assert list(watchdog.spent_until_now()) == ["copying the environment", "importing", "in step 1"]
    watchdog.startup_ends()
    watchdog.begins("in step 2")
    assert watchdog.exceeded() is None
    assert watchdog.spent_until_now() == {}
    watchdog.stop()
    assert not ended.is_set()


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
