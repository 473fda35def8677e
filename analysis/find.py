"""Which run directories there are: below sweeps, parents of sweeps, or given themselves; each once.

A directory counts as a run when it holds at least two of the files that jobs/rundir.py names, so that a broken run is
still listed. Called by analysis.report.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.contents import FILES
from analysis.reading import read_all
from analysis.records import RunResult
from analysis.untrusted import canonical
from jobs.errors import ReportError
from jobs.rundir import SweepDir, read_records


def read_runs(paths: Iterable[Path], *, use_cache: bool = False) -> list[RunResult]:
    """Every run below these directories, each once, in the order of their paths; from the cache what has not changed.

    Raises ReportError when a path does not exist or when there is no run at all.
    """
    paths = list(paths)
    found = {run: None for path in paths for run in run_directories(path)}
    if not found:
        given = ", ".join(str(path) for path in paths) or "nothing"
        raise ReportError(
            f"{given}: no run in it. A run is a directory with {', '.join(FILES)}, or some of them. "
            "Give a sweep, a run or a directory of sweeps, for instance: slurmscale report runs/demo"
        )
    ledgers = {sweep: submissions(sweep) for sweep in {path.parent for path in found}}
    tasks = [(path, ledgers[path.parent].get(path.name, [])) for path in sorted(found)]
    return without_copies(read_all(tasks, use_cache=use_cache))


def submissions(sweep: Path) -> dict[str, list[dict[str, Any]]]:
    """When the runs of a sweep were submitted, by run name; nothing where its ledger is missing or cannot be read."""
    records: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with suppress(OSError):
        for record in read_records(SweepDir(sweep).submissions):
            if record.get("event") == "submitted":
                records[str(record.get("run"))].append(record)
    return records


def run_directories(path: Path) -> list[Path]:
    """Run directories at or below a path, resolved; what is inside a run is not searched."""
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise ReportError(f"{path} {what}. Give sweep or run directories, for instance: slurmscale report runs/demo")
    runs: list[Path] = []

    def unreadable(error: OSError) -> None:
        # Reading it will say why.
        runs.append(Path(error.filename))

    for directory, below, files in os.walk(path.resolve(), onerror=unreadable):
        # One file alone may be anyone's: conf/config.yaml of a checkout is not a run.
        if len(set(FILES).intersection(files)) > 1:
            runs.append(Path(directory))
            below.clear()
        below[:] = [name for name in below if not name.startswith((".", "code-"))]
    return runs


def without_copies(runs: list[RunResult]) -> list[RunResult]:
    """The runs, where a copy of a run's directory is not used: it is not a second measurement."""
    originals: dict[bytes, RunResult] = {}
    kept = []
    for run in runs:
        identity = canonical([run.config, run.events])
        original = originals.setdefault(identity, run) if run.used else run
        reason = None if original is run else f"a copy of {original.path}"
        kept.append(run if reason is None else replace(run, state="copy", reason=reason))
    return kept
