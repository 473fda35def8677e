"""Sensitivity of a campaign's ties: the difference that their pairs would miss. A tie does not prove equal speed."""

from __future__ import annotations

from analysis.compare.campaign import Entry, Leaderboard, Verdict
from analysis.compare.core import clauses
from analysis.formatting import percent
from analysis.intervals import MOST_PAIRS, POWER, detectable, pairs_needed

# A speedup that teams hunt for.
SMALL_EFFECT = 0.03
MOST_TIES = 6


def unseen_below(entry: Entry) -> float | None:
    """Return the relative difference that the pairs of a tie would hardly show; None for another verdict or a proxy."""
    is_tie = entry.verdict is Verdict.tie and entry.trial.proxy is None
    return detectable(entry.ratios, entry.confidence) if is_tie else None


def sensitivity(board: Leaderboard) -> list[str]:
    """Return what the pairs of each tie could have shown, and how many pairs SMALL_EFFECT takes."""
    ties = [(entry, unseen) for entry in board.entries if (unseen := unseen_below(entry)) is not None]
    words = [
        f"{entry.trial.name} (n = {len(entry.ratios)}): below {percent(unseen)}"
        + more_pairs(pairs_needed(entry.ratios, SMALL_EFFECT, entry.confidence), len(entry.ratios))
        for entry, unseen in ties
    ]
    if not ties:
        return []
    return [
        f"A tie does not prove equal speed. Differences that these pairs would miss in more than {percent(1 - POWER)} "
        f"of such campaigns, at the noise between their own pairs: {clauses(words, MOST_TIES)}."
    ]


def more_pairs(needed: int | None, n: int) -> str:
    """Return how many pairs would show SMALL_EFFECT, if these do not."""
    if needed is not None and needed <= n:
        return ""
    count = f"{needed:,} pairs" if needed is not None else f"more than {MOST_PAIRS:,} pairs"
    return f" (use {count} to see {percent(SMALL_EFFECT)}, or a quieter machine)"
