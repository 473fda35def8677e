"""The integrity of a sweep: its jobs execute what was submitted, and no other user can change it.

The check is shell (integrity.sh), since each batch script makes it before any of the code that it checks runs. The
script reads it from the snapshot and compares it with a digest that is part of the script: Slurm keeps a copy of the
script from its submission on. Here the same text runs before runs are prepared and whenever they are launched.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from jobs.errors import RunDirError
from jobs.files import read_text
from jobs.rundir import NOT_STARTED, RunDir, load_to_launch
from jobs.schema import Run
from jobs.submit.trust.own_sweeps import digest_of

# Read at import: a queue that has started does not read a check that was changed since.
CHECK = (resources.files("jobs.submit.trust") / "integrity.sh").read_text().rstrip()


def check_lines(sweep: Path | str, trusted_group: str | None, codes: Iterable[Path]) -> list[str]:
    """Return the shell lines that end a script if the sweep or a code snapshot in it is not as it was submitted."""
    snapshots = sorted({str(code) for code in codes})
    file = Path(snapshots[0], "jobs", "submit", "trust", "integrity.sh")
    # An earlier version of slurmscale may have made the snapshot. It was checked before this script is made.
    if Path(snapshots[0]).is_dir() and not file.is_file():
        return [CHECK, call(sweep, trusted_group, snapshots)]
    text = read_text(file).rstrip("\n") if file.is_file() else CHECK
    digest = hashlib.sha256(f"{text}\n".encode()).hexdigest()
    refusal = f"{NOT_STARTED}{snapshots[0]}, the code of the run, is gone or was changed. Submit the run again."
    return [
        "# End this script if others changed the code or the directories of this job, or could. The check is",
        "# a file of that code, and its digest is here: the scheduler keeps its own copy of this script.",
        f"check=$(cat -- {shlex.quote(str(file))} 2> /dev/null)",
        f"""[ "$(sha256sum <<< "$check")" = "{digest}  -" ] ||""",
        f"    {{ echo {shlex.quote(refusal)} >&2; exit 1; }}",
        'eval "$check"',
        call(sweep, trusted_group, snapshots),
    ]


def call(sweep: Path | str, trusted_group: str | None, snapshots: Iterable[str], runs: Iterable[Path] = ()) -> str:
    """Return the shell line that calls the check."""
    given = [word for run in runs for word in ("--run", str(run))]
    return shlex.join(["refuse_changed", trusted_group or "", str(sweep), *given, *snapshots])


def refuse_changed(
    sweep: Path, trusted_group: str | None, codes: Iterable[Path] = (), runs: Iterable[Path] = ()
) -> None:
    """Raise RunDirError if the sweep, a code snapshot or run directory is not as submitted, or others could change it.

    Directories that do not exist yet are not checked: they are made private.
    """
    # The very text that batch scripts use: a second check in Python would differ from it some day.
    script = f"{CHECK}\n{call(sweep, trusted_group, sorted({str(code) for code in codes}), runs)}"
    answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RunDirError(answer.stderr.rpartition(NOT_STARTED)[2].strip())


def submitted_as(directories: Iterable[RunDir]) -> dict[str, str]:
    """Return, by the name of each run, the name of its code snapshot and the digest of its config.yaml.

    They fix what is submitted: a queue gets them where nobody else can change them.
    """
    return {each.name: f"{each.code_snapshot.name} {digest_of(each)}" for each in directories}


def submitted_configuration(directory: RunDir, submitted: str) -> Run:
    """Return the configuration of a run; raise RunDirError if it is not as submitted."""
    return load_to_launch(directory, submitted.partition(" ")[2])


def submitted_run(directory: RunDir, submitted: str) -> tuple[Path, Run]:
    """Return the code snapshot of a run and its configuration; raise RunDirError if either is not as submitted.

    Nothing of a configuration is used before its digest is compared.
    """
    name = submitted.partition(" ")[0]
    code = directory.code_snapshot
    # Its place is checked with its files (integrity.sh).
    if code.name != name:
        raise RunDirError(
            f"{directory.code} leads to {code}, and the run was submitted with {name}. Submit the run again."
        )
    return code, submitted_configuration(directory, submitted)
