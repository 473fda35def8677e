"""The events of a run: those of status.jsonl, and the failures of its ranks, each in a file of its own.

When a run breaks, ranks of many nodes fail at once, and appends of several NFS clients to one file overwrite each
other. So a rank writes its failure to a new file in failures/ of the run directory. status.jsonl has one writer at a
time: rank 0, and before and after the ranks the command, batch script, local queue or pilot that starts and ends them.

The clocks of nodes do not decide the place of a failure among the events. It contains the size of status.jsonl when
the rank failed, `status_bytes`, and stands where it would have been appended. The number in the name of its file is
higher than all that the rank saw, so a submission knows the failures before it by their highest number. Only ranks that
failed so close together that none saw the file of another are ordered by their clocks.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from jobs.event_fields import checked_event
from jobs.files import file_names, opened, parse_json, read_bytes, read_lines
from jobs.output import NO_SPACE, own_directory
from jobs.rundir import RunDir, append_record, read_events, records_in, unreadable_event, write_json

FAILURE_FILE = re.compile(r"[0-9]{6,}-restart-[0-9]+-rank-[0-9]+-[0-9a-f]{8}\.json")
# A received run may have any number of files of any size; those with the highest numbers are read.
MOST_FAILURES = 50_000
FAILURE_BYTES = 1 << 20
# Its characters take at most 12 bytes each in JSON.
LONGEST_ERROR = 50_000
NUMBER, PLACE = "failure_number", "status_bytes"

Event = TypeVar("Event", bound=Mapping[str, Any])


# --- write -----------------------------------------------------------------------------------------------------


def write_failure(run: RunDir, record: dict[str, Any], *, restart: int, rank: int) -> None:
    """Write the failure of a rank to a file of its own, which appears complete; no other process has its name."""
    try:
        directory = own_directory(run.failures)
        number = highest_failure(run) + 1
        name = f"{number:06d}-restart-{restart}-rank-{rank:05d}-{secrets.token_hex(4)}.json"
        size = size_bytes(run.status)
        write_json(directory / name, record if size is None else record | {PLACE: size})
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        # The last block of status.jsonl may have room for a record where a full disk has none for a file.
        append_record(run.status, record)


def size_bytes(path: Path) -> int | None:
    """Return the size of a file; None if it cannot be opened. NFS asks the server when a file is opened."""
    with suppress(OSError), opened(path) as file:
        return os.fstat(file.fileno()).st_size
    return None


# --- read ------------------------------------------------------------------------------------------------------


def run_events(run: RunDir) -> list[dict[str, Any]]:
    """Return the events of a run in their order; skip damaged ones. Raise OSError if they cannot be read."""
    # In this order: of a restart that is on record, the failure is too.
    status = list(status_records(run))
    return list(filter(None, map(checked_event, merged(status, failures_of(run)))))


def events_or_failure(run: RunDir, events_before: int = 0, failures_before: int = 0) -> list[dict[str, Any]]:
    """Return the events of a run that a submission had not seen; if they cannot be read, a failure that says why."""
    try:
        return unseen(run_events(run), events_before, failures_before)
    except OSError as error:
        return [unreadable_event(Path(error.filename or run.status), error)]


def seen(run: RunDir) -> dict[str, int]:
    """Return the position that a submission stores: the events of status.jsonl, and the highest failure, before it."""
    return {"events_before": sum(1 for _ in read_events(run.status)), "failures_before": highest_failure(run)}


def unseen(events: Iterable[Event], events_before: int, failures_before: int) -> list[Event]:
    """Return those of a run's events that come after this position."""
    of_status = itertools.count()

    def is_new(event: Mapping[str, Any]) -> bool:
        number = event.get(NUMBER)
        return number > failures_before if isinstance(number, int) else next(of_status) >= events_before

    return [event for event in events if is_new(event)]


def merged(
    status: Iterable[tuple[int, dict[str, Any]]], failures: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the records of status.jsonl, given with their places, and between them the failures."""

    def order(failure: Mapping[str, Any]) -> tuple[float, int, str]:
        return place(failure), failure[NUMBER], str(failure.get("time"))

    placed = [(place(failure), failure) for failure in sorted(failures, key=order)]
    return (record for _, record in heapq.merge(placed, status, key=lambda each: each[0]))


def place(failure: Mapping[str, Any]) -> float:
    """Return the place of a failure in status.jsonl; of one that does not contain it the end."""
    found = failure.get(PLACE)
    return found if isinstance(found, int) else math.inf


def status_records(run: RunDir) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of status.jsonl with their places; none if it is missing."""
    with suppress(FileNotFoundError):
        yield from placed_records(read_lines(run.status))


def placed_records(lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects among the lines of a record file, with the byte at which the line begins."""
    begin = 0
    for line in lines:
        for record in records_in([line]):
            yield begin, record
        begin += len(line)


def failures_of(run: RunDir) -> list[dict[str, Any]]:
    """Return the failures in files, with the numbers of their names; skip files that are damaged or something else."""
    found = []
    for name in failure_files(run)[-MOST_FAILURES:]:
        with suppress(OSError, ValueError):
            record = parse_json(read_bytes(run.failures / name, FAILURE_BYTES))
            if isinstance(record, dict) and record.get("event") == "failed":
                found.append(record | {NUMBER: number_of(name)})
    return found


def failure_files(run: RunDir) -> list[str]:
    """Return the names of the files of failures, by number; a run directory of an earlier version has none."""
    try:
        return sorted(filter(FAILURE_FILE.fullmatch, file_names(run.failures)), key=number_of)
    except FileNotFoundError:
        return []


def highest_failure(run: RunDir) -> int:
    """Return the highest number of a failure; 0 without one."""
    return max(map(number_of, failure_files(run)), default=0)


def number_of(name: str) -> int:
    """Return the number in the name of a file of a failure."""
    return int(name.partition("-")[0])
