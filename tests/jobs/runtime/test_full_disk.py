"""A disk that fills while a run trains: the run goes on, and its records arrive in order when there is room again.

A failure is recorded all the same.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from jobs.failure_causes import FailureCause, record_failure
from jobs.output import own_directory
from jobs.rundir import RunDir, load_run, read_records
from tests.support.paths import ROOT
from tests.support.real_run import events, make_run, rank_environment
from tests.support.training import fill, long, small_disk
from tests.support.waiting import limit_s, wait_until

pytestmark = pytest.mark.slow

# More steps than any machine does until the test ends the run.
ENDLESS = ("ranks_per_node=2", "parallelism=fsdp_full", "job.steps=1000000", "job.checkpoint_every_steps=20")
ROOM_BYTES = 2**26
# Processor time of rank 0 in which it does many steps, and starts checkpoints.
STEPS_CPU_S = 3.0


@contextmanager
def ranks_of(run: RunDir, logs: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the ranks of a run as real processes, each with a log of its own."""
    world, start = load_run(run.config).ranks, secrets.token_hex(8)
    processes = []
    for rank in range(world):
        with (logs / f"rank{rank}.log").open("ab") as log:
            command = [sys.executable, "-u", "-m", "jobs.run", str(run.path)]
            environment = os.environ | rank_environment(rank, world, start) | {"PYTHONPATH": str(ROOT)}
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def trains(process: subprocess.Popen[bytes]) -> None:
    """Return when this rank has trained on; fail if it ends."""
    clock = psutil.Process(process.pid)
    before = clock.cpu_times().user

    def has_trained() -> bool:
        assert process.poll() is None, f"the rank ended with exit code {process.returncode}"
        return bool(clock.cpu_times().user > before + STEPS_CPU_S)

    wait_until(has_trained)


def recorded_steps(run: RunDir) -> list[int]:
    return [row["step"] for row in read_records(run.metrics) if "step" in row]


@pytest.mark.parametrize(
    ("full_run", "full_log"),
    [
        long(True, True),
        long(True, False),
        long(False, True),
    ],
)
def test_training_goes_on_while_a_disk_is_full_and_loses_no_record(
    full_run: bool, full_log: bool, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, ROOM_BYTES):
        run = make_run(disk if full_run else tmp_path, *ENDLESS)
        with ranks_of(run, disk if full_log else tmp_path) as ranks:
            wait_until(lambda: events(run, "checkpoint"))
            filler = fill(disk)
            trains(ranks[0])
            filler.unlink()
            done = len(recorded_steps(run))
            wait_until(lambda: int(str(events(run, "checkpoint")[-1]["step"])) > done)
            # Full again at the end: the first rank waits for room for its last records, and the log is lost.
            filler = fill(disk)
            ranks[0].send_signal(signal.SIGTERM)
            assert ranks[1].wait(limit_s(180)) == 0
            if full_run:
                filler.unlink()
            assert ranks[0].wait(limit_s(180)) == 0
        (stopped,) = events(run, "stopped")
        assert recorded_steps(run) == list(range(1, int(str(stopped["step"])) + 1))
        assert bool(events(run, "checkpoint_failed")) == full_run
        assert not events(run, "failed")
        saved = [path.name for path in run.checkpoints.iterdir()]
        assert saved, "earlier checkpoints stay"
        assert not [name for name in saved if name.startswith(".")], "and nothing half-written"


def test_a_failure_is_recorded_where_a_full_disk_takes_no_new_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 2**20):
        run = make_run(disk)
        own_directory(run.failures)
        fill(disk)
        record_failure(run, FailureCause.storage, rank=1, node="node01", error="OSError: No space left on device")
        assert list(run.failures.iterdir()) == [], "and nothing half-written"
        (failed,) = events(run, "failed")
        assert (failed["cause"], failed["rank"]) == ("storage", 1)
