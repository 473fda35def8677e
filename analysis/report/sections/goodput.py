"""The table of goodput with the losses by cause, for runs that were started more than once or suspended."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import plural, shown, significant, title
from analysis.metrics.goodput import Loss, replacements
from analysis.report.digest import Digest
from analysis.report.figures.goodput import HEADING, PARTS, shown_runs
from analysis.report.figures.style import Section
from jobs import metrics as m


def lost_words(losses: Sequence[Loss]) -> str:
    """Return the starts and the time lost to each cause: `killed: 2 starts, 41.3 s`."""
    return "; ".join(
        f"{loss.cause}: {plural(loss.starts, 'start')}, {significant(loss.time_s, 3)} s" for loss in losses
    )


def goodput_section(digest: Digest) -> Section | None:
    """Return a row for each run of the figure; parts without time in any run have no column. None without runs."""
    listed = shown_runs(digest.used)
    spent = [metric for metric, _, _ in PARTS if any(run.values.get(metric) for run in listed)]
    metrics = (m.GOODPUT, m.RUN_TIME, *spent)
    note = (
        "One row per run, those with the most starts first, over all starts up to the recorded end. "
        f"{m.GOODPUT.name}: {m.GOODPUT.definition} The columns after {m.RUN_TIME.name} sum to it. Lost to: the "
        "causes that ended starts, with their number and the time lost until the next start's first step, and the "
        "spare nodes that took the place of others."
    )
    rows = [
        [
            run.name,
            f"{run.attempts:,}",
            *(shown(metric, run.values.get(metric)) for metric in metrics),
            "; ".join(filter(None, [lost_words(run.lost_to), *replacements(run.events)])) or "nothing",
        ]
        for run in listed
    ]
    return Section(HEADING, note, ("Run", "Starts", *map(title, metrics), "Lost to"), rows) if rows else None
