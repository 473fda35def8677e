"""Provenance: the code, versions, places and dates behind the numbers, and what logs of other programs leave out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.formatting import counted
from analysis.parsers.base import Text
from analysis.parsers.search import blocks
from analysis.run import RunResult, last_event
from analysis.untrusted import as_list, lookup
from jobs.rundir import SweepDir
from jobs.submit.sweeps.note import note_of

MOST_LISTED = 12
NOT_FOUND = "Not found in the logs"
LOOKED_AT_BYTES = 1 << 16
# A date with a time, as loggers print it, or MLPerf's milliseconds since 1970.
DATE = re.compile(rb"\b(20\d\d)[-/](\d\d)[-/](\d\d)[T ]+\d\d:\d\d")
MILLISECONDS = re.compile(rb'"time_ms": ?(\d{13})\b')
VERSION = re.compile(r"\d+\.\d")


def facts(runs: Sequence[RunResult]) -> list[tuple[str, list[str]]]:
    """Return the provenance: each recorded fact with its distinct values and their numbers of runs."""
    versions = [lookup(run.provenance, "versions") for run in runs]
    commands = [[str(part) for part in as_list(run.provenance.get("command"))] for run in runs]
    dirty = {True: " with uncommitted changes", False: ""}
    commits = [
        f"{commit}{dirty[lookup(run.provenance, 'git.dirty') is True]}"
        for run in runs
        if (commit := lookup(run.provenance, "git.commit"))
    ]
    logs = [run for run in runs if run.log]
    dates = [first_date(run.path) for run in logs]
    notes = notes_of(runs)
    named: list[tuple[str, Iterable[str]]] = [
        ("Note", filter(None, (notes.get(run.path.parent) for run in runs))),
        ("Git commit", commits),
        ("Code digest", known(run.provenance.get("code_digest") for run in runs)),
        (
            "Versions",
            [", ".join(f"{k} {v}" for k, v in sorted(each.items())) for each in versions if isinstance(each, dict)],
        ),
        ("Torch of the ranks", known(run.started.get("torch") for run in runs)),
        ("Program", known(run.setting("engine.kind") for run in logs)),
        ("Communication library", known(library_of(run) for run in runs)),
        ("First date in the log", known(dates)),
        ("Submitted from", known(run.provenance.get("host") for run in runs)),
        ("Ran on", [", ".join(map(str, nodes)) for run in runs if (nodes := as_list(run.started.get("nodes")))]),
        ("Device", known(run.started.get("device_name") for run in runs)),
        ("Data", known(run.started.get("data") for run in runs)),
        ("Command", [shlex.join(command) for command in commands if command]),
        (NOT_FOUND, [name for run, date in zip(logs, dates, strict=True) for name in not_found(run, date)]),
    ]
    return [(name, lines) for name, values in named if (lines := counted(values, len(runs), MOST_LISTED))]


def notes_of(runs: Sequence[RunResult]) -> dict[Path, str]:
    """Return the notes of the sweeps of runs, in the order of their names; empty where a sweep has none."""
    return {each: note_of(SweepDir(each)) for each in sorted({run.path.parent for run in runs if not run.log})}


def library_of(run: RunResult) -> Any:
    """Return name and version of the communication library, as it logged them; None if it did not."""
    return run.log.texts.get(Text.library) if run.log else last_event(run.events, "transport").get("library")


def not_found(run: RunResult, date: str | None) -> list[str]:
    """Return the parts of the setup that a reader needs to repeat a run, and that its log does not contain."""
    parts = {
        "date": date,
        "program version": VERSION.search(str(run.setting("engine.kind"))),
        "GPU": run.started.get("device_name"),
        "number of ranks": run.ranks,
        "number of nodes": run.setting("nodes"),
        "arithmetic type": run.setting("job.precision"),
        "global batch size": run.plan.get("global_batch_size"),
    }
    return [name for name, found in parts.items() if not found]


def first_date(log: Path) -> str | None:
    """Return the first date at the beginning of a log as `2026-01-31`; None if there is none.

    It is that of the clock and time zone of its program; MLPerf's milliseconds are in UTC.
    """
    try:
        text = next(blocks(log), b"")[:LOOKED_AT_BYTES]
    except OSError:
        return None
    if found := DATE.search(text):
        return "-".join(part.decode() for part in found.groups())
    if found := MILLISECONDS.search(text):
        return datetime.fromtimestamp(int(found[1]) / 1000, UTC).date().isoformat()
    return None


def known(values: Iterable[Any]) -> list[str]:
    """Return the values that are not None, as text."""
    return [str(value) for value in values if value is not None]
