"""`--changed-code`: an attempt of other code than its baseline's, which a campaign keeps a snapshot of.

The baseline of each pair then runs the code that the campaign began with, and the attempt runs this program's, so that
what is measured is the change of the code. Otherwise both run this program's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import ConfigError, RunDirError
from jobs.rundir import RunDir
from jobs.submit.provenance import code_digest, packaged_code

# What reads a run's configuration: where it differs, the old code may not know a setting of the new one.
SCHEMA = Path("jobs/schema.py")


@dataclass(frozen=True)
class Snapshot:
    """The code that a campaign's baseline ran."""

    path: Path
    facts: dict[str, Any]
    """What provenance says of it."""


def snapshot_of(baseline: RunDir) -> Snapshot:
    """The code of a baseline.

    Raises RunDirError where it is gone, ConfigError where it is this program's, or too different from it.
    """
    path = baseline.code.resolve()
    if not (path / SCHEMA).is_file():
        raise RunDirError(f"{path}, the code of the baseline, is gone. Leave --changed-code out, or begin a campaign.")
    facts = json.loads(baseline.provenance.read_text())
    code = packaged_code()
    if facts["code_digest"] == code_digest(code):
        raise ConfigError(
            f"--changed-code: the code is the baseline's, {facts['code_digest']}; nothing has changed. "
            "Change it in this checkout, or leave --changed-code out."
        )
    if (path / SCHEMA).read_bytes() != code[SCHEMA]:
        raise ConfigError(
            f"--changed-code: {SCHEMA} has changed, too, and the baseline's code may not read a configuration of this "
            "one. Undo that change, or begin a campaign of its own: slurmscale attempt baseline OVERRIDES "
            "--campaign DIRECTORY"
        )
    return Snapshot(path, {key: facts[key] for key in ("code_digest", "git") if key in facts})


def refuse_mixture(name: str, first: RunDir, beside: RunDir, *, changed_code: bool) -> None:
    """Raise RunDirError where further repeats of an attempt would not be of the code of its first, and its baseline."""
    then = digest_of(first), digest_of(beside)
    if None in then:
        return
    now = code_digest(packaged_code())
    if (then[0] != then[1]) != changed_code or (changed_code and then[0] != now):
        raise RunDirError(
            f"The attempt {name} ran code {then[0]} beside a baseline of code {then[1]}, and further repeats would "
            f"not; the code is {now} now. Type another name."
        )


def digest_of(run: RunDir) -> str | None:
    """The digest of the code that a run was submitted with; None where there is no such run."""
    try:
        return str(json.loads(run.provenance.read_text())["code_digest"])
    except (OSError, ValueError, KeyError):
        return None


def changed_since(baseline: RunDir) -> tuple[str, str] | None:
    """The digests of a baseline's code and of this program's where they differ; None where they do not."""
    then, now = digest_of(baseline), code_digest(packaged_code())
    return None if then in {None, now} else (str(then), now)
