"""The table of checkpoints: one row per run that wrote one or failed to."""

from __future__ import annotations

from analysis.formatting import short, shown, shown_spread, title
from analysis.intervals import Spread
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult
from jobs import metrics as m

LONGEST_ERROR = 120
NUMBERS = (m.CHECKPOINT_SIZE, m.CHECKPOINT_STALL, m.CHECKPOINT_STALL_SHARE)


def written(run: RunResult) -> int:
    """Return the number of checkpoints that a run wrote, over all of its starts."""
    return sum(event["event"] == "checkpoint" for event in run.events)


def failures(run: RunResult) -> list[str]:
    """Return the errors of checkpoints that could not be written, one sentence each."""
    return [str(event.get("error", "no error text")) for event in run.events if event["event"] == "checkpoint_failed"]


def checkpoint_section(digest: Digest) -> Section | None:
    """Return a row for each run that wrote a checkpoint or failed to; None if there are none."""
    note = (
        "One row per run, over all of its starts; size, stall and bandwidth are medians, the latter with the slowest "
        f"and the fastest checkpoint. {m.CHECKPOINT_STALL_SHARE.name}: {m.CHECKPOINT_STALL_SHARE.definition} "
        f"{m.CHECKPOINT_BANDWIDTH.name}: {m.CHECKPOINT_BANDWIDTH.definition} 1 GB is 1e9 bytes."
    )
    rows = [
        [
            run.name,
            f"{written(run):,}",
            *(shown(each, run.values.get(each)) for each in NUMBERS),
            shown_spread(m.CHECKPOINT_BANDWIDTH, bandwidths(run)),
            f"{len(errors):,}: {short(errors[0], LONGEST_ERROR)}" if errors else "none",
        ]
        for run in digest.used
        if (errors := failures(run)) or written(run)
    ]
    headings = ("Run", "Written", *map(title, NUMBERS), title(m.CHECKPOINT_BANDWIDTH), "Failed")
    return Section("Checkpoints", note, headings, rows) if rows else None


def bandwidths(run: RunResult) -> Spread | None:
    """Return the median write bandwidth of a run's checkpoints, with the slowest and the fastest."""
    if m.CHECKPOINT_BANDWIDTH not in run.values:
        return None
    low, high = run.values[m.CHECKPOINT_BANDWIDTH_LOW], run.values[m.CHECKPOINT_BANDWIDTH_HIGH]
    return Spread(run.values[m.CHECKPOINT_BANDWIDTH], low, high, written(run))
