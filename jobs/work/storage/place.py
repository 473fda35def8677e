"""The directory that a test of storage writes into, and removes again."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.rundir import RunDir
from jobs.schema import Run

BEGINNING = "slurmscale-storage-"


def place_of(run: Run, directory: RunDir) -> Path:
    """Return the directory of a run's files on the storage: its own, in `storage.path` as well."""
    assert run.storage is not None
    if run.storage.path is None:
        return directory.path / f"{BEGINNING}test"
    # Two sweeps may have runs of one name.
    digest = zlib.crc32(str(directory.path.resolve()).encode())
    return Path(run.storage.path) / f"{BEGINNING}{run.name}-{digest:08x}"


@contextmanager
def emptied(place: Path, *, first: bool) -> Iterator[None]:
    """Remove the directory of a run before and after a test, on one rank."""
    if first:
        shutil.rmtree(place, ignore_errors=True)
    try:
        yield
    finally:
        if first:
            shutil.rmtree(place, ignore_errors=True)
