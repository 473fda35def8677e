"""Shares of profiled steps as bars, one a run, in the order of the settings that change them."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import plural
from analysis.report.figures.bars import MOST_BARS, stacked
from analysis.report.figures.style import Figure, word
from analysis.run import RunResult
from analysis.scaling.groups import Group
from jobs import metrics as m

HEADING = "Profile of a step"
PARTS = (
    (m.COMPUTE_SHARE, "compute", "#0072B2"),
    (m.EXPOSED_COMMUNICATION_SHARE, "exposed communication", "#D55E00"),
    (m.MEMORY_COPY_SHARE, "memory copies", "#E69F00"),
    (m.HOST_SHARE, "host", "#CC79A7"),
    (m.IDLE_SHARE, "idle", "#d4d4d8"),
)
ORDER = ("model.name", "engine.kind", "parallelism.name", "nodes", "ranks_per_node", "job.micro_batch_size", "repeat")


def shown_runs(runs: Sequence[RunResult]) -> list[RunResult]:
    """Return the profiled runs, at most MOST_BARS: those of one layout together, by micro-batch size."""

    def place(run: RunResult) -> list[tuple[bool, float, str]]:
        settings = [run.setting(key) for key in ORDER]
        numbers = [float(each) if isinstance(each, int) else 0.0 for each in settings]
        return [(each is None, number, str(each)) for each, number in zip(settings, numbers, strict=True)]

    return sorted((run for run in runs if run.profiles), key=place)[:MOST_BARS]


def profile_bars(groups: Sequence[Group]) -> list[Figure]:
    """Return the shares of profiled steps as bars; no figure without a profiled run."""
    runs = [run for group in groups for run in group.repeats]
    bars = shown_runs(runs)[::-1]
    if not bars:
        return []
    labels = [f"{run.name}, MBS {run.setting('job.micro_batch_size')}" for run in bars]
    plot = stacked(bars, labels, PARTS)
    plot.update_xaxes(title_text="Share of the profiled steps (%)", range=[0, 100])
    left_out = sum(bool(run.profiles) for run in runs) - len(bars)
    caption = (
        f"{word(groups)}: profiled steps by what is under way, mean over the profiled ranks, by the definitions below. "
        "A moment counts for the first part of the legend that fits, so hidden communication is part of compute. "
        "Profiling slows a step down: compare shares, not times."
    )
    rest = f" Left out: {plural(left_out, 'further run')}." if left_out else ""
    return [Figure("profile", HEADING, caption + rest, plot, wide=True, metrics=[part for part, *_ in PARTS])]
