"""`slurmscale report SWEEP... --live`: write the report again while runs wait or run, and the last state at the end.

The page is replaced as a whole, reloads itself in the browser, and its first line has the states and the time. Curves
of the runs in progress come first, marked as no results. Runs of which no file has changed are not read again. The last
report is the one that `report` writes, without that line and those curves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

from analysis.report.content import Live
from analysis.report.report import answered
from jobs.output import exit_code_of
from jobs.rundir import SweepDir
from jobs.submit.commands import look, pause_s, summary
from jobs.submit.stage_states import StageState, stage_lines, stage_states
from jobs.submit.states import RunState, State
from jobs.submit.sweeps.sweep_at import open_sweep

# Seconds between two reports: at least these, and so long that reading takes a fifth of one processor at most.
LEAST_S = 10.0
SHARE = 0.2

Write = Callable[[Live | None], tuple[list[str], Path]]
"""Write the report, for the last time with None; return its headline and its page."""


@dataclass(frozen=True)
class Look:
    """The runs and stages of some sweeps at a time."""

    runs: Sequence[RunState]
    stages: Sequence[StageState]

    @property
    def pause_s(self) -> float:
        """Seconds until the next look; 0 if nothing waits or runs."""
        return pause_s([*self.runs, *self.stages])

    @property
    def words(self) -> str:
        """The numbers of runs and stages by state."""
        return "; ".join([summary(list(self.runs)), *stage_lines(list(self.stages))])

    @property
    def running(self) -> frozenset[Path]:
        """The directories of the runs that are running, or suspended in the middle."""
        return frozenset(
            each.run.path.resolve() for each in self.runs if each.state in {State.running, State.suspended}
        )

    @property
    def stamps(self) -> object:
        """A value that changes with the state or a file of any run."""
        return self.words, [(each.run.path, each.state, each.detail, stamps(each.run.path)) for each in self.runs]


def live(
    paths: Sequence[Path],
    output: Path | None,
    formats: Iterable[str] = (),
    cost_of: str | None = None,
    *,
    opened: Callable[[Path], object],
    follow: bool = False,
    anonymous: bool = False,
) -> tuple[list[str], Path, int]:
    """Write the report of sweeps until nothing of them waits or runs; return the last headline, page and exit code.

    `opened` is called with the page after it was written first. Ctrl-C writes the last state, too; a second one leaves
    the page as it is. Raise RunDirError for a path that is no sweep, and ReportError as `report` does.
    """
    sweeps = [open_sweep(path) for path in paths]

    def write(state: Live | None) -> tuple[list[str], Path]:
        return answered(list(paths), output, formats, cost_of, follow=follow, anonymous=anonymous, live=state)

    code = 0
    try:
        rewrite(sweeps, write, opened)
    except KeyboardInterrupt as interrupt:
        code = exit_code_of(interrupt)
        print("No longer live; the runs continue. The page is written once more.", file=sys.stderr)
    return *write(None), code


def rewrite(sweeps: Sequence[SweepDir], write: Write, opened: Callable[[Path], object]) -> None:
    """Write the report whenever a state or file has changed, until nothing waits or runs."""
    written: object = None
    due, spacing_s = 0.0, LEAST_S
    while True:
        found = seen(sweeps)
        if not found.pause_s:
            return
        if time.monotonic() >= due and found.stamps != written:
            began = time.monotonic()
            first, written = written is None, found.stamps
            at = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
            line = f"Live: {found.words}; written {at}, while runs wait or run."
            page = write(Live(line, round(spacing_s), found.running))[1]
            spacing_s = max(LEAST_S, (time.monotonic() - began) / SHARE)
            due = time.monotonic() + spacing_s
            if first:
                print(f"{page} is written again until all runs have ended; Ctrl-C ends that, not the runs.", flush=True)
                opened(page)
        time.sleep(found.pause_s)


def seen(sweeps: Iterable[SweepDir]) -> Look:
    """Return the states of some sweeps."""
    both = [(look(sweep), stage_states(sweep)) for sweep in sweeps]
    return Look(
        list(chain.from_iterable(runs for runs, _ in both)), list(chain.from_iterable(each for _, each in both))
    )


def stamps(directory: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of the last change of each file in a run directory; none of one that was removed."""
    try:
        found = [(each.name, each.stat()) for each in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)
