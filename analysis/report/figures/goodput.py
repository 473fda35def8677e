"""Goodput as bars, one a run, for runs that were started more than once or suspended.

For other runs the breakdown of wall time shows it already.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import plural
from analysis.report.figures.bars import MOST_BARS, stacked
from analysis.report.figures.style import Figure, word
from analysis.run import RunResult
from analysis.scaling.groups import Group
from jobs import metrics as m

HEADING = "Goodput and lost time"
PARTS = (
    (m.QUEUE_TIME, "queue", "#56B4E9"),
    (m.STARTUPS_TIME, "start-up", "#999999"),
    (m.USEFUL_TIME, "useful steps", "#0072B2"),
    (m.LOST_TIME, "lost work", "#D55E00"),
    (m.CHECKPOINTS_TIME, "checkpoints", "#CC79A7"),
    (m.REQUEUE_TIME, "requeue", "#E69F00"),
    (m.UNSUBMITTED_TIME, "not submitted", "#F0D98C"),
    (m.SUSPENDED_TIME, "suspended", "#009E73"),
    (m.REST_TIME, "rest", "#d4d4d8"),
)


def shown_runs(runs: Sequence[RunResult]) -> list[RunResult]:
    """Return the runs to show, most starts first, then the lowest goodput; empty without a restart or suspension."""
    known = [run for run in runs if m.GOODPUT in run.values]
    if all(run.attempts < 2 and not run.values.get(m.SUSPENDED_TIME) for run in known):
        return []
    return sorted(known, key=lambda run: (-run.attempts, run.values[m.GOODPUT], run.name))[:MOST_BARS]


def goodput_bars(groups: Sequence[Group]) -> list[Figure]:
    """Return the goodput of runs as bars; no figure if no run was restarted or suspended."""
    runs = [run for group in groups for run in group.repeats]
    bars = shown_runs(runs)[::-1]
    if not bars:
        return []
    labels = [f"{run.name}, {plural(run.attempts, 'start')}" for run in bars]
    spent = [part for part in PARTS if any(run.values.get(part[0]) for run in bars)]
    plot = stacked(bars, labels, spent)
    plot.update_xaxes(title_text="Wall time from submission to recorded end (s)")
    left_out = len([run for run in runs if m.GOODPUT in run.values]) - len(bars)
    caption = (
        f"{word(groups)}: {m.RUN_TIME.definition} One bar per run, over all of its starts; goodput is the share of its "
        f"useful steps. Lost work: {m.LOST_TIME.definition} Comparing lengths compares time, not work."
    )
    rest = f" Left out: {plural(left_out, 'run')} with fewer starts or a higher goodput." if left_out else ""
    return [Figure(m.GOODPUT.name, HEADING, caption + rest, plot, wide=True, metrics=[part for part, *_ in PARTS])]
