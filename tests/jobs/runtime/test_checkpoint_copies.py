"""Copies of checkpoints on a disk of each node: read after a kill where they are whole, and never needed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from jobs import metrics as m
from jobs.engines.native.checkpoint import read_into, save_sharded
from jobs.errors import CheckpointError
from jobs.rundir import RunDir
from jobs.runtime.checkpoints.copies import Copies
from jobs.runtime.checkpoints.directory import loaded, write_sums
from jobs.runtime.checkpoints.sums import SUMS
from jobs.runtime.recorder import Recorder
from tests.jobs.runtime.test_checkpoint_sums import flip
from tests.support.real_run import events, losses, make_run, printed, rank, train
from tests.support.training import long, small_disk
from tests.support.waiting import wait_until

EVERY_TWO = ("ranks_per_node=1", "nodes=2", "job.steps=6", "job.checkpoint_every_steps=2", "job.keep_checkpoints=3")
NEWEST = "step-00000004"


# --- runs that are killed ------------------------------------------------------------------------------------------


def on_its_node(directory: Path, number: int, world: int, start: str, *, nodes: tuple[str, str]) -> None:
    """Run a rank on a node of its own, as Slurm names it."""
    os.environ["SLURMD_NODENAME"] = nodes[number]
    rank(directory, number, world, start)


def killed_after(last: int, saved: str, directory: Path, *, disk: Path | None, copies: int) -> None:
    """Let this rank kill itself after a step, when a checkpoint and its copies on so many nodes are complete."""
    recorded, shared = Recorder.step, RunDir(directory).checkpoints / saved

    def step(recorder: Recorder, step: int, **values: Any) -> None:
        recorded(recorder, step, **values)
        if step == last:
            wait_until(lambda: shared.exists() and (disk is None or len(list(disk.glob(f"*/*/{saved}"))) == copies))
            os.kill(os.getpid(), signal.SIGKILL)

    Recorder.step = step  # type: ignore[assignment, method-assign]


def killed(directory: Path, number: int, world: int, start: str, *, disk: Path | None) -> None:
    """Run a rank that is killed after step 5, when the checkpoint of step 4 and its copies are complete."""
    killed_after(5, NEWEST, directory, disk=disk, copies=world)
    on_its_node(directory, number, world, start, nodes=("node0", "node1"))


def killed_run(where: Path, *overrides: str, disk: Path | None = None) -> RunDir:
    run = make_run(where, *EVERY_TWO, *overrides)
    assert train(run, of_rank=partial(killed, disk=disk)) == [-signal.SIGKILL] * 2, printed(run)
    return run


def copying(disk: Path) -> str:
    return f"job.checkpoint_copy_dir={disk}"


def continued(run: RunDir, nodes: tuple[str, str] = ("node0", "node1")) -> tuple[int, int]:
    """Start a killed run again; return the bytes that it loaded from copies, and from the directory of the run."""
    assert train(run, of_rank=partial(on_its_node, nodes=nodes)) == [0, 0], printed(run)
    start = events(run, "started")[-1]
    assert start["from_step"] == 4
    assert not events(run, "checkpoint_unreadable")
    return tuple(start.get(each.name, 0) for each in (m.CHECKPOINT_FROM_COPIES, m.CHECKPOINT_FROM_SHARED))  # type: ignore[return-value]


@pytest.fixture(scope="module", params=["fsdp_full", long("ddp")])
def parallelism(request: pytest.FixtureRequest) -> str:
    return f"parallelism={request.param}"


@pytest.fixture(scope="module")
def without(parallelism: str, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that was killed and started again without copies."""
    run = killed_run(tmp_path_factory.mktemp("without"), parallelism)
    assert continued(run) == (0, 0)
    return run


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    place = tmp_path / "local"
    place.mkdir()
    return place


