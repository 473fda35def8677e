"""Data reading: batches from the workers of torch's DataLoader on every rank, first from storage, then from memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from jobs import metrics as m
from jobs.failure_causes import STOPS
from jobs.metrics import StoragePhase
from jobs.runtime import storage_io
from jobs.schema import Run
from jobs.settings.storage import DataFormat
from jobs.work.storage.samples import files_of, make, sizes_of_sequences, sizes_of_tar, sizes_of_text
from jobs.work.storage.session import Session
from jobs.work.storage.space import needed_bytes

PASSES = ("cold", "warm")


class Sizes(IterableDataset[int]):
    """The sizes of the samples of a rank, each after it was read; every worker has its own files, or sequences."""

    def __init__(self, run: Run, files: list[Path], rank: int) -> None:
        super().__init__()
        self.run, self.files, self.rank = run, files, rank

    def __iter__(self) -> Iterator[int]:
        """Yield the sizes of the samples of this worker."""
        assert self.run.storage is not None
        assert self.run.storage.data is not None
        kind, worker = self.run.storage.data.format, get_worker_info()
        of_rank, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        reader, readers = self.rank * of_rank + number, self.run.ranks * of_rank
        if kind is DataFormat.megatron_binary:
            index_file, bin_file = self.files
            yield from sizes_of_sequences(index_file, bin_file, reader, readers, self.run.job.seed)
            return
        read = sizes_of_text if kind is DataFormat.text else sizes_of_tar
        for file in self.files[reader::readers]:
            yield from read(file)


def data_read(session: Session) -> None:
    """Read all samples twice, after the caches were emptied and after they were filled; record each pass."""
    run = session.run
    assert run.storage is not None
    data = run.storage.data
    assert data is not None
    if data.path is None:
        session.begins("making the samples", needed_bytes(run))
        if session.rank.is_first:
            session.place.mkdir(parents=True)
        dist.barrier(session.group)
        files = 1 if data.format is DataFormat.megatron_binary else data.files
        make(data, session.place, range(session.rank.rank, files, run.ranks), files)
        dist.barrier(session.group)
    listed = [str(file) for file in files_of(data.format, Path(data.path) if data.path else session.place)]
    # Rank 0's list: on a network file system another node may see an older one.
    files_read = [Path(file) for file in session.gather(listed)[0]]
    session.refuse(idle_readers(run, len(files_read)))
    size = sum(file.stat().st_size for file in files_read)
    storage_io.begin(StoragePhase.load)
    for name in PASSES:
        session.begins(f"reading the samples ({name})", size)
        share = session.cached_share(files_read, drop=name == "cold")
        # Ranks begin together: the storage is measured under the load of all of them.
        dist.barrier(session.group)
        mine = read_once(run, files_read, session.rank.rank)
        ranks = session.gather(mine)
        session.record(
            "data_read",
            cache=name,
            cached_share=share,
            **{m.DATA_READ_TIME.name: max(time_s for _, _, time_s, _ in ranks)},
            ranks=[
                {"rank": rank, "samples": samples, "size_bytes": read, "time_s": time_s, "waited_s": waited_s}
                for rank, (samples, read, time_s, waited_s) in enumerate(ranks)
            ],
        )


def idle_readers(run: Run, files: int) -> str | None:
    """Return the refusal of data that has not a file for each reader, None if it has."""
    assert run.storage is not None
    data = run.storage.data
    assert data is not None
    readers = run.ranks * max(1, data.workers)
    if data.format is DataFormat.megatron_binary or files >= readers:
        return None
    return (
        f"storage.data.path={data.path} has {files} files, and {run.ranks} ranks x {max(1, data.workers)} workers = "
        f"{readers} readers each need one. Set storage.data.workers={files // run.ranks} or fewer, or fewer ranks."
    )


def end_when_asked(_worker: int) -> None:
    """Let the signals that ask a rank to stop end its worker, which inherits the rank's handlers."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


def read_once(run: Run, files: list[Path], rank: int) -> tuple[int, int, float, float]:
    """Return samples, bytes, seconds, and seconds waited for a batch, of one pass over the samples of this rank."""
    assert run.storage is not None
    data = run.storage.data
    assert data is not None
    loader = DataLoader(
        Sizes(run, files, rank),
        batch_size=data.batch_size,
        num_workers=data.workers,
        # torch's own collation would make tensors of the sizes.
        collate_fn=list,
        worker_init_fn=end_when_asked,
    )
    samples, size, waited_s = 0, 0, 0.0
    began = fence = time.perf_counter()
    for batch in loader:
        waited_s += time.perf_counter() - fence
        samples, size = samples + len(batch), size + sum(batch)
        # In place of a training step, behind which the workers can read ahead.
        if data.step_s:
            time.sleep(data.step_s)
        fence = time.perf_counter()
    ended = time.perf_counter()
    # The workers have ended, and so have waits for them.
    return samples, size, ended - began, waited_s + ended - fence
