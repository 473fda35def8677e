"""Pairs of nodes: the order of their measurements, and the slow nodes and pairs among them."""

from __future__ import annotations

from statistics import median

# A pair below this share of the usual bandwidth is slow; likewise a network compared with its data sheet.
SLOW = 0.7

Pairs = dict[tuple[str, str], float]
"""GB/s between two nodes."""


def rounds(players: int) -> list[list[tuple[int, int]]]:
    """Return every pair of players once, in rounds whose pairs share no player (circle method of tournaments)."""
    seats: list[int | None] = [*range(players), *([None] if players % 2 else [])]
    made = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        made.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        # The first player stays, the others move by one seat.
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return made


def slow_nodes(pairs: Pairs) -> dict[str, float]:
    """Return the nodes whose pairs are all far below the usual bandwidth, each with the GB/s of its fastest pair.

    Usual is the median over nodes of the fastest pair: a slow node slows one pair of each other node, but not its
    fastest one, so this works as long as most nodes are fast. With two nodes neither is slower than the other.
    """
    fastest: dict[str, float] = {}
    for pair, speed in pairs.items():
        for node in pair:
            fastest[node] = max(speed, fastest.get(node, 0.0))
    usual = median(fastest.values()) if fastest else 0.0
    return {node: speed for node, speed in fastest.items() if speed < SLOW * usual}


def slow_pairs(pairs: Pairs) -> Pairs:
    """Return the pairs far below the median of the pairs without a slow node."""
    slow = slow_nodes(pairs)
    sound = {pair: speed for pair, speed in pairs.items() if not set(pair) & set(slow)}
    usual = median(sound.values()) if sound else 0.0
    return {pair: speed for pair, speed in sound.items() if speed < SLOW * usual}
