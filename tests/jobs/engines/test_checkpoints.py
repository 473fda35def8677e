"""Checkpoints under bad luck: a full disk, files cut short, a crash in between; and written while training goes on."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from copy import deepcopy
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from jobs.engines.native.checkpoint import FLAT, Saver, read_into, save_sharded
from jobs.engines.native.model import empty_model
from jobs.failure_causes import end_of, latest_attempt
from jobs.lease import Lease
from jobs.metrics import CHECKPOINT_SIZE, CHECKPOINT_WRITE_TIME
from jobs.ranks import Rank
from jobs.run_events import run_events
from jobs.rundir import RunDir, load_run
from jobs.runtime.watchdog import LEAST_BYTES_PER_S, LONGEST_SUSPENSION, Watchdog
from tests.support.real_run import FORK, events, losses, make_run, train
from tests.support.training import checkpoint_size_bytes, long, small_disk
from tests.support.waiting import limit_s

EVERY_TWO = ("ranks_per_node=2", "parallelism=fsdp_full", "job.checkpoint_every_steps=2", "job.keep_checkpoints=3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that nothing disturbed."""
    run = make_run(tmp_path_factory.mktemp("whole"), *EVERY_TWO)
    assert train(run) == [0, 0]
    return run


def half_way(where: Path) -> RunDir:
    """The same run, whose steps 5 and 6 are still to come: it has checkpoints of steps 2 and 4."""
    run = make_run(where, *EVERY_TWO)
    assert train(run) == [0, 0]
    shutil.rmtree(run.checkpoints / "step-00000006")
    return run


