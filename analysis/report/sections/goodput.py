"""How a page tells of goodput: a table with the losses by cause, and a bar a run.

Both are shown where a run was started more than once; for others "Where the time went" says it already, and their
goodput is in the table of runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import shown, significant, title
from analysis.load.run_directory import RunResult
from analysis.metrics.goodput import Loss
from analysis.report.figures.bars import MOST_BARS, stacked
from analysis.report.figures.style import Figure, Section, word
from analysis.scaling.groups import Group, plural
from jobs import metrics as m

HEADING = "Goodput, and what it was lost to"
PARTS = (
    (m.QUEUE_TIME, "queue", "#56B4E9"),
    (m.STARTUPS_TIME, "start-up", "#999999"),
    (m.USEFUL_TIME, "useful steps", "#0072B2"),
    (m.LOST_TIME, "lost work", "#D55E00"),
    (m.CHECKPOINTS_TIME, "checkpoints", "#CC79A7"),
    (m.REQUEUE_TIME, "requeue", "#E69F00"),
    (m.UNSUBMITTED_TIME, "not submitted", "#F0D98C"),
    (m.REST_TIME, "rest", "#d4d4d8"),
)


def told(runs: Sequence[RunResult]) -> list[RunResult]:
    """The runs to tell of, those with the most starts first, then the lowest goodput; none without a restart."""
    known = [run for run in runs if m.GOODPUT in run.values]
    if all(run.attempts < 2 for run in known):
        return []
    return sorted(known, key=lambda run: (-run.attempts, run.values[m.GOODPUT], run.name))[:MOST_BARS]


def lost_words(losses: Sequence[Loss]) -> str:
    """What each cause cost: `killed: 2 starts, 41.3 s`."""
    return "; ".join(
        f"{loss.cause}: {plural(loss.starts, 'start')}, {significant(loss.time_s, 3)} s" for loss in losses
    )


def goodput_section(runs: Sequence[RunResult]) -> Section | None:
    """A row a run that is told of, if any; parts that none of them spent time on have no column."""
    shown_runs = told(runs)
    spent = [metric for metric, _, _ in PARTS if any(run.values.get(metric) for run in shown_runs)]
    metrics = (m.GOODPUT, m.RUN_TIME, *spent)
    note = (
        "One row a run, those with the most starts first, over all starts up to the recorded end. "
        f"{m.GOODPUT.name}: {m.GOODPUT.definition} The columns after {m.RUN_TIME.name} sum to it. Lost to: what ended "
        "starts, how many, and what that cost in lost work and in time until the next start's first step."
    )
    rows = [
        [
            run.name,
            f"{run.attempts:,}",
            *(shown(metric, run.values.get(metric)) for metric in metrics),
            lost_words(run.lost_to) or "nothing",
        ]
        for run in shown_runs
    ]
    return Section(HEADING, note, ("Run", "Starts", *map(title, metrics), "Lost to"), rows) if rows else None


def goodput_bars(groups: Sequence[Group]) -> list[Figure]:
    """The same as bars; no figure when there is nothing to tell."""
    runs = [run for group in groups for point in group.points for run in dict.fromkeys(point.runs + point.doubted)]
    bars = told(runs)[::-1]
    if not bars:
        return []
    labels = [f"{run.name}, {plural(run.attempts, 'start')}" for run in bars]
    spent = [part for part in PARTS if any(run.values.get(part[0]) for run in bars)]
    plot = stacked(bars, labels, spent)
    plot.update_xaxes(title_text="Wall time from submission to recorded end (s)")
    left_out = len([run for run in runs if m.GOODPUT in run.values]) - len(bars)
    caption = (
        f"{word(groups)}: {m.RUN_TIME.definition} One bar a run, over all of its starts; goodput is the share of its "
        f"useful steps. Lost work: {m.LOST_TIME.definition} Comparing lengths compares time, not work."
    )
    rest = f" Left out: {plural(left_out, 'run')} with fewer starts or a higher goodput." if left_out else ""
    return [Figure(m.GOODPUT.name, HEADING, caption + rest, plot, wide=True)]
