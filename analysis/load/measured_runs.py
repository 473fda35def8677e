"""Finished runs as `slurmscale calibrate` takes them: configuration, step time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from analysis.load.discover import read_runs
from analysis.metrics.predictions import queue_wait_s, step_time_s, tensor_peak_bytes, whole_time_s
from jobs import metrics as m
from jobs.plan.calibrate import MeasuredRun
from jobs.rundir import RunDir, load_run


def measured_runs(paths: Iterable[Path]) -> list[MeasuredRun]:
    """Return runs below some directories: programs, our own that measured a step time or memory, and waits of jobs."""
    found = []
    for each in read_runs(paths):
        if (wait_s := queue_wait_s(each)) is not None:
            found.append(MeasuredRun(str(each.path), load_run(RunDir(each.path).config), wait_s=wait_s))
        whole = whole_time_s(each) if each.used else None
        if whole is not None:
            found.append(MeasuredRun(str(each.path), load_run(RunDir(each.path).config), whole_time_s=whole))
        # The engine of a program is its own, so its steps say nothing of ours.
        if not each.used or each.log is not None or m.PROGRAM_TIME in each.values:
            continue
        step, memory = step_time_s(each), tensor_peak_bytes(each)
        if step is not None or memory is not None:
            found.append(MeasuredRun(str(each.path), load_run(RunDir(each.path).config), step, memory))
    return found
