"""Made runs with known losses and times, and runs as they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.load.discover import read_runs
from analysis.run import RunResult
from jobs import metrics as m
from jobs.rundir import RunDir
from tests.support.fake_runs import a_run, ended, started, step

RIGHT, SLIGHTLY_OFF, WRONG = [5.0, 4.0, 3.0, 2.5, 2.2, 2.0], [5.0, 4.0, 3.0, 2.5, 2.2, 2.005], [5.0, 5, 5, 5, 5, 5]


def one_run(path: Path) -> RunResult:
    """Return the only run at a path."""
    (run,) = read_runs([path])
    return run


def only(path: Path) -> RunResult:
    """Return the only run at a path, which is used."""
    run = one_run(path)
    assert run.used, run.reason
    return run


def resumed(directory: RunDir) -> None:
    """Attempt 1 is stopped after step 5, attempt 2 goes on from the checkpoint of step 3, to step 8."""
    run = a_run(directory.name, steps=8)
    started(directory, run)
    for number in range(1, 6):
        step(directory, number, step_time_s=0.5, loss=50.0 + number)
    ended(directory, "stopped", step=5, reason="SIGTERM")
    started(directory, run, attempt=2, from_step=3)
    for number in range(4, 9):
        step(directory, number, attempt=2, step_time_s=0.25, loss=float(number))
    ended(directory, attempt=2, step=8)


def measured_run(nodes: int, tokens_per_s: float, *, repeat: int = 1, weak: bool = False) -> RunResult:
    """A run in memory, for properties over many numbers."""
    config: dict[str, Any] = {
        "nodes": nodes,
        "ranks_per_node": 1,
        "repeat": repeat,
        "model": {"name": "tiny"},
        "parallelism": {"name": "ddp"},
        "scaling": {"mode": "weak" if weak else "strong"},
    }
    values = {m.TOKENS_PER_S: tokens_per_s, m.TOKENS_PER_S_PER_RANK: tokens_per_s / nodes}
    return RunResult(Path(f"n{nodes}-r{repeat}"), config, values=values)