def checkpoints(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


@pytest.mark.parametrize("file", [long(".metadata"), "__1_0.distcp"])
@pytest.mark.parametrize("kept", [long(0.0), 0.5])
def test_a_checkpoint_cut_short_is_put_aside_and_the_one_before_it_is_used(
    file: str, kept: float, whole: RunDir, tmp_path: Path
) -> None:
    run = half_way(tmp_path)
    path = run.checkpoints / "step-00000004" / file
    os.truncate(path, int(path.stat().st_size * kept))
    assert train(run) == [0, 0]
    assert losses(run) == pytest.approx(losses(whole), abs=1e-5)
    assert events(run, "started")[-1]["from_step"] == 2
    assert checkpoints(run) == [".step-00000004.unreadable", "step-00000002", "step-00000004", "step-00000006"]
    (event,) = events(run, "checkpoint_unreadable")
    assert event["checkpoint"] == "step-00000004"


def test_each_checkpoint_records_its_size_and_the_time_of_writing_it(whole: RunDir) -> None:
    (end,), written = events(whole, "finished"), events(whole, "checkpoint")
    assert [event["step"] for event in written] == [2, 4, 6]
    for event in written:
        assert 0 < float(str(event[CHECKPOINT_WRITE_TIME.name])) < float(str(end["total_time_s"]))
        assert event[CHECKPOINT_SIZE.name] == pytest.approx(checkpoint_size_bytes(whole), rel=0.01)


def test_where_no_checkpoint_can_be_read_nothing_is_trained_and_a_person_decides(tmp_path: Path) -> None:
    run = half_way(tmp_path)
    for path in run.checkpoints.glob("*/.metadata"):
        path.unlink()
    assert 0 not in train(run)
    message = str(events(run, "failed")[0]["error"])
    assert f"No older checkpoint is readable; remove {run.checkpoints} to start over." in message
    assert events(run, "failed")[0]["cause"] == "refused"
    assert "step-00000002" in checkpoints(run), "what may be of use to somebody stays"


FULL = "OSError: [Errno 28] No space left on device"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("background", ["true", long("false")])
# The disk is full in the first part of a file, at its end, and in the midst of a tensor: torch raises differently.
@pytest.mark.parametrize("room", [long(1.05), long(1.2), long(1.6), 1.9])
def test_a_disk_that_is_full_costs_a_checkpoint_and_not_the_run(
    room: float, background: str, whole: RunDir, tmp_path: Path
) -> None:
    made = make_run(tmp_path, *EVERY_TWO, f"job.checkpoint_in_background={background}")
    run = RunDir(tmp_path / "test/full")
    with small_disk(run.checkpoints, room * checkpoint_size_bytes(whole)):
        shutil.copy(made.config, run.config)
        assert train(run) == [0, 0]
        assert checkpoints(run) == ["step-00000002"], "the last good one stays, and nothing half-written"
    assert losses(run) == pytest.approx(losses(whole), abs=1e-5)
    assert len(events(run, "finished")) == 1
    assert [event["step"] for event in events(run, "checkpoint")] == [2]
    failed = events(run, "checkpoint_failed")
    assert [event["step"] for event in failed] == [4, 6]
    assert {event["error"] for event in failed} == {FULL}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize(
    "room",
    [
        pytest.param(0.5, id="while ranks write their parts"),
        pytest.param(1.3, id="while the first rank writes them as one file"),
    ],
)
def test_a_run_whose_weights_find_no_room_at_its_end_states_that_the_disk_is_full(
    room: float, whole: RunDir, tmp_path: Path
) -> None:
    made = make_run(tmp_path, *EVERY_TWO[:2], "job.export=true", "job.checkpoint_every_steps=null")
    weights_size_bytes = checkpoint_size_bytes(whole) / 3  # Adam's two moments are the rest.
    records_size_bytes = sum(file.stat().st_size for file in whole.path.iterdir() if file.is_file())
    run = RunDir(tmp_path / "test/full")
    with small_disk(run.path, room * weights_size_bytes + records_size_bytes):
        shutil.copy(made.config, run.config)
        assert 0 not in train(run)
        end = end_of(latest_attempt(run_events(run)))
        assert end is not None
        assert FULL in str(end["error"])
        assert "Traceback" not in str(end["error"])
        assert not run.export.exists()


def saver_of(directory: RunDir, gpt: torch.nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> Saver:
    """Return the saver of the only rank of a run."""
    run, lease = load_run(directory.config), Lease(directory)
    watchdog = Watchdog(lease, Rank(0, 1, 0, "localhost", "start"), 600)
    return Saver(run, lease, gpt, optimizer, watchdog=watchdog, **more)


def save_while_training_goes_on(where: Path, parallelism: str) -> None:
    """Write a checkpoint in the background, held until the weights have changed, and compare what it contains."""
    dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=0, world_size=1)
    directory = make_run(where, f"parallelism={parallelism}", "ranks_per_node=1", "job.checkpoint_every_steps=1")
    run, held = load_run(directory.config), Event()
    gpt = empty_model(run.model, run.job.sequence_length)
    if parallelism == "fsdp_full":
        fully_shard(gpt, mesh=init_device_mesh("cpu", (1,)))
    gpt.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(gpt.parameters())

    def update(value: float) -> None:
        """Set weights and gradients, and the moments by a step."""
        for parameter in gpt.parameters():
            torch.nn.init.constant_(parameter, value)
            parameter.grad = torch.full_like(parameter, value)
        optimizer.step()

    counts = {"tokens": torch.tensor(1)}
    saver = saver_of(directory, gpt, optimizer, counts=counts)
    update(0.5)
    state = get_state_dict(gpt, optimizer, options=FLAT)
    saver.writer.submit(held.wait)
    saver.save(1, last=False)
    expected = deepcopy(state)
    update(2.0)
    counts["tokens"] += 1
    held.set()
    saver.finish()
    saver.load(directory.checkpoints / "step-00000001")
    assert counts["tokens"] == 1
    torch.testing.assert_close(get_state_dict(gpt, optimizer, options=FLAT), expected, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("parallelism", ["single", "fsdp_full"])
def test_a_checkpoint_written_in_the_background_holds_the_state_of_its_step(parallelism: str, tmp_path: Path) -> None:
    # Not a fork of a worker whose threads may hold locks.
    process = multiprocessing.get_context("spawn").Process(
        target=save_while_training_goes_on, args=(tmp_path, parallelism)
    )
    process.start()
    process.join(limit_s(120))
    assert process.exitcode == 0


def save_after_a_failure(where: Path, number: int) -> None:
    """One of two ranks: a checkpoint, one that rank 1 cannot begin, and two further ones of other numbers."""
    dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=number, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    (where / "file").touch()
    for step in range(4):
        values = torch.arange(40.0).view(10, 4) + step
        state = {"model": {"sharded": distribute_tensor(values, mesh, [Shard(0)])}, f"of rank {number}": values}
        directory = where / ("file/impossible" if step == 1 and number == 1 else str(step))
        if step == 1:
            with pytest.raises(CheckpointException):
                save_sharded(state, directory, keeps_plans=True)
            continue
        save_sharded(state, directory, keeps_plans=True)
        sharded, of_other = distribute_tensor(torch.zeros(10, 4), mesh, [Shard(0)]), torch.zeros(10, 4)
        read_into({"model": {"sharded": sharded}, f"of rank {1 - number}": of_other}, directory)
        assert torch.equal(sharded.full_tensor(), values)
        assert torch.equal(of_other, values)
        kept = SavePlanner._cached_all_plans
        assert bool(kept) == (number == 0), "the first rank keeps what all of them write"


def test_plans_are_kept_from_one_checkpoint_to_the_next_and_forgotten_after_one_that_failed(tmp_path: Path) -> None:
    ranks = [FORK.Process(target=save_after_a_failure, args=(tmp_path, number)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(limit_s(120))
    assert [process.exitcode for process in ranks] == [0, 0]


def limit_the_time_of_files(where: Path) -> None:
    """Compare the time that ranks wait for files with the bytes that an export writes and reads."""
    dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=0, world_size=1)
    directory = make_run(where, "ranks_per_node=1", "job.export=true", "engine.hang_timeout_s=500",
                         "job.checkpoint_every_steps=2")  # fmt: skip
    gpt = empty_model(load_run(directory.config).model, 32).to_empty(device="cpu")
    saver = saver_of(directory, gpt, torch.optim.AdamW(gpt.parameters()), counts={})
    weights_bytes = sum(parameter.nbytes for parameter in gpt.parameters())
    # Weights and two moments, of this checkpoint and the one before.
    assert saver.sizes_bytes["a checkpoint"] == 2 * 3 * weights_bytes
    # Written sharded, read again, and written as one file.
    assert saver.sizes_bytes["the export"] == 3 * weights_bytes
    assert saver.group is not None
    options = saver.group._get_backend(torch.device("cpu")).options
    longest_s = 500 + max(saver.sizes_bytes.values()) / LEAST_BYTES_PER_S
    assert options._timeout.total_seconds() == pytest.approx(LONGEST_SUSPENSION.total_seconds() + 2 * longest_s)


def test_ranks_wait_for_files_twice_as_long_as_these_may_take(tmp_path: Path) -> None:
    process = FORK.Process(target=limit_the_time_of_files, args=(tmp_path,))
    process.start()
    process.join(limit_s(120))
    assert process.exitcode == 0
