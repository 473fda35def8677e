"""A run directory has one owner: the start that came last writes, an earlier one stops by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import timeit
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]  # torch lists neither
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from jobs import lease as lease_module
from jobs.errors import CheckpointError
from jobs.lease import Lease, successor
from jobs.ranks import Rank
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.runtime.checkpoints.directory import complete, take_over, together, written_aside
from tests.support.cli import run_cli, small
from tests.support.real_run import events, make_run, printed, rank_environment, steps, train
from tests.support.waiting import limit_s, wait_until

FIRST = Rank(0, 1, 0, "127.0.0.1", "x")


@pytest.fixture
def alone() -> object:
    """A process group of this process."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def start(run: RunDir) -> BaseProcess:
    process = get_context("fork").Process(target=train, args=(run,))
    process.start()
    return process


def test_a_second_start_takes_the_run_over_and_the_first_one_stops_and_leaves_no_trace(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ranks_per_node=2", "job.steps=1000000", "job.checkpoint_every_steps=5",
                   "job.keep_checkpoints=3")  # fmt: skip
    first = start(run)
    wait_until(lambda: events(run, "checkpoint"), by=first)
    second = start(run)
    first.join(limit_s(180))
    assert first.exitcode == 0
    assert "process " in printed(run)
    assert " has taken over this run; this job stops" in printed(run)
    wait_until(lambda: any(row.get("attempt") == 2 for row in steps(run)), by=second)
    checkpoints_before = len(events(run, "checkpoint"))
    wait_until(lambda: len(events(run, "checkpoint")) > checkpoints_before + 3, by=second)
    for rank in psutil.Process(second.pid).children():
        os.kill(rank.pid, signal.SIGTERM)
    second.join(limit_s(180))

    _, began = events(run, "started")
    (end,) = events(run, "stopped")
    assert (began["attempt"], end["attempt"]) == (2, 2)
    assert not events(run, "failed")
    assert not events(run, "checkpoint_failed")
    attempts = [int(row["attempt"]) for row in read_records(run.metrics) if "step" in row]
    assert attempts == sorted(attempts), "nothing of the first start comes after the second has begun"
    seconds = [row["step"] for row in read_records(run.metrics) if row.get("attempt") == 2]
    assert seconds == list(range(int(str(began["from_step"])) + 1, int(str(end["step"])) + 1))
    assert not list(run.checkpoints.glob(".*"))
    for saved in complete(run.checkpoints):
        dcp_to_torch_save(saved, tmp_path / "whole.pth")
    assert complete(run.checkpoints)[-1].name == f"step-{end['step']:08d}"


def interrupted(final: Path, old: Lease, *, by: Lease) -> None:
    """Write a checkpoint, while another start takes the run over and completes one of the same step."""
    with written_aside(final, old) as writing:
        (writing / "part").write_text("old")
        take_over(by, FIRST)
        assert not writing.exists()
        with written_aside(final, by) as other:
            (other / "part").write_text("new")


def overtaken(final: Path, old: Lease, *, by: Lease) -> None:
    """Write a checkpoint, while another start takes the run over, whose look for what is left over was just before."""
    with written_aside(final, old) as writing:
        (writing / "part").write_text("old")
        by.number = by.take()


