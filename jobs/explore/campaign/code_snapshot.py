"""`--changed-code`: a trial with other code than its baseline, of whose code the campaign keeps a snapshot.

The baseline of each pair then runs the code that the campaign began with and the trial runs the present code, so the
pair measures the change of the code. Otherwise both run the present code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import ConfigError, RunDirError
from jobs.files import read_bytes
from jobs.rundir import RunDir, provenance_of
from jobs.submit.preparation.code_store import code_digest, packaged_code

# The file that defines the configuration: if it differs, the old code may not know a new setting.
SCHEMA = Path("jobs/schema.py")


@dataclass(frozen=True)
class Snapshot:
    """The code of a campaign's baseline."""

    path: Path
    facts: dict[str, Any]
    """Its entries in the provenance."""


def snapshot_of(baseline: RunDir) -> Snapshot:
    """Return the code of a baseline.

    Raises RunDirError if it is gone, ConfigError if it equals the present code or has another schema.
    """
    path = baseline.code_snapshot
    if not (path / SCHEMA).is_file():
        raise RunDirError(
            f"{path}, the code of the baseline, is gone. Leave --changed-code out, or begin a new campaign."
        )
    facts = provenance_of(baseline)
    code = packaged_code()
    if facts.get("code_digest") == code_digest(code):
        raise ConfigError(
            f"--changed-code: the code equals that of the baseline, {facts['code_digest']}. Change the code of this "
            "checkout, or leave --changed-code out."
        )
    if read_bytes(path / SCHEMA) != code[SCHEMA]:
        raise ConfigError(
            f"--changed-code: {SCHEMA} has changed too, so the baseline's code may not read a configuration of the "
            "present code. Undo that change, or begin another campaign: slurmscale attempt baseline OVERRIDES "
            "--campaign DIRECTORY"
        )
    return Snapshot(path, {key: facts[key] for key in ("code_digest", "git") if key in facts})


def refuse_mixture(name: str, first: RunDir, beside: RunDir, *, changed_code: bool) -> None:
    """Raise RunDirError if the code of further repeats of a trial or its baseline would differ from the first's."""
    then = digest_of(first), digest_of(beside)
    if None in then:
        return
    now = code_digest(packaged_code())
    if (then[0] != then[1]) != changed_code or (changed_code and then[0] != now):
        raise RunDirError(
            f"The attempt {name} ran code {then[0]} and its baseline code {then[1]}, but further repeats would run "
            f"other code (now {now}). Use another name."
        )


def digest_of(run: RunDir) -> str | None:
    """Return the digest of the code that a run was submitted with; None if there is no such run."""
    digest = provenance_of(run).get("code_digest")
    return None if digest is None else str(digest)


def changed_since(baseline: RunDir) -> tuple[str, str] | None:
    """Return the digests of a baseline's code and of the present code; None if they are equal."""
    then, now = digest_of(baseline), code_digest(packaged_code())
    return None if then in {None, now} else (str(then), now)
