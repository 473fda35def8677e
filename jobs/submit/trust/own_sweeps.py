"""The user's own record of sweeps: those that this user submitted, or received and trusted.

    $XDG_STATE_HOME/slurmscale/sweeps/ID.json   a sweep whose ledger contains ID (default: ~/.local/state)

Commands move on only these sweeps: they submit the backlog and settle interrupted submissions. The ledger of any other
folder was written by somebody else, and is only shown. A job of a sweep needs no record, since the user submitted it.

A copy of a sweep contains the same id. So a record holds the path and inode of the directory; and since a file system
gives the inode of a removed directory to a new one, also what its runs execute: the names of code snapshots and the
digests of configurations. No run that executes anything else is launched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.errors import SubmitError
from jobs.files import read_bytes, read_object
from jobs.output import write_file
from jobs.private import defect, make_private
from jobs.rundir import RunDir, SweepDir, append_record, event_record, now, read_events
from jobs.schema import LauncherKind

ID = re.compile(r"[0-9a-f]{32}")


def own(sweep: SweepDir) -> None:
    """Put a sweep into the record, with what its runs execute; raises SubmitError if the record cannot be written."""
    number = secrets.token_hex(16)
    executes: set[str] = set()
    for directory in sweep.runs():
        # A run without a readable configuration is not launched.
        with suppress(OSError):
            executes |= executed_by(directory)
    record = place_of(sweep) | {"time": now(), "executes": sorted(executes)}
    try:
        sweeps = state_directory() / "sweeps"
        sweeps.mkdir(exist_ok=True)
        write_file(sweeps / f"{number}.json", json.dumps(record))
    except OSError as error:
        raise unusable(Path(error.filename or "~"), error.strerror or str(error)) from error
    # The record first: an event without one proves nothing, and a record that no ledger names is never found.
    append_record(sweep.submissions, event_record("owned", id=number))


def add_submitted(sweep: SweepDir, code: Path, directories: Iterable[RunDir]) -> None:
    """Add a new code snapshot and the configurations of new runs to the record, if the sweep is in it."""
    found = records_of(sweep)
    if not found:
        return
    # One record is enough: refuse_unrecorded accepts what any of them contains.
    file, record = list(found.items())[-1]
    new = {code.name, *(digest_of(directory) for directory in directories)}
    try:
        write_file(file, json.dumps(record | {"executes": sorted({*record["executes"], *new})}))
    except OSError as error:
        raise unusable(file, error.strerror or str(error)) from error


def is_own(sweep: SweepDir) -> bool:
    """Return True if a sweep is in the record: its path, its inode, and an id that its ledger contains."""
    return bool(records_of(sweep))


def refuse_unrecorded(sweep: SweepDir, directories: Iterable[RunDir]) -> None:
    """Raise SubmitError if a run of the user's own sweep executes other code or settings than the user submitted."""
    found = records_of(sweep)
    if not found:
        return
    known = {each for record in found.values() for each in record["executes"]}
    for directory in directories:
        if not executed_by(directory) <= known:
            raise SubmitError(
                f"{directory.path} executes other code or settings than you submitted: its code or config.yaml was "
                f"replaced. Nothing was launched. If you trust it, run `slurmscale resume --trust {sweep.quoted}`, "
                "which shows what it would run."
            )


def executed_by(directory: RunDir) -> set[str]:
    """Return what identifies that which a run executes: the name of its code, and the digest of its configuration."""
    return {directory.code_snapshot.name, digest_of(directory)}


def digest_of(directory: RunDir) -> str:
    """Return the digest of the configuration of a run."""
    return hashlib.sha256(read_bytes(directory.config)).hexdigest()


def place_of(sweep: SweepDir) -> dict[str, Any]:
    """Return the path and inode of a sweep; login nodes may have different device numbers for one file system."""
    path = sweep.path.resolve()
    return {"path": str(path), "inode": path.stat().st_ino}


def records_of(sweep: SweepDir) -> dict[Path, dict[str, Any]]:
    """Return the records of a sweep by their files, oldest first; empty if it is not in the record."""
    directory = location()
    if not directory.exists() or not sweep.path.exists():
        return {}
    refuse_open(directory)
    here = place_of(sweep)
    found = {}
    for event in read_events(sweep.submissions):
        if event["event"] == "owned" and ID.fullmatch(event["id"]):
            file = directory / "sweeps" / f"{event['id']}.json"
            record = recorded(file)
            if here.items() <= record.items() and isinstance(record.get("executes"), list):
                found[file] = record
    return found


def own_or_refuse(sweep: SweepDir, kind: LauncherKind, *, new: bool) -> None:
    """Put a new sweep into the record before its first effect; raises SubmitError for one that is not in it.

    A launcher that only writes files has no effects, and works where the record cannot be written, as on compute nodes.
    """
    if kind.is_preview:
        return
    if new and kind.starts_runs:
        own(sweep)
    elif new:
        with suppress(SubmitError):
            own(sweep)
    elif kind.starts_runs and not is_own(sweep):
        raise SubmitError(
            f"{sweep.path} exists and was not submitted by you, or is a preview. Set sweep=NAME for another place, or "
            f"run `slurmscale resume {sweep.quoted}` to see what it would run."
        )


def recorded(file: Path) -> dict[str, Any]:
    """Return a record; an empty one if the file cannot be read."""
    try:
        return read_object(file)
    except (OSError, ValueError):
        return {}


def location() -> Path:
    """Return the directory of what slurmscale remembers for this user, which need not exist."""
    base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    try:
        return base.expanduser().absolute() / "slurmscale"
    except RuntimeError as error:
        raise unusable(base, "this machine does not know that home directory") from error


def state_directory() -> Path:
    """Return that directory, made if it is missing; raises SubmitError if it is not private or cannot be made."""
    directory = location()
    try:
        make_private(directory)
    except OSError as error:
        raise unusable(directory, error.strerror or str(error)) from error
    refuse_open(directory)
    return directory


def refuse_open(directory: Path) -> None:
    """Raise SubmitError for a link, and for a directory of another user or one that others can enter."""
    if why := defect(directory):
        raise unusable(directory, why)


def unusable(directory: Path, why: str) -> SubmitError:
    """Return the error for a directory that cannot hold the record."""
    return SubmitError(
        f"{directory}, the record of your sweeps, cannot be used: {why}. Set XDG_STATE_HOME to a directory of your own "
        "that your login nodes share."
    )
