"""Checkpoint I/O: write and read the state of a model by torch.distributed.checkpoint, as engine=native does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from jobs import metrics as m
from jobs.engines.native.checkpoint import Writer
from jobs.engines.native.parallelize import device_mesh
from jobs.errors import CheckpointError
from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.layout import layout_of
from jobs.metrics import StoragePhase
from jobs.runtime import storage_io
from jobs.runtime.checkpoints.directory import met_by_ranks, remove, written_aside
from jobs.runtime.checkpoints.pickles import MALFORMED, load_as_data
from jobs.work.storage.session import Session
from jobs.work.storage.state import CPU, checksum, fill, forget, size_bytes, state_of


class TimedWriter(Writer):
    """The writer of the native engine, with the time and the bytes of this rank's files."""

    time_s = 0.0
    size_bytes = 0

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shards."""
        fence = time.perf_counter()
        written = super().write_data(plan, planner)
        self.size_bytes = sum(each.size_in_bytes for each in written.wait())
        self.time_s = time.perf_counter() - fence
        return written


class TimedReader(FileSystemReader):
    """DCP's reader, with the time that this rank reads."""

    time_s = 0.0

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's shards."""
        fence = time.perf_counter()
        read: Future[None] = super().read_data(plan, planner)
        read.wait()
        self.time_s = time.perf_counter() - fence
        return read


def checkpoint_io(session: Session) -> None:
    """Write, read and remove the checkpoint of the run `repeats` times; record each."""
    test = session.run.storage
    assert test is not None
    assert test.checkpoint is not None
    session.begins("building the state")
    state = state_of(session.run, device_mesh(layout_of(session.run), CPU))
    whole_bytes = sum(session.gather(size_bytes(state)))
    for repeat in range(1, test.checkpoint.repeats + 1):
        session.begins(f"making the numbers of checkpoint {repeat}", whole_bytes)
        fill(state, repeat)
        expected = checksum(state)
        final = session.place / f"step-{repeat:08d}"
        session.begins(f"writing checkpoint {repeat}", whole_bytes)
        write(session, state, final, repeat)
        if test.checkpoint.read:
            session.begins(f"reading checkpoint {repeat}", whole_bytes)
            read(session, state, final, repeat)
            wrong = session.gather(checksum(state) != expected)
            if any(wrong):
                raise KnownCauseError(
                    FailureCause.storage, f"rank {wrong.index(True)} read other bytes from {final} than it wrote"
                )
        if session.rank.is_first:
            remove(final)


def write(session: Session, state: dict[str, Any], final: Path, repeat: int) -> None:
    """Write the checkpoint and record its time, and those of the ranks."""
    assert session.run.storage is not None
    settings = session.run.storage.checkpoint
    assert settings is not None
    dist.barrier(session.group)
    fence = time.perf_counter()
    with written_aside(final, session.lease, session.group) as writing:
        writer = TimedWriter(writing, sync_files=settings.fsync, thread_count=settings.writers_per_rank)
        reported(final, lambda: save_dcp(dict(state), storage_writer=writer, process_group=session.group))
    whole_s = time.perf_counter() - fence
    ranks = session.gather([writer.time_s, writer.size_bytes])
    session.record(
        "checkpoint_written",
        repeat=repeat,
        **{m.CHECKPOINT_WRITE_TIME.name: whole_s, m.CHECKPOINT_SIZE.name: sum(size for _, size in ranks)},
        ranks=[{"rank": rank, "time_s": time_s, "size_bytes": size} for rank, (time_s, size) in enumerate(ranks)],
    )


def read(session: Session, state: dict[str, Any], final: Path, repeat: int) -> None:
    """Empty the caches, read the checkpoint, and record its time, those of the ranks, and what the caches had."""
    forget(state)
    files = [file for file in sorted(final.rglob("*")) if file.is_file()]
    share = session.cached_share(files, drop=True)
    storage_io.begin(StoragePhase.load)
    load_as_data()
    reader = TimedReader(final)
    dist.barrier(session.group)
    fence = time.perf_counter()
    reported(final, lambda: load_dcp(state, storage_reader=reader, process_group=session.group))
    # The time of the slowest rank: training goes on when the last one has its state.
    dist.barrier(session.group)
    whole_s = time.perf_counter() - fence
    ranks = session.gather([reader.time_s, size_bytes(state)])
    session.record(
        "checkpoint_read",
        repeat=repeat,
        **{m.CHECKPOINT_READ_TIME.name: whole_s, m.CHECKPOINT_SIZE.name: sum(size for _, size in ranks)},
        cached_share=share,
        ranks=[{"rank": rank, "time_s": time_s, "size_bytes": size} for rank, (time_s, size) in enumerate(ranks)],
    )


def reported(place: Path, action: Callable[[], Any]) -> None:
    """Run a collective action of DCP; raise its errors with those of all ranks as CheckpointError."""
    try:
        action()
    except (CheckpointException, OSError, RuntimeError, *MALFORMED) as error:
        raise CheckpointError(f"The checkpoint in {place} failed: {met_by_ranks(error)}.") from error
