"""Fake tunings: trials with known step times, as `slurmscale tune` leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.rundir import RunDir
from tests.support.fake_runs import a_run, ended, prepared, started, step

STEPS = 6


def a_trial(
    folder: Path,
    choices: Sequence[str],
    step_time_s: float,
    *,
    steps: int = STEPS,
    baseline: bool = False,
    failure: dict[str, Any] | None = None,
    loss: float = 2.0,
    name: str | None = None,
    **facts: Any,
) -> RunDir:
    """Write the run of a trial, of 1,024 tokens a step; with `failure` it ended with these fields of a failed event."""
    name = name or "-".join([*choices, f"{steps}steps"]).replace("/", "_")
    known: dict[str, Any] = {
        "choices": list(choices),
        "steps": steps,
        "baseline": baseline,
        "objective": "throughput",
        "loss_tolerance": 0.05,
        "training_steps": 100,
    }
    run = replace(a_run(name, steps=steps), sweep="trials")
    directory = prepared(folder / "trials", run, trial=known | facts)
    started(directory, run)
    if failure is not None:
        ended(directory, "failed", rank=0, node="node0", **failure)
        return directory
    for number in range(1, steps + 1):
        step(directory, number, step_time_s=step_time_s, loss=loss, samples=16)
    ended(directory, step=steps)
    return directory