@pytest.mark.usefixtures("alone")
def test_what_a_start_began_to_write_after_the_other_had_cleaned_up_is_removed(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    final = run.checkpoints / "step-00000005"
    old, new = Lease(run), Lease(run)
    take_over(old, FIRST)
    with pytest.raises(CheckpointError, match="has taken over this run"):
        overtaken(final, old, by=new)
    assert not list(run.checkpoints.iterdir())


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_of_a_superseded_start_never_replaces_that_of_the_owner(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    final = run.checkpoints / "step-00000005"
    old, new = Lease(run), Lease(run)
    take_over(old, FIRST)
    with pytest.raises(CheckpointError, match="has taken over this run"):
        interrupted(final, old, by=new)
    with pytest.raises(CheckpointError, match="has taken over this run"), written_aside(final, old):
        pytest.fail("a start without the lease begins no checkpoint")
    assert (final / "part").read_text() == "new"
    assert [path.name for path in run.checkpoints.iterdir()] == [final.name]


def writing_rank(where: Path, number: int) -> None:
    """One of two ranks that export; the other one cannot write."""
    store = FileStore(str(where / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=number, world_size=2, timeout=timedelta(seconds=limit_s(120)))
    message = ""
    try:
        with written_aside(where / "export", Lease(RunDir(where))) as writing:
            missing = writing / "missing/weights"
            together(missing.touch if number == 1 else (writing / "weights").touch, None)
    except CheckpointError as error:
        message = str(error)
    (where / f"message{number}").write_text(message)


def test_an_error_of_writing_on_one_rank_is_raised_by_all_and_nobody_waits_for_it(tmp_path: Path) -> None:
    ranks = [get_context("fork").Process(target=writing_rank, args=(tmp_path, number)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(limit_s(180))
    assert [process.exitcode for process in ranks] == [0, 0]
    for number in range(2):
        assert (tmp_path / f"message{number}").read_text().endswith("missing/weights: No such file or directory")
    assert not list(tmp_path.glob("*export*"))


@pytest.mark.usefixtures("alone")
def test_a_start_that_slept_between_its_last_look_and_its_rename_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    final = run.checkpoints / "step-00000005"
    old, new = Lease(run), Lease(run)
    take_over(old, FIRST)
    monkeypatch.setattr(old, "is_lost", lambda: False)
    with pytest.raises(CheckpointError, match="No such file"):
        interrupted(final, old, by=new)
    assert (final / "part").read_text() == "new"


def test_of_starts_at_the_same_moment_each_has_a_number_of_its_own(tmp_path: Path) -> None:
    starts = [get_context("fork").Process(target=take, args=(tmp_path,)) for _ in range(16)]
    for process in starts:
        process.start()
    for process in starts:
        process.join(limit_s(60))
    assert sorted(path.name for path in RunDir(tmp_path).owners.iterdir()) == [
        f"{number:06d}.json" for number in range(1, 17)
    ]


def take(where: Path) -> None:
    Lease(RunDir(where)).take()


@pytest.mark.long
@pytest.mark.slow
def test_a_local_queue_leaves_a_run_to_the_person_who_started_it_by_hand(tmp_path: Path) -> None:
    endless = ["job.steps=1000000", "job.checkpoint_every_steps=20", "ranks_per_node=1", "wall_time_min=15"]
    # A queue of its own: the queues of a user take turns on a machine.
    submitted = run_cli("submit", *small(tmp_path), *endless, "name=r", TMPDIR=str(tmp_path))
    assert submitted.returncode == 0, submitted.stderr
    sweep = SweepDir(tmp_path / "s")
    run = sweep.run("r")
    wait_until(lambda: events(run, "checkpoint"))
    code = {"PYTHONPATH": str(run.code.resolve()), "PYTHONSAFEPATH": "1"}
    by_hand = subprocess.Popen(
        [sys.executable, "-m", "jobs.run", str(run.path)], env=os.environ | rank_environment(0, 1, "x") | code
    )
    wait_until(lambda: any(record["event"] == "ended" for record in read_records(sweep.submissions)))
    assert f"r: process {by_hand.pid} on " in (sweep.logs / "queue.log").read_text()
    assert by_hand.poll() is None
    by_hand.send_signal(signal.SIGTERM)
    assert by_hand.wait(limit_s(60)) == 0
    (end,) = events(run, "stopped")
    assert end["attempt"] == 2
    assert not events(run, "failed")
    assert not events(run, "requeued")


def test_only_a_start_that_owned_the_run_has_a_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    assert successor(run, "12", 0) is None
    for job_id, restart in (("12", "0"), ("12", "1"), ("13", "0")):
        monkeypatch.setenv("SLURM_JOB_ID", job_id)
        monkeypatch.setenv("SLURM_RESTART_COUNT", restart)
        Lease(run).take()
    found = successor(run, "12", 1)
    assert found is not None
    assert found.name == "job 13"
    assert successor(run, "13", 0) is None
    assert successor(run, "14", 0) is None, "its ranks have not met, so it owned nothing"


def test_the_last_of_several_owners_is_the_one_that_a_loss_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, leases = RunDir(tmp_path), []
    for job_id in ("11", "12", "13"):
        monkeypatch.setenv("SLURM_JOB_ID", job_id)
        leases.append(Lease(run))
        leases[-1].take()
    assert [str(lease.loss()) for lease in leases[:2]] == ["job 13 has taken over this run; this job stops"] * 2


def test_a_start_that_took_the_run_back_has_no_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    for job_id in ("12", "13", "12"):
        monkeypatch.setenv("SLURM_JOB_ID", job_id)
        Lease(run).take()
    assert successor(run, "12", 0) is None
    found = successor(run, "13", 0)
    assert found is not None
    assert (found.number, found.name) == (3, "job 12")


def test_files_that_no_start_wrote_are_no_owners_and_one_that_cannot_be_read_is(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.owners.mkdir(mode=0o700)
    assert Lease(run).take() == 1, "an empty directory has no owner"
    for name in ("000009.txt", "notes.json", "000008.json.part", "x.json", "00000x.json"):
        (run.owners / name).write_text("{}")
    lease = Lease(run)
    assert lease.take() == 2
    (run.owners / "000007.json").write_text("")
    assert lease.is_lost()
    assert "another start has taken over" in str(lease.loss())
    assert Lease(run).take() == 8


def test_a_look_at_the_owner_takes_less_than_a_millisecond(tmp_path: Path) -> None:
    lease = Lease(RunDir(tmp_path))
    for _ in range(20):
        lease.take()
    # The fastest of many: the others measure the load of the machine.
    assert min(timeit.repeat(lease.is_lost, number=1, repeat=200)) < 1e-3


def test_a_moment_in_which_the_owners_cannot_be_listed_is_no_loss_of_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    lease = Lease(run)
    assert lease.take() == 1
    run.owners.rename(tmp_path / "away")
    assert not lease.is_lost()
    (tmp_path / "away").rename(run.owners)
    assert not lease.is_lost()
    assert Lease(run).take() == 2
    assert lease.is_lost()
    assert "has taken over this run" in str(lease.loss())


def test_two_starts_that_see_no_owner_at_once_get_different_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    first, second = Lease(run), Lease(run)
    monkeypatch.setattr(lease_module, "highest_number", lambda _run: 0)
    assert first.take() == 1
    names = {path.name: path.read_text() for path in run.owners.iterdir()}
    assert second.take() == 2
    monkeypatch.undo()
    assert {name: (run.owners / name).read_text() for name in names} == names, "the owner before is still on record"
    assert first.is_lost()
    assert not second.is_lost()
