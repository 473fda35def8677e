"""The fields of events, in the records of runs, stages and sweeps: which an event requires, and which values fit.

A ledger may have been written by somebody else, so readers get events only through `checked_event`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jobs.metrics import RECOVERY_TIME

# The id of a job, or of a task of a job array; also the process id of a local queue.
JOB_ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?")
# Several tasks of a job array in Slurm's notation: 12_[0,2-5%4].
JOB_TASKS = re.compile(r"([0-9]{1,18})_\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)(?:%[0-9]+)?\]")
# A pilot's log has the number of the start besides.
LOG_ID = re.compile(rf"{JOB_ID.pattern}(-[0-9]{{1,9}})?")
# Stands for the job id of a run without one.
NO_JOB = "-"
# A file system takes 255, and names of logs and temporary files are longer than the name of their run.
LONGEST_NAME_BYTES = 200
# In other years a time cannot be converted between time zones.
YEARS = range(1971, 9999)


def of_type(kind: type) -> Callable[[Any], bool]:
    """Return the check that a value has a type."""
    return lambda value: isinstance(value, kind)


def is_name(value: Any) -> bool:
    """Return True if a value, as a part of a path, leads to a file of that directory."""
    try:
        encoded = os.fsencode(value) if isinstance(value, str) else b""
    except UnicodeEncodeError:
        return False
    return (
        0 < len(encoded) <= LONGEST_NAME_BYTES
        and b"/" not in encoded
        and b"\0" not in encoded
        and encoded not in {b".", b".."}
    )


def is_job_id(value: Any) -> bool:
    """Return True for the id of a job, of a task, or of none."""
    return isinstance(value, str) and (value == NO_JOB or JOB_ID.fullmatch(value) is not None)


def is_job_or_tasks(value: Any) -> bool:
    """Return True for the id of a job or a task, or of several tasks."""
    return is_job_id(value) or (isinstance(value, str) and JOB_TASKS.fullmatch(value) is not None)


def is_log_id(value: Any) -> bool:
    """Return True for the id in the names of log files."""
    return isinstance(value, str) and LOG_ID.fullmatch(value) is not None


def is_time(value: Any) -> bool:
    """Return True for a time with its time zone, as records contain it."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return moment.tzinfo is not None and moment.year in YEARS


def is_list_of_texts(value: Any) -> bool:
    """Return True for a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


# Fields that readers use, with the check of their values; other fields may have any.
FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("attempt", "from_step", "restart", "rank", "events_before", "failures_before"), of_type(int)),
    **dict.fromkeys(("failure_number", "status_bytes", "step", "process"), of_type(int)),
    **dict.fromkeys(("node", "host", "stage", "mark", "place", "clusters", "launcher", "id"), of_type(str)),
    **dict.fromkeys(("cause", "reason", "error", "proof", "advice", "limit"), of_type(str)),
    **dict.fromkeys(("job_id", "after", "in_job"), is_job_id),
    **dict.fromkeys(("left_out", "instead"), is_list_of_texts),
    "run": is_name,
    "log_id": is_log_id,
    **dict.fromkeys(("time", "fault_time"), is_time),
    "runs": is_list_of_texts,
    "tasks": of_type(list),
    RECOVERY_TIME.name: of_type(float),
    "array": of_type(bool),
    "process_started": of_type(float),
    "scheduler": of_type(str),
}
# Fields that readers of an event require; others may be absent.
REQUIRED: dict[str, tuple[str, ...]] = {
    "stopped": ("reason",),
    "failed": ("error",),
    "requeued": ("cause",),
    "recovered": (RECOVERY_TIME.name,),
    "prepare_failed": ("error",),
    "evaluate_failed": ("error",),
    "report_failed": ("error",),
    "submitted": ("run", "launcher", "job_id", "events_before", "host", "time"),
    "stage_submitted": ("stage", "launcher", "job_id", "events_before", "host"),
    "intended": ("mark", "launcher", "host", "time", "tasks", "array"),
    "void": ("mark",),
    "owned": ("id",),
    "adopted": ("mark", "job_id"),
    "announced": ("mark",),
    "waiting": ("run", "limit", "events_before", "time"),
    "launched": ("run", "log_id"),
    "nodes_returned": ("run",),
    "ended": ("run",),
    "removed": ("run",),
}
# Fields that name a run, a job or a file: an event in which one does not fit is of something else.
NAMES = ("run", "job_id", "log_id")


def checked_event(record: Any) -> dict[str, Any] | None:
    """Return a record as an event, without the fields whose values do not fit; None if it is none.

    That is a record without the name or a required field of an event, or with a run, job or log that can be none.
    """
    event = record.get("event") if isinstance(record, dict) else None
    if not isinstance(event, str):
        return None
    kept = {key: value for key, value in record.items() if fits(event, key, value)}
    needed = [*REQUIRED.get(event, ()), *(name for name in NAMES if record.get(name) is not None)]
    return kept if kept.keys() >= set(needed) else None


def fits(event: str, key: str, value: Any) -> bool:
    """Return True if a field of an event may have this value."""
    check = is_job_or_tasks if (event, key) == ("cancelled", "job_id") else FIELDS.get(key)
    return check is None or check(value)
