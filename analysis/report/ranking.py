"""The ranking: every line by its fastest point, within its task, with what its ranks gain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from analysis.formatting import ABSENT, per_second, shown, shown_spread, title
from analysis.metrics.shared_nodes import side_by_side
from analysis.parsers import log_metrics as a
from analysis.report.figures.style import Section, word
from analysis.report.headline import fastest, gain_of, label_within, lesson, submitted_by, task_name
from analysis.run import RunResult
from analysis.scaling.groups import RATES, Group, by_task
from jobs import metrics as m

HEADING = "Ranking"
HEADINGS = ("Line", "Place", "Ranks", "n", "Unit", "Throughput", "Per rank", title(m.EFFICIENCY), "Gain, source")
NOTE = (
    "one row a line, at its fastest point with a loss that is believed. Places count within a task (model, data, "
    "sequence length, weak scaling or not) and a unit. Lines are ranked by the throughput of all their ranks, "
    "so read the rate per rank beside it; the gain is that of the throughput from the fewest ranks to the most."
)


def ranking_section(groups: Sequence[Group], runs: Collection[RunResult]) -> Section | None:
    """Return a row for each line with a believed point, the fastest of each task first; None for a single line."""
    if len(groups) < 2:
        return None
    tasks, beside = list(by_task(groups).values()), side_by_side(runs)
    rows = [row for task in tasks for row in rows_of(task, beside, name_task=len(tasks) > 1)]
    return Section(HEADING, f"{word(groups)}: {NOTE}", HEADINGS, rows) if rows else None


def rows_of(task: Sequence[Group], beside: Mapping[Path, RunResult], *, name_task: bool) -> list[list[str]]:
    """Return the rows of a task; its name is in them if there are several tasks."""
    rows = []
    for rate in RATES:
        best = [found for group in task if group.rate is rate and (found := fastest([group]))]
        best.sort(key=lambda each: (-each[1].throughput.median, each[0].label))
        for group, point in best:
            place = 1 + sum(other.throughput.median > point.throughput.median for _, other in best)
            notes = [lesson(group, beside, name="") if gain_of(group) else "", submitted_by([group])]
            rows.append(
                [
                    ": ".join(filter(None, [task_name(task), label_within(task_name(task), group)]))
                    if name_task
                    else group.label,
                    f"{place} of {len(best)}",
                    f"{point.ranks:,}",
                    f"{len(point.runs):,}",
                    per_second(rate),
                    shown_spread(rate, point.throughput),
                    # Steps do not divide over ranks.
                    ABSENT if rate is a.STEPS_PER_S else shown(rate, point.throughput_per_rank.median),
                    shown(m.EFFICIENCY, efficiency.median) if (efficiency := group.efficiency(point)) else ABSENT,
                    "; ".join(filter(None, notes)) or ABSENT,
                ]
            )
    return rows
