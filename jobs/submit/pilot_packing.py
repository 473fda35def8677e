"""Which waiting points of a pilot start now, and where: pure arithmetic on node names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A run that waits for nodes."""

    name: str
    nodes: int
    failed_on: frozenset[str] = frozenset()
    """Nodes that it tried and failed on: better others, if there are any."""


def pack(waiting: Iterable[Point], free: list[str], most: int | None = None) -> dict[str, list[str]]:
    """The nodes of each point that starts now: the largest first, equals in the order given, then what still fits.

    No node is kept idle for a large point, and none is needed: where all nodes were free once, a point waits only
    while one at least as large runs, whose nodes it can have. `most` is how many may start.
    """
    starts: dict[str, list[str]] = {}
    left = list(free)
    for point in sorted(waiting, key=lambda point: -point.nodes):
        if point.nodes > len(left) or len(starts) == most:
            continue
        chosen = set(sorted(left, key=lambda node: node in point.failed_on)[: point.nodes])
        starts[point.name] = [node for node in left if node in chosen]
        left = [node for node in left if node not in chosen]
    return starts
