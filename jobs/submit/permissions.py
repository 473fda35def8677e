"""Permissions of a sweep directory: other users must not be able to change what its jobs execute.

A job executes the code in its sweep; one of launcher=local also unpickles files in its logs. The check runs before runs
are prepared, when they are launched, and again in the batch script before the ranks start
(`python -m jobs.submit.permissions SWEEP [GROUP]`).
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
import sys
from pathlib import Path

from jobs.errors import RunDirError
from jobs.ranks import node_name
from jobs.rundir import NOT_STARTED


def make_private(sweep: Path) -> None:
    """Make a sweep directory that only its owner can enter; new directories above it are not writable by others."""
    for parent in reversed([each for each in sweep.parents if not each.exists()]):
        # parents=True would apply the umask alone to all but the last one.
        parent.mkdir(exist_ok=True, mode=0o755)
    sweep.mkdir(exist_ok=True, mode=0o700)


def refuse_shared(sweep: Path, trusted_group: str | None) -> None:
    """Raise RunDirError if a user outside the trusted group could write files into the sweep, or replace its directory.

    Directories that do not exist yet are not checked: they are made private.
    """
    trusted = None if trusted_group is None else group_id(trusted_group)
    for path in (sweep / "logs", sweep, *sweep.resolve().parents):
        if path.exists():
            # In a sticky directory, such as /tmp, others cannot rename our directories, but they can add files. So the
            # sticky bit is enough only above the sweep.
            refuse_writable(path, trusted, sticky_is_safe=path not in {sweep / "logs", sweep})
    for path in (sweep / "logs", sweep, sweep.parent):
        if path.exists():
            refuse_owner(path, trusted)


def refuse_writable(path: Path, trusted: int | None, *, sticky_is_safe: bool) -> None:
    """Raise RunDirError if users outside the trusted group can write into a directory."""
    found = path.stat()
    for_group = bool(found.st_mode & stat.S_IWGRP) and found.st_gid != trusted and not is_own_group(found.st_gid)
    if not (for_group or found.st_mode & stat.S_IWOTH) or (sticky_is_safe and found.st_mode & stat.S_ISVTX):
        return
    mode = f"(mode {stat.S_IMODE(found.st_mode):o}), who could inject code into your jobs."
    folder = shlex.quote(str(path))
    if found.st_mode & stat.S_IWOTH:
        raise RunDirError(f"{path} is writable by other users {mode} Run `chmod go-w {folder}`, or set runs_dir=PATH.")
    group = group_name(found.st_gid)
    raise RunDirError(
        f"{path} is writable by group {group} {mode} Run `chmod g-w {folder}`, or set cluster.trusted_group={group} "
        "if you trust all its members, or runs_dir=PATH."
    )


def refuse_owner(path: Path, trusted: int | None) -> None:
    """Raise RunDirError if a directory belongs to another user, unless the trusted group can write it."""
    found = path.stat()
    is_shared = found.st_gid == trusted and found.st_mode & stat.S_IWGRP
    if found.st_uid not in {os.getuid(), 0} and not is_shared:
        raise RunDirError(
            f"{path} belongs to user {found.st_uid}, who could inject code into your jobs. Set runs_dir=PATH to a "
            "directory of your own."
        )


def group_id(name: str) -> int:
    """Return the id of a group; raise RunDirError if this machine does not know it."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise RunDirError(
            f"cluster.trusted_group={name}: {node_name()} has no group of this name. Set one that `id -Gn` prints."
        ) from None


def group_name(gid: int) -> str:
    """Return the name of a group; its id if this machine does not know it."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def is_own_group(gid: int) -> bool:
    """Return True for the private group that many systems give each user: it has the name of the user."""
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


if __name__ == "__main__":
    try:
        refuse_shared(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
    except (RunDirError, OSError) as error:
        sys.exit(f"{NOT_STARTED}{error}")
