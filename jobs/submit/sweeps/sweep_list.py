"""`slurmscale list`: a row for each sweep in a directory, newest first, with one look at the launchers for all."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from jobs.console import console, plain
from jobs.errors import RunDirError, SubmitError, SuiteError
from jobs.files import is_directory, reason
from jobs.fitted_table import FittedTable
from jobs.plan.rules.rule import counted
from jobs.rundir import SweepDir
from jobs.submit.commands import per_state
from jobs.submit.scheduler_call import patience
from jobs.submit.states import RunState, states_of
from jobs.submit.sweeps.note import note_of
from jobs.submit.sweeps.submissions import latest_submissions, shell_clusters
from jobs.submit.sweeps.sweep_at import enclosing_run, holds_sweep, is_run, sweeps_in, what_it_is

DEFAULT_PLACE = Path("runs")
# Of `st_blocks`, whatever the file system uses.
BLOCK_BYTES = 512
AGES = (("d", 86_400), ("h", 3_600), ("min", 60))


@dataclass(frozen=True)
class Row:
    """The row of a sweep."""

    name: str
    path: Path
    found: list[RunState] | str
    """States of its runs, or why they are not known."""
    changed: float
    """Seconds since the epoch; 0 if nothing in it can be read."""
    size_bytes: int
    note: str

    @property
    def states(self) -> str:
        """The numbers of runs by state, as text."""
        if isinstance(self.found, str):
            return self.found
        return per_state(Counter(item.state for item in self.found)) or "no run"


def listed_rows(path: Path) -> list[Row]:
    """Return a row for each sweep in a directory; of a sweep directory its own. Raise RunDirError."""
    here = path.expanduser().absolute()
    if is_run(here) or enclosing_run(here):
        raise RunDirError(f"{path} is a run, or inside one. `slurmscale status` shows a run.")
    if not is_directory(here):
        more = " Pass the directory of your sweeps: slurmscale list DIR" if path == DEFAULT_PLACE else ""
        raise RunDirError(f"{path} {what_it_is(here)}" if not more else f"There is no directory {here}.{more}")
    sweeps = [SweepDir(here)] if holds_sweep(SweepDir(here)) else list(sweeps_in(here))
    return rows_of(sweeps, here.parent if sweeps and sweeps[0].path == here else here)


def list_sweeps(path: Path) -> int:
    """Print a row for each sweep in a directory; of a sweep directory its own."""
    rows = listed_rows(path)
    if not rows:
        print(f"{path} contains no sweep")
        return 0
    table = FittedTable()
    table.whole("sweep")
    table.text("runs")
    table.number("changed")
    table.number("size")
    notes = any(row.note for row in rows)
    if notes:
        table.text("note")
    for row in rows:
        cells = (plain(row.name), plain(row.states), age(row.changed), decimal(row.size_bytes))
        table.add_row(*cells, *([plain(row.note)] if notes else []))
    out = console()
    out.print(table)
    print(f"{counted(len(rows), 'sweep')} in {path}: {decimal(sum(row.size_bytes for row in rows))}")
    return 0


def rows_of(sweeps: Sequence[SweepDir], above: Path) -> list[Row]:
    """Return the rows of sweeps, newest first."""
    found = states_or_reasons(sweeps)
    rows = [row_of(sweep, str(sweep.path.relative_to(above)), found[sweep]) for sweep in sweeps]
    return sorted(rows, key=lambda row: row.changed, reverse=True)


def row_of(sweep: SweepDir, name: str, found: list[RunState] | str) -> Row:
    """Return the row of a sweep."""
    size, changed = used(sweep)
    return Row(name, sweep.path, found, changed, size, note_of(sweep))


def states_or_reasons(sweeps: Sequence[SweepDir]) -> Mapping[SweepDir, list[RunState] | str]:
    """Return the states of the runs of each sweep, or why they are not known; nobody waits for a Slurm that is away."""
    found: dict[SweepDir, list[RunState] | str] = {}
    known = []
    for sweep in sweeps:
        try:
            shell_clusters(sweep)
            latest_submissions(sweep)
            os.scandir(sweep.path).close()
            known.append(sweep)
        except (OSError, SuiteError) as error:
            found[sweep] = why_unknown(error)
    # A table of old sweeps must not wait half a minute for a controller that is away.
    with patience(0):
        try:
            return found | dict(zip(known, states_of(known), strict=True))
        except (OSError, SuiteError):
            # Files of one of them were changed or removed meanwhile.
            return found | {sweep: states_or_reason(sweep) for sweep in known}


def states_or_reason(sweep: SweepDir) -> list[RunState] | str:
    """Return the states of the runs of a sweep, or why they are not known."""
    try:
        return states_of([sweep])[0]
    except (OSError, SuiteError) as error:
        return why_unknown(error)


def why_unknown(error: OSError | SuiteError) -> str:
    """Return why the states of a sweep are not known, in a few words."""
    if isinstance(error, SubmitError):
        return "of another SLURM_CLUSTERS"
    return f"cannot be read: {reason(error)}" if isinstance(error, OSError) else "cannot be read"


def age(changed: float) -> str:
    """Return the time since a change in the largest unit that fits: `5 min`, `3 h`, `12 d`."""
    if not changed:
        return "-"
    age_s = max(0.0, time.time() - changed)
    return next((f"{age_s // size:.0f} {unit}" for unit, size in AGES if age_s >= size), f"{age_s:.0f} s")


def used(sweep: SweepDir) -> tuple[int, float]:
    """Return the bytes on disk of a sweep, and the time of the last change of a file of its runs or its ledger."""
    size, changed = 0, 0.0
    with_runs = {run.name for run in sweep.runs()}
    ledgers = {sweep.submissions.name, sweep.stages.name}
    for entry in entries_of(sweep.path):
        of_run = entry.name in with_runs or entry.name in ledgers
        for file in files_below(entry):
            # It may be removed meanwhile.
            with suppress(OSError):
                found = file.stat(follow_symlinks=False)
                size += found.st_blocks * BLOCK_BYTES
                changed = max(changed, found.st_mtime) if of_run else changed
    return size, changed


def files_below(entry: os.DirEntry[str]) -> Iterator[os.DirEntry[str]]:
    """Yield an entry, and all below it; no link is followed, and what cannot be read is passed over."""
    yield entry
    if entry.is_dir(follow_symlinks=False):
        for each in entries_of(Path(entry.path)):
            yield from files_below(each)


def entries_of(path: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a directory; none if it cannot be read or was removed."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []
