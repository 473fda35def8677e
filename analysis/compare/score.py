"""The official score of a configuration: the mean of its first runs, without the fastest and the slowest ones.

MLPerf Training scores so (training_rules.adoc, Benchmark Results): of 10 runs, of some benchmarks 5 or 3, the fastest
and the slowest are dropped, and the times of the others are averaged; of 40 runs of UNET3D 4 and 4. As many runs as are
dropped at one end may not converge: they are the slowest ones. With more, there is no result.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.compare.campaign import Entry, Leaderboard, submitted
from analysis.compare.contest_rules import breaches
from analysis.formatting import plural
from analysis.run import RunResult
from jobs.metrics import Better


@dataclass(frozen=True)
class Score:
    """The score of a configuration, or why it has none."""

    value: float | None
    because: str | None = None


def score_of(board: Leaderboard, entry: Entry | None) -> Score | None:
    """Return the score of a trial, or of the baseline for None; None if the contest has no such score."""
    if board.rules.runs is None:
        return None
    if entry is None:
        # Short runs of proxies stand last.
        return score(board, sorted(board.baseline_runs, key=submitted))
    if entry.trial.proxy is not None:
        return Score(None, "its runs are short")
    return score(board, list(entry.trial.runs.values()))


def score(board: Leaderboard, runs: Sequence[RunResult]) -> Score:
    """Return the score by the first runs, in the order of their submission, so that none is chosen by its time."""
    count, dropped = board.rules.runs or 0, board.rules.dropped
    over = [run for run in runs[:count] if run.state not in {"not started", "unfinished"}]
    if len(over) < count:
        return Score(None, f"{len(over)} of {plural(count, 'run')}")
    values = [
        board.rules.value(run) if board.baseline is not None and not breaches(run, board.baseline) else None
        for run in over
    ]
    if (failed := values.count(None)) > dropped:
        return Score(None, f"{failed} of {plural(count, 'run')} do not count, and {dropped} may")
    best_first = sorted((value for value in values if value is not None), reverse=rate_is_compared(board))
    return Score(statistics.fmean(best_first[dropped : count - dropped]))


def rate_is_compared(board: Leaderboard) -> bool:
    """Return True if a higher number is the better one."""
    return board.rules.metric.better is Better.high
