"""Rule of memory: the training states of a rank fit its GPU. It relies on all other rules."""

from __future__ import annotations

from jobs.plan.predict.states import states
from jobs.plan.rules.rule import Rule
from jobs.schema import Run

GIB = 2**30
"""Makers count the memory of a GPU in GiB and write GB: an H100 of 80 GB reports 79.6 GiB."""
MOST_STATES = 0.8
"""Largest part of a GPU's memory that a proposal fills with states: activations need the rest."""


def states_fit(run: Run) -> str | None:
    """Refuse a run whose weights, gradients and optimizer state alone are larger than the memory of its GPU."""
    if run.gpu.memory_gb is None or leaves_room(run, 1.0):
        return None
    needed = states(run)
    return (
        f"{run.model.name} does not fit gpu={run.gpu.name} of {run.gpu.memory_gb:g} GB: training states alone take "
        f"{needed.total / 1e9:,.1f} GB on each ({needed.described()}). Shard them over more GPUs, or set "
        "gpu.memory_gb=null to try it anyway."
    )


def leaves_room(run: Run, part: float = MOST_STATES) -> bool:
    """Return whether the training states take at most this part of the GPU's memory, where that is known."""
    return run.gpu.memory_gb is None or states(run).total <= part * run.gpu.memory_gb * GIB


RULES: tuple[Rule, ...] = (states_fit,)
