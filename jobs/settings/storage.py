"""The keys of `storage`: work of a run that measures storage (job=checkpoint_io, data_read, fio)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from jobs.ranges import Count, NoneOrMore, NotNegative, Share


class CheckpointContent(Enum):
    """Numbers in a checkpoint for each parameter of the model."""

    native = "native"
    """Weight and AdamW's two moments in `engine.parameters`, as engine=native writes them: 12 bytes in float32."""
    mixed = "mixed"
    """A bfloat16 weight with the optimizer's float32 weight and moments, as MLPerf Storage has it: 14 bytes."""


@dataclass(kw_only=True)
class CheckpointIo:
    """A checkpoint of the model, written and read by all ranks from and to host memory."""

    content: CheckpointContent = CheckpointContent.native
    """Numbers in a checkpoint for each parameter of the model."""
    fraction: Share = 1.0
    """Share of the rows of every tensor, for machines too small for the model: tensors, files and ranks stay as many.
    Below 1 the result is labelled as reduced."""
    repeats: Count = 3
    """Times that a checkpoint is written, read and removed."""
    fsync: bool = True
    """Wait until each file is on storage; false: until the page cache has it."""
    writers_per_rank: Count = 1
    """Threads of a rank that write at once, each its own file."""
    read: bool = True
    """Read each checkpoint after the caches of the nodes were emptied of it."""


class DataFormat(Enum):
    """Format of the samples that loaders read."""

    text = "text"
    """JSON lines with "text", a sample a line."""
    megatron_binary = "megatron_binary"
    """Megatron's binary format, a sample a sequence, in random order."""
    tar = "tar"
    """Tar shards in WebDataset's layout: files of one sample share their name up to its first dot."""


@dataclass(kw_only=True)
class DataRead:
    """Samples read by the workers of a loader on every rank."""

    format: DataFormat
    """Format of the samples."""
    path: str | None = None
    """Directory of .jsonl or .tar files, or PREFIX of PREFIX.bin and PREFIX.idx; null: random samples are made in
    `storage.path` and removed again."""
    files: Count
    """Files that are made; of Megatron's format one pair is made."""
    samples: Count
    """Samples that are made, in all files together."""
    sample_bytes: Count
    """Size of a sample that is made."""
    workers: NoneOrMore
    """Processes of each rank that read; 0: the rank reads by itself."""
    batch_size: Count
    """Samples that a rank takes at once."""
    step_s: NotNegative = 0.0
    """Time that a rank waits in place of training on a batch, in which workers read ahead; 0: none."""


class FioPattern(Enum):
    """Access pattern, by fio's names (`--rw`)."""

    read = "read"
    """One block after the other."""
    write = "write"
    """One block after the other."""
    randread = "randread"
    """Blocks at random."""
    randwrite = "randwrite"
    """Blocks at random."""


@dataclass(kw_only=True)
class Fio:
    """One fio on every rank, all started together, each on files of its own."""

    pattern: FioPattern
    """Access pattern, by fio's names (`--rw`)."""
    block_kib: Count
    """Size of a block (`--bs`)."""
    size_mib: Count
    """Size of each job's file (`--size`)."""
    jobs: Count
    """Threads of each fio (`--numjobs`)."""
    depth: Count = 1
    """Blocks of a thread under way at once (`--iodepth`, by libaio above 1)."""
    direct: bool = True
    """Bypass the page cache (`--direct`)."""
    arguments: list[str] = field(default_factory=list)
    """Further arguments."""


@dataclass(kw_only=True)
class StorageTest:
    """A run that measures storage by one of `checkpoint`, `data` and `fio`."""

    path: str | None = None
    """Directory on the storage to measure, which all nodes see; null: the run directory."""
    checkpoint: CheckpointIo | None = None
    """Write and read a checkpoint (job=checkpoint_io); null: no."""
    data: DataRead | None = None
    """Read samples (job=data_read); null: no."""
    fio: Fio | None = None
    """Start fio (job=fio); null: no."""
