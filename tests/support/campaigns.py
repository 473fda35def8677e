"""Made campaigns: pairs of runs, and the leaderboard of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.campaign import Board, boards
from analysis.load.discover import read_runs
from jobs.cli import main
from jobs.rundir import RunDir
from jobs.schema import Run
from tests.support.fake_runs import a_run, ended, finished_run, prepared, started, step

EXPERIMENT = ["+experiment=apac_hpc_ai_2024", "model=tiny", "data=stdlib"]
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
    **facts: Any,
) -> RunDir:
    """A repeat whose training took so long, as one of an attempt leaves it."""
    label = name if role == "attempt" or name == "baseline" else f"{name}-baseline"
    run = replace(run or a_run(steps=len(losses)), name=f"{label}-r{number}", repeat=number)
    part = {"name": name, "role": role, "repeat": number, "changes": []}
    directory = prepared(campaign, run, attempt=part, time=f"2026-01-02T03:{len(list(campaign.glob('*'))):02}:00")
    for each in range(1, starts + 1):
        started(directory, run, attempt=each, **facts)
    for place, loss in enumerate(losses, start=1):
        step(directory, place, loss=loss, samples=samples, tokens=tokens, attempt=starts)
    if end:
        split = {"first_step_time_s": 0.0, "warmup_time_s": 0.0, "checkpoint_total_time_s": 0.0}
        ended(directory, end, attempt=starts, step=len(losses), steady_time_s=time_s, **split)
    return directory


def pairs(campaign: Path, name: str, times_s: Sequence[tuple[float, float]], **attempt: Any) -> None:
    """An attempt of so many pairs: the time of the baseline, and that of the attempt beside it."""
    for number, (of_baseline, of_attempt) in enumerate(times_s, start=1):
        a_repeat(campaign, name, number, of_baseline, role="baseline")
        a_repeat(campaign, name, number, of_attempt, **attempt)


def board_of(campaign: Path) -> Board:
    (board,) = boards(read_runs([campaign]))
    return board


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A campaign whose baseline was prepared, nothing of it run."""
    path = tmp_path / "my campaign"
    rules = ["contest.nodes=1", "contest.ranks_per_node=1", "contest.samples=16", "contest.sequence_length=32"]
    small = ["job.micro_batch_size=1", "scaling.global_batch_size=8", f"data.cache_dir={tmp_path}/cache"]
    told = main(["attempt", "baseline", *EXPERIMENT, *rules, *small, "launcher=dry", "--campaign", str(path)])
    assert told == 0
    return path


def runs(
    sweep: Path, step_times_s: Sequence[float], like: Run | None = None, losses: Sequence[float] = (), **started: Any
) -> None:
    """A repeat for each step time, in a sweep that bears the directory's name."""
    for repeat, step_time_s in enumerate(step_times_s, start=1):
        run = replace(like or a_run(), name=f"{(like or a_run()).name}-{repeat}", repeat=repeat, sweep=sweep.name)
        finished_run(sweep, run, step_time_s=step_time_s, losses=losses, **started)
