"""What is computed of a run once it is read, the same for our runs and for other programs' logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from analysis.load.run_directory import RunResult
from analysis.metrics.cost import cost_values
from analysis.metrics.mfu import utilization


def with_derived(runs: Iterable[RunResult]) -> list[RunResult]:
    """The runs, those used with their utilization and their cost."""
    return [
        replace(run, values={**run.values, **utilization(run).values, **cost_values(run)}) if run.used else run
        for run in runs
    ]