def test_ranks_that_were_killed_continue_from_the_copies_of_their_nodes(
    parallelism: str, without: RunDir, disk: Path, tmp_path: Path
) -> None:
    run = killed_run(tmp_path, parallelism, copying(disk), disk=disk)
    from_copies, from_shared = continued(run)
    # A node has written half of replicated weights, and of shards all but AdamW's counts, which all ranks have.
    assert from_copies > (3 if "fsdp" in parallelism else 0.7) * from_shared
    assert losses(run) == losses(without)
    assert not list(disk.glob("*/*")), "a run that is done needs no copies"
    assert not events(run, "checkpoint_copy_failed")


def torn(copy: Path) -> None:
    flip(next(copy.glob("__*")))


def cut(copy: Path) -> None:
    file = next(copy.glob("__*"))
    os.truncate(file, file.stat().st_size // 2)


def of_another_step(copy: Path) -> None:
    """Leave what a copy of the step before leaves, under the name of this one."""
    shared = Path(str((copy / "shared").readlink()))
    (copy / SUMS).write_bytes((shared.with_name("step-00000002") / SUMS).read_bytes())


@pytest.mark.parametrize(
    "damage", [pytest.param(torn, id="torn"), long(cut), long(of_another_step)], ids=lambda each: each.__name__
)
def test_a_node_whose_copy_is_not_that_of_the_checkpoint_reads_the_shared_one(
    damage: Callable[[Path], None], without: RunDir, parallelism: str, disk: Path, tmp_path: Path
) -> None:
    run = killed_run(tmp_path, parallelism, copying(disk), disk=disk)
    (copy,) = disk.glob(f"*/*-node1/{NEWEST}")
    (copy / "shared").symlink_to(run.checkpoints / NEWEST)
    damage(copy)
    (copy / "shared").unlink()
    from_copies, from_shared = continued(run)
    assert min(from_copies, from_shared) > 0
    assert losses(run) == losses(without)


@pytest.mark.slow
@pytest.mark.long
def test_a_spare_node_without_a_copy_reads_the_shared_checkpoint(
    without: RunDir, parallelism: str, disk: Path, tmp_path: Path
) -> None:
    run = killed_run(tmp_path, parallelism, copying(disk), disk=disk)
    from_copies, from_shared = continued(run, nodes=("node0", "node2"))
    assert min(from_copies, from_shared) > 0
    assert losses(run) == losses(without)


@pytest.mark.slow
@pytest.mark.long
def test_a_shared_checkpoint_that_is_older_than_the_copies_decides(
    without: RunDir, parallelism: str, disk: Path, tmp_path: Path
) -> None:
    run = killed_run(tmp_path, parallelism, copying(disk), disk=disk)
    shutil.rmtree(run.checkpoints / NEWEST)
    assert train(run, of_rank=partial(on_its_node, nodes=("node0", "node1"))) == [0, 0], printed(run)
    start = events(run, "started")[-1]
    assert start["from_step"] == 2
    assert start[m.CHECKPOINT_FROM_COPIES.name] == 0
    assert losses(run) == losses(without)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", ["full", "absent", "of others"])
def test_a_disk_that_takes_no_copies_is_reported_once_and_training_goes_on(
    how: str, without: RunDir, parallelism: str, tmp_path: Path
) -> None:
    disk = tmp_path / "small"
    with small_disk(disk, 2**16):
        place = disk / "none" if how == "absent" else disk
        if how == "of others":
            (disk / f"slurmscale-{os.getuid()}").mkdir(mode=0o777)
            (disk / f"slurmscale-{os.getuid()}").chmod(0o777)
        run = make_run(tmp_path, *EVERY_TWO, parallelism, copying(place))
        assert train(run, of_rank=partial(on_its_node, nodes=("node0", "node1"))) == [0, 0], printed(run)
        assert not list(disk.glob("*/*"))
    assert losses(run) == losses(without)
    words = {
        "full": f"{place}: No space left on device",
        "absent": f"{place}: there is no such directory",
        "of others": f"{place}: {place}/slurmscale-0 is not used: others can enter it; run `chmod 700 ",
    }[how]
    (failed,) = events(run, "checkpoint_copy_failed")
    assert str(failed["error"]).startswith(words)
    assert failed["nodes"] == ["node0", "node1"]
    assert f"no copy of a checkpoint on node0, node1: {words}" in printed(run)


# --- one process ---------------------------------------------------------------------------------------------------

STATE = {"a": torch.arange(5000.0), "b": torch.ones(40, 30), "step": torch.tensor(1)}


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint of one rank, in a process group of this process alone."""
    directory = tmp_path / "run/checkpoints/step-00000001"
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    write_sums(directory, save_sharded(STATE, directory))
    yield directory
    dist.destroy_process_group()


def copies_of(saved: Path, disk: Path) -> Copies:
    """Return the copies of a run, with that of this checkpoint."""
    copies = Copies(RunDir(saved.parent.parent), str(disk))
    copies.begin(saved)
    assert copies.thread is not None
    copies.thread.join()
    return copies


def load(copies: Copies, path: Path) -> int:
    state = {name: torch.zeros_like(value) for name, value in STATE.items()}
    read_into(state, path, copies)
    assert torch.equal(state["a"], STATE["a"])
    return int(state["step"])


def read_bytes_of(copies: Copies, saved: Path) -> tuple[bool, bool]:
    """Load a checkpoint; return whether bytes came from copies, and from the directory of the run."""
    assert loaded(saved, partial(load, copies), list, copies) == 1
    found = copies.loaded()
    return found[m.CHECKPOINT_FROM_COPIES] > 0, found[m.CHECKPOINT_FROM_SHARED] > 0


def test_a_copy_is_read_in_place_of_a_shared_file_that_nobody_can_read_any_more(saved: Path, disk: Path) -> None:
    copies = copies_of(saved, disk)
    (saved / "__0_0.distcp").write_bytes(b"")
    assert read_bytes_of(copies, saved) == (True, False)


@pytest.mark.parametrize("damage", [torn, cut, lambda copy: (copy / SUMS).write_text("{}"), shutil.rmtree])
def test_a_copy_that_is_not_whole_is_not_read(damage: Callable[[Path], None], saved: Path, disk: Path) -> None:
    copies = copies_of(saved, disk)
    damage(next(disk.glob("*/*/step-*")))
    assert read_bytes_of(copies, saved) == (False, True)


def test_copies_that_vanish_while_they_are_read_do_not_end_the_run(
    saved: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = copies_of(saved, disk)

    def vanishing(path: Path) -> int:
        if copies.whole:
            shutil.rmtree(copies.place)
        return load(copies, path)

    assert loaded(saved, vanishing, list, copies) == 1
    assert "All of it is read again, without the copies of nodes." in capsys.readouterr().out


def test_what_nobody_has_checked_as_a_whole_is_checked_by_the_value(saved: Path, disk: Path) -> None:
    copies = copies_of(saved, disk)
    copies.unchecked = {"__0_0.distcp"}
    assert load(copies, saved) == 1
    flip(saved / "__0_0.distcp")
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: archive/data/0 changed after it was written"):
        load(copies, saved)


def test_the_newest_checkpoint_alone_is_kept_and_nothing_of_other_runs_is_touched(saved: Path, disk: Path) -> None:
    other = copies_of(saved, disk).place.with_name("checkpoints-of-another-run")
    other.mkdir()
    later = saved.with_name("step-00000002")
    shutil.copytree(saved, later)
    copies = copies_of(later, disk)
    assert [path.name for path in copies.place.iterdir()] == [later.name]
    copies.clear()
    assert list(copies.top.iterdir()) == [other]


def test_a_node_replaces_the_variables_of_its_directory(
    saved: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISK", str(disk))
    copies = Copies(RunDir(saved.parent.parent), "$DISK")
    assert copies.top.parent == disk
