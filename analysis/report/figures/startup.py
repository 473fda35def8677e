"""Start-up by cause as bars, one a run."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import plural
from analysis.report.figures.bars import MOST_BARS, stacked
from analysis.report.figures.style import Figure, word
from analysis.run import RunResult
from analysis.scaling.groups import Group
from jobs import metrics as m
from jobs.metrics import Metric

HEADING = "Start-up by cause"
PARTS = (
    (m.STARTUP_STAGING_TIME, "staging", "#56606b"),
    (m.STARTUP_IMPORT_TIME, "interpreter and imports", "#999999"),
    (m.STARTUP_RENDEZVOUS_TIME, "rendezvous", "#56B4E9"),
    (m.STARTUP_DATA_TIME, "data", "#009E73"),
    (m.STARTUP_MODEL_TIME, "model", "#F0D98C"),
    (m.STARTUP_WEIGHTS_TIME, "weights", "#0072B2"),
    (m.STARTUP_CHECKPOINT_TIME, "checkpoint", "#CC79A7"),
    (m.STARTUP_OTHER_TIME, "other", "#d4d4d8"),
)
MEANING = (
    "From the start of rank 0's process to its first step, over all starts of a run; rank 0 waits for slower ranks in "
    "rendezvous, checkpoint and other. Compilation is in the first step."
)


def shown_runs(runs: Sequence[RunResult]) -> list[RunResult]:
    """Return the runs that recorded their start-up, longest first, at most MOST_BARS."""
    known = [run for run in runs if m.STARTUP_IMPORT_TIME in run.values]
    return sorted(known, key=lambda run: (-whole(run), run.name))[:MOST_BARS]


def whole(run: RunResult) -> float:
    """Return the sum of a run's parts, in seconds."""
    return sum(run.values.get(metric, 0.0) for metric in m.STARTUP_PARTS)


def spent(runs: Sequence[RunResult]) -> list[Metric]:
    """Return the parts that any of these runs recorded."""
    return [metric for metric in m.STARTUP_PARTS if any(metric in run.values for run in runs)]


def startup_bars(groups: Sequence[Group]) -> list[Figure]:
    """Return the start-up of runs as bars; no figure if no run recorded it."""
    runs = [run for group in groups for run in group.repeats]
    bars = shown_runs(runs)[::-1]
    if not bars:
        return []
    labels = [f"{run.name}, {plural(run.ranks or 1, 'rank')}" for run in bars]
    known = spent(bars)
    plot = stacked(bars, labels, [part for part in PARTS if part[0] in known])
    plot.update_xaxes(title_text="Start-up of rank 0 (s)")
    left_out = len([run for run in runs if m.STARTUP_IMPORT_TIME in run.values]) - len(bars)
    rest = f" Left out: {plural(left_out, 'run')} that started faster." if left_out else ""
    return [Figure("startup", HEADING, f"{word(groups)}: {MEANING}{rest}", plot, wide=True, metrics=known)]
