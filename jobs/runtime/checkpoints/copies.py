"""Copies of the newest checkpoint on a disk of each node: a restart there reads them, and not the shared file system.

    DIRECTORY/slurmscale-UID/checkpoints-DIGEST-NODE/step-00000020/    DIRECTORY is job.checkpoint_copy_dir

The checkpoint in the directory of the run stays the truth: it alone decides which step is loaded. A file of a copy is
read if the copy has the sums of that checkpoint (checksums.json) and the file has its own: so a copy that is torn, or
of another step or start, is never used. The first rank of a node copies the files of its ranks, in a thread, after the
checkpoint is complete; whatever prevents that is reported, and training goes on.

A file is checked where it is read (sums). Other nodes read small parts of it from the shared file system: values that
all ranks have. No rank reads the whole of it there, so these parts are checked by the sums inside them (Reader).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import torch.distributed as dist

from jobs import metrics as m
from jobs.files import exists, file_names, is_directory, opened, read_bytes, reason
from jobs.metrics import Metric
from jobs.private import defect
from jobs.ranks import node_name
from jobs.rundir import RunDir
from jobs.runtime.checkpoints.sums import CHUNK_BYTES, SUMS, sum_of, sums_of_ranks
from jobs.runtime.exchange import gather

# A copy that is under way when the run ends stops after its present chunk.
STOP_S = 10.0
METADATA = ".metadata"
"""Every rank reads it as a whole, and it is small: it is not copied."""


class Copies:
    """The copies of a run on this node; every rank creates one, together."""

    def __init__(self, directory: RunDir, wanted: str) -> None:
        self.wanted = os.path.expandvars(wanted)
        self.node = node_name()
        self.ranks = [rank for rank, name in enumerate(gather(self.node)) if name == self.node]
        """The ranks of this node."""
        digest = hashlib.sha256(os.fsencode(os.path.realpath(directory.path))).hexdigest()[:16]
        self.top = Path(self.wanted, f"slurmscale-{os.getuid()}")
        self.place = self.top / f"checkpoints-{digest}-{self.node}"
        self.whole: Collection[str] = frozenset()
        """Files of the checkpoint that is loaded of which this node has a whole copy."""
        self.unchecked: Collection[str] = frozenset()
        """Files that only other nodes have a whole copy of: no rank has read all of the shared one."""
        self.copy = self.place
        self.bytes_read = {m.CHECKPOINT_FROM_COPIES: 0, m.CHECKPOINT_FROM_SHARED: 0}
        self.thread: Thread | None = None
        self.ended = Event()
        self.errors: list[str] = []
        self.reported = False

    # --- copying ------------------------------------------------------------------------------------------------

    def begin(self, checkpoint: Path) -> None:
        """Copy the files of this node's ranks from a complete checkpoint, in the background; every rank calls it."""
        if dist.get_rank() != self.ranks[0]:
            return
        if self.thread is not None and self.thread.is_alive():
            self.errors.append(f"{checkpoint.name} was complete before the copy of the one before it")
            return
        # Not waited for where the process ends by an error: the copy is then torn, and not used.
        self.thread = Thread(target=self.attempt, args=(checkpoint,), name="checkpoint copy", daemon=True)
        self.thread.start()

    def attempt(self, checkpoint: Path) -> None:
        """Copy; keep the error, and leave no part of a copy."""
        try:
            self.write(checkpoint)
        except (OSError, ValueError) as error:
            self.errors.append(f"{self.wanted}: {reason(error)}")
            self.remove_all()

    def write(self, checkpoint: Path) -> None:
        """Write the copy aside and rename it. Raise OSError, or ValueError for sums that are damaged."""
        if not is_directory(self.wanted):
            raise OSError("there is no such directory")
        self.top.mkdir(mode=0o700, exist_ok=True)
        if problem := defect(self.top):
            raise OSError(f"{self.top} is not used: {problem}")
        # First, since it would never be read again, and the disk may have room for one only.
        self.remove_all()
        writing = self.place / f".{checkpoint.name}.writing"
        writing.mkdir(parents=True, mode=0o700)
        of_ranks = sums_of_ranks(checkpoint)
        names = {name for rank in self.ranks for name in of_ranks[rank]} - {METADATA}
        for name in [*sorted(names & set(file_names(checkpoint))), SUMS]:
            with opened(checkpoint / name) as source, (writing / name).open("xb") as target:
                while chunk := source.read(CHUNK_BYTES):
                    if self.ended.is_set():
                        return
                    target.write(chunk)
        writing.rename(self.place / checkpoint.name)

    def remove_all(self) -> None:
        """Remove the copies of this run on this node."""
        with suppress(OSError):
            if not defect(self.top):
                shutil.rmtree(self.place, ignore_errors=True)

    def unreported(self, group: dist.ProcessGroup | None) -> dict[str, list[str]]:
        """Return the first error of each node, once, with the nodes that met it; every rank of the group calls it."""
        new = None if self.reported or not self.errors else [self.errors[0], self.node]
        self.reported = self.reported or new is not None
        met: dict[str, list[str]] = {}
        for error, node in filter(None, gather(new, group)):
            met.setdefault(error, []).append(node)
        return met

    def clear(self) -> None:
        """Remove the copies, which a run that has ended needs no more; every rank calls it."""
        self.ended.set()
        if self.thread is not None:
            self.thread.join(STOP_S)
        if dist.get_rank() == self.ranks[0]:
            self.remove_all()

    # --- reading ------------------------------------------------------------------------------------------------

    def found(self, checkpoint: Path) -> bool:
        """Look for whole copies of the files of a checkpoint; return True if any node has one. Every rank calls it.

        The ranks of a node divide the work of computing the sums.
        """
        self.bytes_read = dict.fromkeys(self.bytes_read, 0)
        self.copy = self.place / checkpoint.name
        try:
            share = self.names(checkpoint)[self.ranks.index(dist.get_rank()) :: len(self.ranks)]
            of_ranks = sums_of_ranks(checkpoint) if share else []
            expected = {name: found for sums in of_ranks for name, found in sums.items()}
            mine = [name for name in share if sum_of(self.copy / name) == expected[name]]
        except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
            share, mine = [], []
            print(f"{self.copy} is not used: {error}", flush=True)
        if torn := [name for name in share if name not in mine]:
            print(f"{self.copy}: {', '.join(torn)} changed after the copy, and is read from {checkpoint}", flush=True)
        met = gather(mine)
        self.whole = {name for rank in self.ranks for name in met[rank]}
        self.unchecked = {name for names in met for name in names} - self.whole
        return any(met)

    def names(self, checkpoint: Path) -> list[str]:
        """Return the files of this node's copy of a checkpoint; none if there is no copy, or it is of another one."""
        if not exists(self.copy / SUMS) or defect(self.top):
            return []
        if read_bytes(self.copy / SUMS) != read_bytes(checkpoint / SUMS):
            return []
        return sorted(set(file_names(self.copy)) - {SUMS})

    def leave(self, error: Exception) -> None:
        """Read everything from the shared file system, after an error; every rank calls it."""
        if dist.get_rank() == 0:
            print(f"{error} All of it is read again, without the copies of nodes.", flush=True)
        self.whole = self.unchecked = frozenset()
        self.bytes_read = dict.fromkeys(self.bytes_read, 0)

    def counts(self, name: str, size_bytes: int) -> None:
        """Count bytes that are loaded from a file."""
        self.bytes_read[m.CHECKPOINT_FROM_COPIES if name in self.whole else m.CHECKPOINT_FROM_SHARED] += size_bytes

    def loaded(self) -> Mapping[Metric, int]:
        """Return the bytes that all ranks loaded, by where they lay; empty if none were. Every rank calls it."""
        of_ranks = gather(list(self.bytes_read.values()))
        found = dict(zip(self.bytes_read, map(sum, zip(*of_ranks, strict=True)), strict=True))
        return found if any(found.values()) else {}
