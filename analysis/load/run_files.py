"""The files of a run directory, each read once, so that every number of a run comes from the same bytes.

jobs/rundir.py defines their names and formats.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs.files import DOCUMENT_BYTES, RECORD_BYTES, RECORD_FILE_BYTES, YAML_BYTES, parse_json, read_bytes
from jobs.run_events import failures_of, merged, placed_records
from jobs.rundir import RunDir, records_in

AT = RunDir(Path())
FILES = [path.name for path in (AT.config, AT.plan, AT.provenance, AT.status, AT.metrics)]
Contents = Mapping[str, bytes | OSError]
"""The bytes of each file of a run directory by its name, or the error of reading it."""
RECORDS = (AT.status.name, AT.metrics.name)


class UnusableError(Exception):
    """The reason that a run is not used; analysis.load.run_directory stores it in the run."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


def content_of(path: str) -> bytes | OSError:
    """Return a file's content, or the error of reading it."""
    try:
        if path.endswith(RECORDS):
            return read_bytes(path, RECORD_FILE_BYTES, RECORD_BYTES)
        return read_bytes(path, YAML_BYTES if path.endswith(AT.config.name) else DOCUMENT_BYTES)
    except OSError as error:
        return error


def missing(contents: Contents, file: Path) -> bool:
    """Return True if a run directory does not have the file."""
    return isinstance(contents[file.name], FileNotFoundError)


def bytes_of(contents: Contents, file: Path) -> bytes:
    """Return the content of a file. Raise UnusableError if it is missing and OSError if it cannot be read."""
    if missing(contents, file):
        raise UnusableError("unreadable", f"no {file.name}")
    content = contents[file.name]
    if isinstance(content, OSError):
        raise content
    return content


def records_of(contents: Contents, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a record file; a missing file has none."""
    return iter(()) if missing(contents, file) else records_in(bytes_of(contents, file).split(b"\n"))


def events_of(contents: Contents, run: RunDir) -> Iterator[dict[str, Any]]:
    """Yield the events of a run, with the failures in files of their own. Raise OSError if they cannot be read."""
    status = b"" if missing(contents, AT.status) else bytes_of(contents, AT.status)
    records = merged(placed_records(io.BytesIO(status)), failures_of(run))
    return (record for record in records if isinstance(record.get("event"), str))


def read_json(contents: Contents, file: Path) -> Mapping[str, Any]:
    """Return a JSON object; raise UnusableError if it is missing or something else."""
    try:
        value = parse_json(bytes_of(contents, file))
    except ValueError as error:
        raise UnusableError("unreadable", f"{file.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnusableError("unreadable", f"{file.name} is not a JSON object")
    return value
