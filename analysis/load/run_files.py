"""The files of a run directory, each read once, so that all that is said of a run follows from the same bytes.

Their names and format are those of jobs/rundir.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs.rundir import RunDir, records_in

AT = RunDir(Path())
FILES = [path.name for path in (AT.config, AT.plan, AT.provenance, AT.status, AT.metrics)]
Contents = Mapping[str, bytes | OSError]
"""What the files of a run directory hold, by name, or why a file cannot be read."""
READ_AT_ONCE_BYTES = 1 << 20


class UnusableError(Exception):
    """Why a run is not used; analysis.load.run_directory makes it the run's reason."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


def contents_of(path: Path) -> Contents:
    """What is in the files of a run directory: all that a report reads of it, each file read once."""
    return {name: content_of(f"{path}/{name}") for name in FILES}


def content_of(path: str) -> bytes | OSError:
    """A file's content, or why there is none."""
    parts = []
    try:
        # Without the layers that pathlib and file objects add: of 10,000 runs these are 50,000 files.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while part := os.read(descriptor, READ_AT_ONCE_BYTES):
                parts.append(part)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Reading by a descriptor does not tell of which file.
        error.filename = path
        return error
    return b"".join(parts)


def missing(contents: Contents, file: Path) -> bool:
    """Whether a run directory has no such file."""
    return isinstance(contents[file.name], FileNotFoundError)


def bytes_of(contents: Contents, file: Path) -> bytes:
    """What a file of a run directory holds.

    Raises UnusableError when it is missing and OSError when it cannot be read.
    """
    if missing(contents, file):
        raise UnusableError("unreadable", f"no {file.name}")
    content = contents[file.name]
    if isinstance(content, OSError):
        raise content
    return content


def records_of(contents: Contents, file: Path) -> Iterator[dict[str, Any]]:
    """The records of a record file; a missing one has none."""
    return iter(()) if missing(contents, file) else records_in(bytes_of(contents, file).split(b"\n"))


def read_json(contents: Contents, file: Path) -> Mapping[str, Any]:
    """A JSON object; raises UnusableError when it is missing or something else."""
    try:
        value = json.loads(bytes_of(contents, file))
    except ValueError as error:
        raise UnusableError("unreadable", f"{file.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnusableError("unreadable", f"{file.name} is not a JSON object")
    return value
