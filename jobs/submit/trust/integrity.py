"""The integrity of a sweep: its jobs execute what was submitted, and no other user can change it.

The check is shell (integrity.sh), since each batch script makes it before any of the code that it checks runs. Here the
same text runs before runs are prepared and whenever they are launched.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from jobs.errors import RunDirError
from jobs.rundir import NOT_STARTED, RunDir, SweepDir

# Read at import: a queue that has started does not read a check that was changed since.
CHECK = (resources.files("jobs.submit.trust") / "integrity.sh").read_text().rstrip()


def make_private(sweep: Path) -> None:
    """Make a sweep directory that only its owner can enter; new directories above it are not writable by others."""
    for parent in reversed([each for each in sweep.parents if not each.exists()]):
        # parents=True would apply the umask alone to all but the last one.
        parent.mkdir(exist_ok=True, mode=0o755)
    sweep.mkdir(exist_ok=True, mode=0o700)


def check_lines(sweep: Path | str, trusted_group: str | None, codes: Iterable[Path] = ()) -> list[str]:
    """Return the shell lines that end a script if the sweep or a code snapshot in it is not as it was submitted.

    Directories that do not exist yet are not checked: they are made private.
    """
    snapshots = sorted({str(code) for code in codes})
    return [CHECK, shlex.join(["refuse_changed", trusted_group or "", str(sweep), *snapshots])]


def refuse_changed(sweep: Path, trusted_group: str | None, codes: Iterable[Path] = ()) -> None:
    """Raise RunDirError if the sweep or a code snapshot is not as it was submitted, or others could change it."""
    script = "\n".join(check_lines(sweep, trusted_group, codes))
    answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RunDirError(answer.stderr.rpartition(NOT_STARTED)[2].strip())


def code_names(directories: Iterable[RunDir]) -> dict[str, str]:
    """Return the name of the code snapshot of each run, by the name of the run: what is submitted is fixed by it."""
    return {directory.name: directory.code_snapshot.name for directory in directories}


def submitted_code(sweep: SweepDir, directory: RunDir, name: str) -> Path:
    """Return the code snapshot of this name; raises RunDirError if the run now leads to another one."""
    code = sweep.path.resolve() / name
    if directory.code_snapshot != code:
        raise RunDirError(
            f"{directory.code} leads to {directory.code_snapshot}, and the run was submitted with {name}. "
            "Submit the run again."
        )
    return code
