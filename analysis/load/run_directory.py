"""Read a run directory as a `RunResult`: the measured values, or the reason that the run cannot be used.

The files are those of jobs/rundir.py; no run is dropped, none is repaired. What a run measured is read by the reader of
its kind of work (analysis.load.kinds). Values in files are untrusted: a value that is not a finite number is absent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from analysis.load.ended import Submissions
from analysis.load.run_files import (
    AT,
    FILES,
    Contents,
    UnusableError,
    bytes_of,
    content_of,
    events_of,
    missing,
    read_json,
)
from analysis.metrics.communication import read_collectives
from analysis.metrics.systems import read_systems
from analysis.run import RunResult, last_event
from analysis.untrusted import lookup, printed_number
from jobs.files import parse_yaml, reason
from jobs.lookup import imported
from jobs.rundir import RunDir
from jobs.schema import Run
from jobs.work.work import kind_in, loaded

Reader = Callable[[RunResult, Contents, Submissions], RunResult]

# The settings that page and groups read; a config.yaml without one of them is of another version.
REQUIRED = (
    "nodes",
    "ranks_per_node",
    "repeat",
    "model.name",
    "parallelism.name",
    "scaling.mode",
    "job.sequence_length",
    "job.micro_batch_size",
    "job.precision",
    "job.unmeasured_steps",
)
COUNTS = ("nodes", "ranks_per_node", "repeat", "job.unmeasured_steps")
types_of = functools.cache(get_type_hints)


def read_run(path: Path, submissions: Submissions = ()) -> RunResult:
    """Read one run directory; `submissions` are its records in the sweep's ledger."""
    contents, run = {name: content_of(f"{path}/{name}") for name in FILES}, RunResult(path)
    try:
        run = replace(run, events=tuple(events_of(contents, RunDir(path))))
        config = read_config(contents)
        kind = kind_in(config, trains=lookup(config, "job.train") is not False)
        run = replace(run, config=loaded(kind).own_settings(config))
        run = replace(run, plan=read_plan(contents))
        run = replace(run, provenance={} if missing(contents, AT.provenance) else read_json(contents, AT.provenance))
        run = replace(run, system=read_systems(RunDir(path)))
        read: Reader = imported(f"analysis.load.kinds.{kind}:read")
        return read(run, contents, submissions)
    except UnusableError as error:
        state, why = error.state, str(error)
    except OSError as error:
        state, why = "unreadable", f"{error.filename or path} cannot be read: {error.strerror or error}"
    return replace(run, state=state, reason=why, collectives=read_collectives(last_event(run.events, "layout")))


def read_config(contents: Contents) -> Mapping[str, Any]:
    """Return the frozen configuration as plain data (building jobs.schema objects takes 10 ms a run).

    Raise UnusableError if it is missing, is not YAML, or is not a run of this version.
    """
    name = AT.config.name
    try:
        config = parse_yaml(bytes_of(contents, AT.config))
    except ValueError as error:
        raise UnusableError("unreadable", f"{name} is not YAML: {reason(error)}") from error
    absent = [key for key in REQUIRED if lookup(config, key) is None]
    absent += [key for key in COUNTS if type(lookup(config, key)) is not int or lookup(config, key) < 1]
    if absent:
        raise UnusableError("unreadable", f"{name} has no valid {absent[0]}: not a run of this version")
    return with_defaults(config, Run)


def read_plan(contents: Contents) -> Mapping[str, Any]:
    """Return the plan. Raise UnusableError if it is missing, is no JSON object, or has another value than a batch."""
    plan = read_json(contents, AT.plan)
    if type(plan.get("global_batch_size", 1)) is not int:
        raise UnusableError("unreadable", f"{AT.plan.name} has no valid global_batch_size")
    return plan


def with_defaults(values: Mapping[str, Any], schema: type, section_of: str = "") -> dict[str, Any]:
    """Return the settings, with the defaults of jobs.schema for those that an older version did not have.

    Raise UnusableError for a value of another type: nothing that reads a RunResult checks it again.
    """
    filled = dict(values)
    for setting in fields(schema):
        section = types_of(schema)[setting.name]
        if setting.name in filled and not fits(filled[setting.name], section):
            key = f"{section_of}{setting.name}"
            raise UnusableError("unreadable", f"{AT.config.name} has no valid {key}: not a run of this version")
        if is_dataclass(section) and isinstance(section, type) and isinstance(filled.get(setting.name), Mapping):
            filled[setting.name] = with_defaults(filled[setting.name], section, f"{setting.name}.")
        elif setting.name not in filled and setting.default is not MISSING:
            default = setting.default
            filled[setting.name] = default.name if isinstance(default, Enum) else default
        elif setting.name not in filled and setting.default_factory is not MISSING:
            default = setting.default_factory()
            if isinstance(default, list):
                filled[setting.name] = [each.name if isinstance(each, Enum) else each for each in default]
            else:
                filled[setting.name] = (
                    with_defaults({}, section, f"{setting.name}.") if is_dataclass(default) else default
                )
    return filled


def fits(value: Any, kind: Any) -> bool:
    """Return True if a setting of this type in jobs.schema may have the value; enums are written by name."""
    if get_origin(kind) in (Union, UnionType):
        return any(fits(value, each) for each in get_args(kind))
    kind = get_origin(kind) or kind
    if kind is int:
        return type(value) is int
    if kind is float:
        # YAML reads 1e-05, which JSON writes, as a text.
        return type(value) in {int, float} or (type(value) is str and printed_number(value) is not None)
    return isinstance(value, dict if is_dataclass(kind) else str if issubclass(kind, Enum) else kind)
