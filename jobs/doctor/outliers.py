"""Pairs of nodes: the order in which they are measured, and which nodes their bandwidths show to be slow."""

from __future__ import annotations

from statistics import median

# A pair this far below the others is not noise; nor is a network this far below its data sheet.
SLOW = 0.7

Pairs = dict[tuple[str, str], float]
"""GB/s between two nodes."""


def rounds(players: int) -> list[list[tuple[int, int]]]:
    """Every pair of players once, in rounds whose pairs share no player: a tournament by the circle method."""
    seats: list[int | None] = [*range(players), *([None] if players % 2 else [])]
    made = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        made.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        # The first stays, the others move on by one seat.
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return made


def slow_nodes(pairs: Pairs) -> dict[str, float]:
    """Nodes whose pairs are all far below what is usual, each with its fastest pair's GB/s.

    Usual is the median of every node's fastest pair: a slow node slows the pairs of all others, but not their fastest
    one, so that this holds as long as most nodes are not slow. Two nodes can only be slow together.
    """
    fastest: dict[str, float] = {}
    for pair, speed in pairs.items():
        for node in pair:
            fastest[node] = max(speed, fastest.get(node, 0.0))
    usual = median(fastest.values()) if fastest else 0.0
    return {node: speed for node, speed in fastest.items() if speed < SLOW * usual}


def slow_pairs(pairs: Pairs) -> Pairs:
    """Pairs far below the median of those that have no slow node."""
    slow = slow_nodes(pairs)
    sound = {pair: speed for pair, speed in pairs.items() if not set(pair) & set(slow)}
    usual = median(sound.values()) if sound else 0.0
    return {pair: speed for pair, speed in sound.items() if speed < SLOW * usual}
