"""Tests of storage: what every rank does around one, from meeting the others to the recorded end. No GPU is used."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from jobs import metrics as m
from jobs.failure_causes import STOPS
from jobs.lease import Lease
from jobs.ranks import Rank, restart_count, scheduled_job_id
from jobs.rundir import read_events
from jobs.runtime.checkpoints.directory import group_of_files, take_over
from jobs.runtime.machine import StopRequest, cpu_name, process_start
from jobs.runtime.process_group import connect, nodes_of_run
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run
from jobs.work.storage.place import emptied, place_of
from jobs.work.storage.session import Session, StoppedError
from jobs.work.storage.space import needed_bytes, refused_memory, refused_space


def storage_test(run: Run, lease: Lease, rank: Rank) -> None:
    """Make the test of the run to its end; every rank calls it."""
    stop = StopRequest()
    watchdog = Watchdog(lease, rank, run.engine.hang_timeout_s)
    torch.set_num_threads(run.engine.cpu_threads_per_rank)
    watchdog.begins("meeting the other ranks")
    connect(run, lease, rank, torch.device("cpu"))
    take_over(lease, rank)
    place = place_of(run, lease.run)
    session = Session(run, lease, rank, group_of_files(run, needed_bytes(run)), watchdog, stop, place)
    directory = lease.run
    attempt = 1 + sum(event["event"] == "started" for event in read_events(directory.status))
    session.record(
        "started", attempt=attempt, restart=restart_count(), from_step=0, ranks=run.ranks, job_id=scheduled_job_id(),
        **nodes_of_run(run.nodes), device="cpu", device_name=cpu_name(), torch=torch.__version__,
    )  # fmt: skip
    session.refuse(missing(run))
    try:
        with emptied(place, first=rank.is_first):
            session.refuse(refused_space(run, place) or refused_memory(run))
            test_of(run)(session)
            # Rank 0 removes the directory behind this line: no rank may still read it.
            dist.barrier(session.group)
    except StoppedError:
        session.record("stopped", attempt=attempt, step=0, reason=STOPS[signal.Signals(stop.signal)].reason)
    else:
        session.record("finished", attempt=attempt, step=0, **{m.TOTAL_TIME.name: time.time() - process_start()})
    watchdog.stop()
    dist.destroy_process_group()


def missing(run: Run) -> str | None:
    """Return the refusal of a `storage.path` that this node does not see."""
    assert run.storage is not None
    path = run.storage.path
    if path is None or Path(path).is_dir():
        return None
    return f"storage.path={path} is not a directory on this node. Set storage.path=DIRECTORY, which all nodes see."


def test_of(run: Run) -> Callable[[Session], None]:
    """Return the test of a run. Import it here: only checkpoints need the engine, whose imports take seconds."""
    test = run.storage
    assert test is not None
    if test.checkpoint is not None:
        from jobs.runtime.imports import import_litgpt_alone

        import_litgpt_alone()
        from jobs.work.storage.checkpoint import checkpoint_io

        return checkpoint_io
    if test.data is not None:
        from jobs.work.storage.loader import data_read

        return data_read
    from jobs.work.storage.fio import fio

    return fio
