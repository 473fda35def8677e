"""Read a run that started a program: its declared numbers, its training's log, and the wall times of its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analysis.load.ended import Submissions, refuse_unfinished
from analysis.load.kinds.train import refuse_other_hardware
from analysis.load.run_files import Contents, UnusableError
from analysis.logs.facts import Facts, facts_of
from analysis.logs.file import read_log_file
from analysis.logs.runs import log_runs
from analysis.metrics.energy import energy_of_run
from analysis.metrics.node_use import node_use_values, read_node_use
from analysis.metrics.programs import (
    MissingNumberError,
    computing,
    file_of,
    mean_power,
    missed_gate,
    program_values,
    rate_of,
    times_of_steps,
)
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from analysis.scaling.groups import RATES
from jobs.errors import ReportError, SuiteError
from jobs.files import parse_yaml
from jobs.rundir import RunDir, load_run
from jobs.schema import Run
from jobs.work.program.placeholders import known_values, used_sections, working_directory
from jobs.work.program.substitution import text_of


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
    has_layout = "parallelism" in used_sections(frozen.program)
    kept = {"program", "layout"} if has_layout else {"program"}
    run = replace(run, plan={key: value for key, value in run.plan.items() if key in kept})
    if frozen.program.log is not None:
        run = with_log(run, frozen, directory)
    try:
        energy = energy_of_run(directory.power_logs, computing(run.events), frozen.ranks)
        power = mean_power(energy)
        own = {**times_of_steps(run.events), **power, **program_values(frozen, directory, power)}
    except MissingNumberError as error:
        raise UnusableError("unmeasured", f"finished, but {error}") from error
    nodes = read_node_use(directory)
    values = {**run.values, **own, **node_use_values(nodes)}
    if (missed := missed_gate(frozen, directory, values)) is not None:
        raise UnusableError("gate missed", missed)
    run = replace(run, values=values, node_use=nodes, energy=energy)
    if frozen.program.merit is None and not values.keys().isdisjoint(RATES):
        return run
    rate, speed = rate_of(frozen.program, values)
    if not math.isfinite(speed) or speed <= 0:
        raise UnusableError("unmeasured", f"finished, but its speed ({rate.name}) is not above 0")
    return replace(run, values={**values, rate: speed}, rate=rate)


def with_log(run: RunResult, frozen: Run, directory: RunDir) -> RunResult:
    """Return a run with what the log of its training reports. Raise UnusableError without a step in a known format."""
    assert frozen.program is not None
    assert frozen.program.log is not None
    file = file_of(frozen, directory, frozen.program.log.file, frozen.program.log.step)
    place = working_directory(frozen, directory)
    root = place if file.is_relative_to(place) else file.parent
    # A pattern has a file for each attempt, or of ranks of which not the first one prints the steps.
    files = sorted(root.glob(str(file.relative_to(root))), key=lambda each: each.stat().st_mtime)
    if not files:
        raise UnusableError("unmeasured", f"finished, but program.log: there is no {file}")
    try:
        found = log_runs(map(read_log_file, files), root, {root: declared_facts(frozen)})
    except ReportError as error:
        raise UnusableError("unreadable", str(error)) from error
    # The last attempt has the steps of those that it continues; ranks may have files without a step.
    of_file = {run.log.path: run for run in found if run.log is not None}
    log = next((of_file[each] for each in reversed(files) if each in of_file), None)
    if log is None:
        raise UnusableError(
            "unmeasured", f"finished, but program.log: {file} has no step of a training in a known format"
        )
    if log.state == "unmeasured" and frozen.program.merit is not None:
        # A merit of the program's own needs no rate of the log.
        log = replace(log, state=run.state, reason=None)
    if log.reason is not None:
        raise UnusableError(log.state, f"program.log: {log.reason}")
    name = frozen.program.name
    config = {
        **run.config,
        "engine": {"kind": name},
        "job": {**known(log.config["job"]), **known(run.config["job"])},
        "model": {**known(log.config["model"]), **known(run.config["model"])},
    }
    return replace(
        log, path=run.path, config=config, plan={**log.plan, **run.plan}, provenance=run.provenance, events=run.events,
        log=None,
    )  # fmt: skip


def declared_facts(run: Run) -> Facts:
    """Return what is known of the training besides its log. Raise ReportError for a fact that is not one."""
    assert run.program is not None
    assert run.program.log is not None
    values = known_values(run)
    texts = {key: text_of(text, values) for key, text in run.program.log.facts.items()}
    facts = facts_of({key: parse_yaml(text.encode()) for key, text in texts.items()}, "program.log.facts")
    size = {a.NODES: run.nodes, a.RANKS: run.ranks, a.RANKS_PER_NODE: run.ranks_per_node}
    return replace(facts, numbers={**size, **facts.numbers})


def known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have a value."""
    return {key: value for key, value in settings.items() if value is not None}
