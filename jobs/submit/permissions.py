"""Whether others could change what a run executes: a job unpickles what lies in its sweep's logs directory.

Asked when runs are launched, and again by the batch script before the ranks start (`python -m jobs.submit.permissions
SWEEP`).
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
    """Make a sweep directory that only its owner can enter, and above it none that others can write."""
    sweep.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    sweep.mkdir(exist_ok=True, mode=0o700)


def refuse_shared(sweep: Path) -> None:
    """Raise RunDirError when somebody else could put files into the sweep, or another directory in its place."""
    # In a sticky directory, such as /tmp, others cannot move what is ours; but they can add files, so this helps
    # only above the sweep.
    for path, sticky_is_safe in ((sweep / "logs", False), (sweep, False), (sweep.parent, True)):
        found = path.stat()
        if found.st_mode & FOR_OTHERS and not (sticky_is_safe and found.st_mode & stat.S_ISVTX):
            raise RunDirError(
                f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):o}), who could so have your jobs "
                f"run their code. Type `chmod go-w {shlex.quote(str(path))}`, or choose another place with "
                "runs_dir=PATH."
            )
        if found.st_uid not in {os.getuid(), 0}:
            raise RunDirError(
                f"{path} belongs to user {found.st_uid}, who could have your jobs run their code. Choose a place of "
                "your own with runs_dir=PATH."
            )


if __name__ == "__main__":
    try:
        refuse_shared(Path(sys.argv[1]))
    except (RunDirError, OSError) as error:
        sys.exit(f"slurmscale: {error}")
