"""The wait of a job in the queue, from those of earlier jobs of about its size in the same partition.

Waits follow no formula: the load of a cluster decides them. So quantiles of the site's own history are shown, with
their number, and nothing is extrapolated to other sizes.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from jobs.plan.predict.calibration import calibrated_waits
from jobs.schema import Run

FEWEST = 5
NEAR = 2
"""Jobs of up to this many times more or fewer nodes count as about as large."""
MOST_SHARE = 0.9


@dataclass(frozen=True)
class QueueWait:
    """The wait of a job, from those of earlier ones."""

    median_s: float
    most_s: float | None
    """The wait that nine of ten jobs do not exceed; None with too few jobs to know it."""
    longest_s: float
    count: int
    sizes: tuple[int, int]
    """Fewest and most nodes of these jobs."""


def queue_wait(run: Run) -> QueueWait | str | None:
    """Return the wait of a run in the queue of its partition, why it is not known, or None without any wait there."""
    if not run.launcher.kind.job_per_run or not (waits := calibrated_waits(run)):
        return None
    near = [(nodes, wait_s) for nodes, wait_s in waits if nodes <= NEAR * run.nodes and run.nodes <= NEAR * nodes]
    if len(near) < FEWEST:
        return (
            f"unknown: the calibration has {len(near)} wait{'s' * (len(near) != 1)} of jobs of "
            f"{math.ceil(run.nodes / NEAR)} to {NEAR * run.nodes} nodes in this partition, and {FEWEST} give it"
        )
    sizes, times = [nodes for nodes, _ in near], sorted(wait_s for _, wait_s in near)
    # The k-th of n waits is not exceeded by a further one with probability k / (n + 1).
    place = math.ceil(MOST_SHARE * (len(times) + 1))
    most = times[place - 1] if place <= len(times) else None
    return QueueWait(statistics.median(times), most, times[-1], len(times), (min(sizes), max(sizes)))
