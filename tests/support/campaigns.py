"""Fake campaigns: pairs of runs, and their leaderboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.compare.campaign import Leaderboard, leaderboards
from analysis.load.discover import read_runs
from jobs.rundir import RunDir
from jobs.schema import Run
from tests.support.fake_runs import a_run, ended, finished_run, prepared, started, step

SLOWER = ((8.0, 10.0), (8.1, 10.2), (8.0, 9.9))


def a_repeat(
    campaign: Path,
    name: str,
    number: int,
    time_s: float,
    *,
    role: str = "attempt",
    run: Run | None = None,
    samples: int | None = 16,
    losses: Sequence[float] = (5.0, 4.0, 3.0, 2.0),
    tokens: int = 1024,
    starts: int = 1,
    end: str | None = "finished",
    recorded: Mapping[str, Any] | None = None,
    **facts: Any,
) -> RunDir:
    """Write a repeat of a trial, or of the baseline beside it, whose training took `time_s`.

    `recorded` is added to the trial that its provenance records.
    """
    label = name if role == "attempt" or name == "baseline" else f"{name}-baseline"
    run = replace(run or a_run(steps=len(losses)), name=f"{label}-r{number}", repeat=number)
    part = {"name": name, "role": role, "repeat": number, "changes": [], **(recorded or {})}
    directory = prepared(campaign, run, attempt=part, time=f"2026-01-02T03:{len(list(campaign.glob('*'))):02}:00")
    for each in range(1, starts + 1):
        started(directory, run, attempt=each, **facts)
    for place, loss in enumerate(losses, start=1):
        elapsed_s = place * time_s / len(losses)
        step(directory, place, loss=loss, samples=samples, tokens=tokens, attempt=starts, elapsed_s=elapsed_s)
    if end:
        split = {"first_step_time_s": 0.0, "warmup_time_s": 0.0, "checkpoint_total_time_s": 0.0}
        ended(directory, end, attempt=starts, step=len(losses), steady_time_s=time_s, **split)
    return directory


def pairs(campaign: Path, name: str, times_s: Sequence[tuple[float, float]], **trial: Any) -> None:
    """Write a trial with a pair for each two times: that of the baseline, and that of the trial beside it."""
    for number, (of_baseline, of_trial) in enumerate(times_s, start=1):
        a_repeat(campaign, name, number, of_baseline, role="baseline")
        a_repeat(campaign, name, number, of_trial, **trial)


def leaderboard_of(campaign: Path) -> Leaderboard:
    """Return the leaderboard of the only campaign in a directory."""
    (board,) = leaderboards(read_runs([campaign]))
    return board


def runs(
    sweep: Path, step_times_s: Sequence[float], like: Run | None = None, losses: Sequence[float] = (), **started: Any
) -> None:
    """Write a repeat for each step time, in a sweep named after the directory."""
    for repeat, step_time_s in enumerate(step_times_s, start=1):
        run = replace(like or a_run(), name=f"{(like or a_run()).name}-{repeat}", repeat=repeat, sweep=sweep.name)
        finished_run(sweep, run, step_time_s=step_time_s, losses=losses, **started)
