"""The record of a stage: events for its start and its end, whatever ends it."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from jobs.errors import SubmitError, SuiteError
from jobs.failure_causes import STOPS
from jobs.ranks import node_name, scheduled_job_id
from jobs.rundir import append_record, event_record

DONE = {"prepare": "prepared", "evaluate": "evaluated", "serve": "load_measured", "report": "reported"}
"""The event at the end of each stage, if it succeeded, in their order."""


def started(stage: str) -> str:
    """Return the event at the start of a stage."""
    return f"{stage}_started"


def failed(stage: str) -> str:
    """Return the event at the end of a stage that failed."""
    return f"{stage}_failed"


@contextmanager
def on_record(path: Path, stage: str) -> Iterator[dict[str, Any]]:
    """Write the start and end of a stage as events; the end has the fields that the block puts into the dictionary."""
    for number in STOPS:
        signal.signal(number, end_now)
    found: dict[str, Any] = {}
    append_record(path, event_record(started(stage), job_id=scheduled_job_id(), node=node_name()))
    try:
        yield found
    except BaseException as error:
        append_record(path, event_record(failed(stage), node=node_name(), error=error_text(error)))
        raise
    append_record(path, event_record(DONE[stage], **found))


def error_text(error: BaseException) -> str:
    """Return the message of an exception; the type is included unless it is a SuiteError."""
    return str(error) if isinstance(error, SuiteError) else "".join(traceback.format_exception_only(error)).strip()


def end_now(number: int, _frame: FrameType | None) -> None:
    """Raise SubmitError for a signal: a stage has no checkpoint, so it ends at once and is repeated from its start."""
    raise SubmitError(f"{STOPS[signal.Signals(number)].reason}.")
