"""The cost of a run beside that of the reference of its line. Definitions: jobs.metrics."""

from __future__ import annotations

from analysis.run import RunResult
from analysis.scaling.groups import Group
from jobs import metrics as m


def reference_cost(group: Group) -> float | None:
    """Return RANK_TIME_PER_TOKEN of a group's reference; None if there is none, or it is unknown."""
    spread = group.reference.spread(m.RANK_TIME_PER_TOKEN) if group.reference else None
    return spread.median if spread else None


def relative_cost(run: RunResult, reference: float | None) -> float | None:
    """Return RELATIVE_COST of a run against the cost of its reference; None if either is unknown."""
    cost = run.values.get(m.RANK_TIME_PER_TOKEN)
    return cost / reference if reference and cost is not None else None
