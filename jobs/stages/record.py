"""The record of a stage: that it started, and how it ended, whatever ends it."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from jobs.errors import SubmitError, SuiteError
from jobs.failures import STOPS
from jobs.ranks import node_name, slurm_job_id
from jobs.rundir import append_record, event_record
from jobs.secrets import redact_exception

DONE = {"prepare": "prepared", "evaluate": "evaluated", "report": "reported"}
"""The event that each stage ends with when all went well."""


def started(stage: str) -> str:
    """The event that a stage begins with."""
    return f"{stage}_started"


def failed(stage: str) -> str:
    """The event of a stage that could not do its work."""
    return f"{stage}_failed"


@contextmanager
def on_record(path: Path, stage: str) -> Iterator[dict[str, Any]]:
    """Write a stage's start and end as events; what the block puts into the dictionary goes with the end."""
    for number in STOPS:
        signal.signal(number, end_now)
    found: dict[str, Any] = {}
    append_record(path, event_record(started(stage), job_id=slurm_job_id(), node=node_name()))
    try:
        yield found
    except BaseException as error:
        redact_exception(error)
        append_record(path, event_record(failed(stage), node=node_name(), error=words(error)))
        raise
    append_record(path, event_record(DONE[stage], **found))


def words(error: BaseException) -> str:
    """An exception as a person reads it: ours without its type."""
    return str(error) if isinstance(error, SuiteError) else "".join(traceback.format_exception_only(error)).strip()


def end_now(number: int, _frame: FrameType | None) -> None:
    """A stage has no step boundary to reach: it ends where it is, and is done again from its beginning."""
    raise SubmitError(f"{STOPS[signal.Signals(number)].reason}.")
