"""The table of start-up by cause."""

from __future__ import annotations

from analysis.formatting import shown, title
from analysis.report.digest import Digest
from analysis.report.figures.startup import HEADING, MEANING, PARTS, shown_runs, spent, whole
from analysis.report.figures.style import Section
from analysis.run import RunResult
from jobs import metrics as m


def startup_section(digest: Digest) -> Section | None:
    """Return a row for each run that recorded its start-up by cause; None if there are none."""
    listed = shown_runs(digest.used)
    metrics = spent(listed)
    note = f"{MEANING} One row per run, those with the longest start-up first."
    rows = [
        [
            run.name,
            f"{run.attempts:,}",
            shown(m.STARTUP_TIME, whole(run)),
            *(shown(metric, run.values.get(metric)) for metric in metrics),
            largest(run),
        ]
        for run in listed
    ]
    headings = ("Run", "Starts", title(m.STARTUP_TIME), *map(title, metrics), "Largest part")
    return Section(HEADING, note, headings, rows) if rows else None


def largest(run: RunResult) -> str:
    """Return the part that took the most time, with its share: `weights, 61 %`."""
    metric, name, _ = max(PARTS, key=lambda part: run.values.get(part[0], 0.0))
    return f"{name}, {100 * run.values[metric] / whole(run):.0f} %" if whole(run) else "nothing"
