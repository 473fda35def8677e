"""The cost of runs relative to that of the reference of their line. Definitions: jobs.metrics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from analysis.scaling.groups import Group
from jobs import metrics as m


def relative_costs(groups: Iterable[Group]) -> dict[Path, float]:
    """Return RELATIVE_COST of every run that has it, by path."""
    return {
        run.path: run.values[m.RANK_TIME_PER_TOKEN] / spread.median
        for group in groups
        if group.reference and (spread := group.reference.spread(m.RANK_TIME_PER_TOKEN)) and spread.median
        for run in group.repeats
        if m.RANK_TIME_PER_TOKEN in run.values
    }
