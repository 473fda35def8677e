"""The user's own record of sweeps: those that this user submitted, or received and trusted.

    $XDG_STATE_HOME/slurmscale/sweeps/ID.json   the path of a sweep whose ledger contains ID (default: ~/.local/state)

Commands move on only these sweeps: they submit the backlog and settle interrupted submissions. The ledger of any other
folder was written by somebody else, and is only shown. A job of a sweep needs no record, since the user submitted it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from jobs.errors import SubmitError
from jobs.private import defect
from jobs.rundir import SweepDir, append_record, event_record, now, read_events
from jobs.schema import LauncherKind

ID = re.compile(r"[0-9a-f]{32}")


def own(sweep: SweepDir) -> None:
    """Put a sweep into the record; raises SubmitError if the record cannot be written."""
    number = secrets.token_hex(16)
    try:
        sweeps = state_directory() / "sweeps"
        sweeps.mkdir(exist_ok=True)
        # A new file: nothing is overwritten.
        with (sweeps / f"{number}.json").open("x") as file:
            json.dump({"path": str(sweep.path.resolve()), "time": now()}, file)
    except OSError as error:
        raise unusable(Path(error.filename or "~"), error.strerror or str(error)) from error
    append_record(sweep.submissions, event_record("owned", id=number))


def is_own(sweep: SweepDir) -> bool:
    """Return True if a sweep is in the record: its path, and an id that its ledger contains."""
    directory = location()
    if not directory.exists():
        return False
    refuse_open(directory)
    here = str(sweep.path.resolve())
    return any(
        event["event"] == "owned" and recorded_path(directory, event["id"]) == here
        for event in read_events(sweep.submissions)
    )


def own_or_refuse(sweep: SweepDir, kind: LauncherKind, *, new: bool) -> None:
    """Put a new sweep into the record before its first effect; raises SubmitError for one that is not in it.

    A launcher that only writes files has no effects, and works where the record cannot be written, as on compute nodes.
    """
    if kind.is_preview:
        return
    has_effects = kind.in_slurm or kind.on_this_machine
    if new and has_effects:
        own(sweep)
    elif new:
        with suppress(SubmitError):
            own(sweep)
    elif has_effects and not is_own(sweep):
        raise SubmitError(
            f"{sweep.path} exists and was not submitted by you. Set sweep=NAME for another place, or run "
            f"`slurmscale resume {sweep.quoted}` to see what it would run."
        )


def recorded_path(directory: Path, number: str) -> str | None:
    """Return the path of the sweep of this id; None if the record does not have it."""
    if not ID.fullmatch(number):
        return None
    try:
        return str(json.loads((directory / "sweeps" / f"{number}.json").read_text())["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def location() -> Path:
    """Return the directory of what slurmscale remembers for this user, which need not exist."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "slurmscale"


def state_directory() -> Path:
    """Return that directory, made if it is missing; raises SubmitError if it is not private or cannot be made."""
    directory = location()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(exist_ok=True, mode=0o700)
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
