"""Finished runs as `slurmscale calibrate` takes them: configuration, step time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from analysis.load.discover import read_runs
from analysis.metrics.predictions import step_time_s, tensor_peak_bytes
from jobs.plan.calibrate import MeasuredRun
from jobs.rundir import RunDir, load_run


def measured_runs(paths: Iterable[Path]) -> list[MeasuredRun]:
    """Return our own finished runs below some directories that measured a step time or memory of a GPU."""
    found = []
    for each in read_runs(paths):
        if not each.used or each.log is not None:
            continue
        step, memory = step_time_s(each), tensor_peak_bytes(each)
        if step is not None or memory is not None:
            found.append(MeasuredRun(str(each.path), load_run(RunDir(each.path).config), step, memory))
    return found
