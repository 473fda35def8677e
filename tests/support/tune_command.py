"""`slurmscale tune` on a small model."""

from __future__ import annotations

from pathlib import Path

from jobs.run_events import run_events
from jobs.rundir import SweepDir
from tests.support.real_run import SMALL, last_of_each


def command(where: Path, *overrides: str) -> list[str]:
    """Return the arguments that tune a small model on one rank."""
    given = [
        *SMALL, f"runs_dir={where}", "sweep=t", f"data.cache_dir={where}/cache", "ranks_per_node=1",
        "scaling.global_batch_size=4", "job.unmeasured_steps=1", *overrides,
    ]  # fmt: skip
    return ["tune", *last_of_each(given)]


def starts(sweep: SweepDir) -> dict[str, int]:
    """Return the number of starts of each run."""
    return {run.name: sum(event["event"] == "started" for event in run_events(run)) for run in sweep.runs()}
