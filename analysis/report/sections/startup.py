"""The table of start-up by cause."""

from __future__ import annotations

from analysis.formatting import one_line, shown, title
from analysis.report.digest import Digest
from analysis.report.figures.startup import HEADING, MEANING, PARTS, shown_runs, spent, whole
from analysis.report.figures.style import Section
from analysis.run import RunResult
from jobs import metrics as m

FOUND = (
    m.COLD_STARTS,
    m.COLD_STARTUP_TIME,
    m.WARM_STARTUP_TIME,
    m.SLOWEST_IMPORT_TIME,
    m.STARTUP_READ_BYTES,
    m.CHECKPOINT_FROM_COPIES,
    m.CHECKPOINT_FROM_SHARED,
    m.KERNELS_FOUND,
    m.KERNELS_COMPILED,
)
FOUND_MEANING = (
    " A start is cold if the sweep had not started on one of its machines since their boot; compare cold starts with "
    "cold ones: a restart on the same nodes is warm."
)


def startup_section(digest: Digest) -> Section | None:
    """Return a row for each run that recorded its start-up by cause; None if there are none."""
    listed = shown_runs(digest.used)
    metrics = [*spent(listed), *(metric for metric in FOUND if any(metric in run.values for run in listed))]
    staged = any("environment" in run.started for run in listed)
    note = f"{MEANING} One row per run, those with the longest start-up first.{FOUND_MEANING}"
    rows = [
        [
            run.name,
            f"{run.attempts:,}",
            shown(m.STARTUP_TIME, whole(run)),
            *(shown(metric, run.values.get(metric)) for metric in metrics),
            *([one_line(str(run.started.get("environment", "")))] if staged else []),
            largest(run),
        ]
        for run in listed
    ]
    copies = ["Environment"] if staged else []
    headings = ("Run", "Starts", title(m.STARTUP_TIME), *map(title, metrics), *copies, "Largest part")
    return Section(HEADING, note, headings, rows) if rows else None


def largest(run: RunResult) -> str:
    """Return the part that took the most time, with its share: `weights, 61 %`."""
    metric, name, _ = max(PARTS, key=lambda part: run.values.get(part[0], 0.0))
    return f"{name}, {100 * run.values[metric] / whole(run):.0f} %" if whole(run) else "nothing"
