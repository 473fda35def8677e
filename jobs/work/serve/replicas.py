"""The replicas of a run that serves: their number, ranks and nodes, and the requests that they get."""

from __future__ import annotations

from jobs.schema import Run


def replicas_of(run: Run) -> int:
    """Return the replicas of a run that serves."""
    assert run.serving is not None
    return run.serving.replicas or run.ranks // replica_ranks(run)


def replica_ranks(run: Run) -> int:
    """Return the ranks of a replica, TP x PP: consecutive ones, so that it is on as few nodes as possible."""
    return run.parallelism.tensor * run.parallelism.pipeline


def replica_nodes(run: Run) -> int:
    """Return the nodes of a replica: one, or as many whole nodes as its ranks fill."""
    return max(1, replica_ranks(run) // run.ranks_per_node)


def most_concurrency(run: Run) -> int:
    """Return the most requests under way at once in any load of a run that serves."""
    assert run.serving is not None
    return max(run.serving.concurrency, run.serving.search.most_concurrency or 0)
