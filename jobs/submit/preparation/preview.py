"""The files of launcher=dry: a sweep that was only previewed gives its place to the next submission of its name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from jobs.files import is_directory, read_yaml
from jobs.rundir import BASELINE, RunDir, SweepDir, provenance_of, read_records
from jobs.schema import LauncherKind, Run

CODE = re.compile(r"code-[0-9a-f]{32}")
OF_RUN = {"config.yaml", "plan.json", "provenance.json", "status.jsonl", "code", "failures"}


def gives_way(sweep: SweepDir, runs: Sequence[Run]) -> bool:
    """Return True if a sweep is a preview that these runs replace.

    The preview of a campaign grows by those of its attempts, so only runs of the same names replace it.
    """
    if not is_preview(sweep):
        return False
    if any(os.path.lexists(sweep.run(str(run.name)).path) for run in runs):
        return True
    is_campaign = any("attempt" in provenance_of(run) for run in sweep.runs())
    return not (is_campaign or runs[0].launcher.kind.is_preview)


def is_preview(sweep: SweepDir) -> bool:
    """Return True if a directory has nothing but what launcher=dry wrote into it."""
    try:
        entries = [entry for entry in sweep.path.iterdir() if entry != sweep.lock]
        runs = [entry for entry in entries if not is_beside_runs(sweep, entry)]
        return bool(runs) and all(map(is_previewed, map(RunDir, runs)))
    except (OSError, ValueError):
        return False


def is_beside_runs(sweep: SweepDir, entry: Path) -> bool:
    """Return True for the code of previewed runs, and the directory of logs that they do not have."""
    if not is_own_directory(entry):
        return False
    return CODE.fullmatch(entry.name) is not None or (entry == sweep.logs and not any(entry.iterdir()))


def is_previewed(run: RunDir) -> bool:
    """Return True for a run directory as launcher=dry leaves it; raise OSError or ValueError for a damaged one."""
    if not is_own_directory(run.path) or not {entry.name for entry in run.path.iterdir()} <= OF_RUN:
        return False
    config = read_yaml(run.config)
    launcher = config.get("launcher") if isinstance(config, dict) else None
    kind = launcher.get("kind") if isinstance(launcher, dict) else None
    never_failed = not is_directory(run.failures) or not any(run.failures.iterdir())
    is_new = [record.get("event") for record in read_records(run.status)] == ["prepared"]
    return kind == LauncherKind.dry.name and never_failed and is_new


def is_own_directory(path: Path) -> bool:
    """Return True for a directory that is not a link."""
    return is_directory(path) and not path.is_symlink()


def remove_preview(sweep: SweepDir) -> None:
    """Remove the files of a preview; the caller holds the lock of the sweep, which stays."""
    for entry in sweep.path.iterdir():
        if entry != sweep.lock:
            shutil.rmtree(entry)


def only_previewed(sweep: SweepDir) -> str:
    """Return what to do with a campaign of previews: a sweep that only shows its runs is not one to start later."""
    return (
        f"{sweep.path}: its attempts were only previewed (launcher=dry), and nothing has run. To run them, repeat the "
        f"commands without launcher=dry, that of the {BASELINE} first."
    )
