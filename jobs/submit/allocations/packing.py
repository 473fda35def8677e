"""Choose which waiting runs of a pilot start now, and on which nodes: pure arithmetic on node names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A run that waits for nodes."""

    name: str
    nodes: int
    failed_on: frozenset[str] = frozenset()
    """Nodes on which it failed; others are preferred."""


def pack(waiting: Iterable[Point], free: list[str], most: int | None = None) -> dict[str, list[str]]:
    """Return the nodes of each run that starts now: the largest run first, runs of one size in the given order.

    No node is kept idle for a large run: if all nodes were free once, a run waits only for runs of its own size or
    larger. At most `most` runs start.
    """
    starts: dict[str, list[str]] = {}
    left = list(free)
    # Largest first, as in first-fit decreasing: small runs fill what is left, and the order of equals is kept.
    for point in sorted(waiting, key=lambda point: -point.nodes):
        if point.nodes > len(left) or len(starts) == most:
            continue
        chosen = set(sorted(left, key=lambda node: node in point.failed_on)[: point.nodes])
        starts[point.name] = [node for node in left if node in chosen]
        left = [node for node in left if node not in chosen]
    return starts
