"""Permissions of a sweep directory: other users must not be able to change what its jobs execute.

A job unpickles files in the logs directory of its sweep. The check runs when runs are launched, and again in the batch
script before the ranks start (`python -m jobs.submit.permissions SWEEP`).
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from pathlib import Path

from jobs.errors import RunDirError

FOR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_private(sweep: Path) -> None:
    """Make a sweep directory that only its owner can enter; new directories above it are not writable by others."""
    sweep.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    sweep.mkdir(exist_ok=True, mode=0o700)


def refuse_shared(sweep: Path) -> None:
    """Raise RunDirError if another user could write files into the sweep, or replace its directory."""
    # In a sticky directory, such as /tmp, others cannot rename our directories, but they can add files. So the sticky
    # bit is enough only above the sweep.
    for path, sticky_is_safe in ((sweep / "logs", False), (sweep, False), (sweep.parent, True)):
        found = path.stat()
        if found.st_mode & FOR_OTHERS and not (sticky_is_safe and found.st_mode & stat.S_ISVTX):
            raise RunDirError(
                f"{path} is writable by other users (mode {stat.S_IMODE(found.st_mode):o}), who could inject code into "
                f"your jobs. Run `chmod go-w {shlex.quote(str(path))}`, or set runs_dir=PATH."
            )
        if found.st_uid not in {os.getuid(), 0}:
            raise RunDirError(
                f"{path} belongs to user {found.st_uid}, who could inject code into your jobs. Set runs_dir=PATH to a "
                "directory of your own."
            )


if __name__ == "__main__":
    try:
        refuse_shared(Path(sys.argv[1]))
    except (RunDirError, OSError) as error:
        sys.exit(f"slurmscale: {error}")
