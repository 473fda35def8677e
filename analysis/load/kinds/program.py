"""Read a run that started a program: its declared numbers and the wall times of its steps."""

from __future__ import annotations

import math
from dataclasses import replace

from analysis.load.ended import Submissions, refuse_unfinished
from analysis.load.kinds.train import refuse_other_hardware
from analysis.load.run_files import Contents, UnusableError
from analysis.metrics.node_use import node_use_values, read_node_use
from analysis.metrics.programs import MissingNumberError, missed_gate, program_values, rate_of, step_times
from analysis.run import RunResult
from jobs import metrics as m
from jobs.errors import SuiteError
from jobs.rundir import RunDir, load_run
from jobs.schema import Run
from jobs.work.program.names import used_names

OF_TRAINING = {"parallelism", "engine", "data"}
"""Sections of every configuration that a program may not use."""


def read(run: RunResult, _contents: Contents, _submissions: Submissions) -> RunResult:
    """Return a run with its numbers. Raise UnusableError if it has not ended, lacks a number or misses a gate."""
    directory = RunDir(run.path)
    try:
        frozen = load_run(directory.config)
    except SuiteError as error:
        raise UnusableError("unreadable", str(error)) from error
    assert frozen.program is not None
    refuse_unfinished(run, last=None)
    refuse_other_hardware(run)
    times_s = step_times(run.events)
    try:
        values = {m.PROGRAM_TIME: math.fsum(times_s.values()), **program_values(frozen, directory)}
    except MissingNumberError as error:
        raise UnusableError("unmeasured", f"finished, but {error}") from error
    if (missed := missed_gate(frozen.program, values)) is not None:
        raise UnusableError("gate missed", missed)
    rate, speed = rate_of(frozen.program, values)
    if not math.isfinite(speed) or speed <= 0:
        raise UnusableError("unmeasured", f"finished, but its speed ({rate.name}) is not above 0")
    nodes = read_node_use(directory)
    measured = {**values, rate: speed, **node_use_values(nodes)}
    return replace(own_settings(run, frozen), values=measured, rate=rate, parts_s=times_s, node_use=nodes)


def own_settings(run: RunResult, frozen: Run) -> RunResult:
    """Return the run without the settings and the layout that its program does not use."""
    assert frozen.program is not None
    used = {name.partition(".")[0] for name in used_names(frozen.program)}
    config = {key: {} if key in OF_TRAINING - used else value for key, value in run.config.items()}
    layout = {key: value for key, value in run.plan.items() if key == "layout" and "parallelism" in used}
    return replace(run, config=config, plan=layout)
