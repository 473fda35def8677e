"""From run directories to one `RunResult` each: what was measured, or why the run cannot be used.

Reads what jobs/rundir.py describes and nothing else; no run is dropped, none is repaired. A run counts when it
recorded its end (`finished`), every step has a finite loss, and at least one step is steady. Values in files are
untrusted: what is not a finite number is absent. Called by analysis.find.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import yaml

from analysis.checkpoints import checkpoint_values
from analysis.collectives import Collective, read_collectives, sums
from analysis.goodput import Loss, account, starts_of
from analysis.log_file import LogFile
from analysis.untrusted import lookup, number
from jobs import metrics as m
from jobs.metrics import Metric
from jobs.rundir import RunDir, read_records
from jobs.schema import Run

# What the page and the groups read of a config.yaml; a file without one of them is of another version.
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
AT = RunDir(Path())
FILES = [path.name for path in (AT.config, AT.plan, AT.provenance, AT.status, AT.metrics)]
COUNTS = ("nodes", "ranks_per_node", "repeat", "job.unmeasured_steps")
types_of = functools.cache(get_type_hints)


class UnusableError(Exception):
    """Why a run is not used; never leaves this module."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state


@dataclass(frozen=True, eq=False)
class RunResult:
    """What one run directory holds; with a `reason` when it is not used."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    state: str = "finished"
    reason: str | None = None
    values: Mapping[Metric, float] = field(default_factory=dict)
    """Measured over steady steps; times of attempts are summed over the attempts that recorded their end; what a rank
    holds and sends is of the latest attempt that recorded it, sent summed over axes and collectives."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """Loss by step."""
    steady_steps: int = 0
    lost_to: Sequence[Loss] = ()
    """What ended its starts but the last, and what that cost."""
    log: LogFile | None = None
    """The log of another program that all of this comes from; None for a run directory of ours."""

    @property
    def used(self) -> bool:
        """Whether figures and answer may rest on it."""
        return self.reason is None

    @property
    def name(self) -> str:
        """The name the run was given, else its directory's."""
        return str(self.config.get("name") or self.path.name)

    @property
    def sweep(self) -> str:
        """The sweep it was submitted in, else the directory above."""
        return str(self.config.get("sweep") or self.path.parent.name)

    @property
    def ranks(self) -> int | None:
        """World size; None where a log does not tell."""
        nodes, ranks_per_node = self.setting("nodes"), self.setting("ranks_per_node")
        if isinstance(nodes, int) and isinstance(ranks_per_node, int):
            return nodes * ranks_per_node
        return self.setting("ranks") if self.log else None

    @property
    def started(self) -> Mapping[str, Any]:
        """The latest `started` event; empty when it never started."""
        return last_event(self.events, "started")

    @property
    def collectives(self) -> tuple[Collective, ...] | None:
        """What a rank sent in a step; None when no attempt recorded it."""
        return read_collectives(last_event(self.events, "layout"))

    @property
    def attempts(self) -> int:
        """How often the run was started."""
        return sum(event["event"] == "started" for event in self.events)

    def setting(self, key: str) -> Any:
        """A configuration value by its dotted key; None when absent."""
        return lookup(self.config, key)


def last_event(events: tuple[Mapping[str, Any], ...], kind: str) -> Mapping[str, Any]:
    """The last event of a kind; empty when there is none."""
    return next((event for event in reversed(events) if event["event"] == kind), {})


# --- reading one -----------------------------------------------------------------------------------------------


def read_run(path: Path, submissions: Sequence[Mapping[str, Any]] = ()) -> RunResult:
    """One run directory, with what its sweep's ledger has on it; what cannot be used says why in `reason`."""
    directory = RunDir(path)
    config: Mapping[str, Any] = {}
    plan: Mapping[str, Any] = {}
    provenance: Mapping[str, Any] = {}
    events: tuple[Mapping[str, Any], ...] = ()
    try:
        events = tuple(record for record in read_records(directory.status) if isinstance(record.get("event"), str))
        config = read_config(directory.config)
        plan = read_json(directory.plan)
        provenance = read_json(directory.provenance) if directory.provenance.exists() else {}
        records = step_records(directory)
        steps = latest(records)
        refuse_unfinished(events, config, last=max(steps, default=0))
        refuse_other_hardware(events, config)
        unmeasured = config["job"]["unmeasured_steps"]
        steady = steady_steps(steps, unmeasured, first_of_attempts(records))
        refuse_unmeasured(steps, steady, unmeasured)
    except UnusableError as error:
        return RunResult(path, config, plan, provenance, events, error.state, str(error))
    except OSError as error:
        reason = f"{error.filename or path} cannot be read: {error.strerror or error}"
        return RunResult(path, config, plan, provenance, events, "unreadable", reason)
    ranks = config["nodes"] * config["ranks_per_node"]
    starts = starts_of(events, records, submissions)
    spent = account(starts) if starts else None
    return RunResult(
        path,
        config,
        plan,
        provenance,
        events,
        values={
            **measured(steps, steady, ranks),
            **attempt_times(events),
            **held_and_sent(events),
            **evaluated(events),
            **checkpoint_values(events, records),
            **(spent.values if spent else {}),
        },
        losses={step: value for step, record in steps.items() if (value := number(record, m.LOSS)) is not None},
        steady_steps=len(steady),
        lost_to=spent.losses if spent else (),
    )


def read_config(path: Path) -> Mapping[str, Any]:
    """The frozen configuration as plain data (building jobs.schema objects takes 10 ms a run).

    Raises UnusableError when it is missing, is not YAML, or is not a run of this version.
    """
    if not path.exists():
        raise UnusableError("unreadable", f"no {path.name}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        config = yaml.load(path.read_bytes(), loader)  # noqa: S506 (either loader is a safe one)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UnusableError("unreadable", f"{path.name} is not YAML: {' '.join(str(error).split())}") from error
    missing = [key for key in REQUIRED if lookup(config, key) is None]
    missing += [key for key in COUNTS if type(lookup(config, key)) is not int or lookup(config, key) < 1]
    if missing:
        raise UnusableError("unreadable", f"{path.name} has no valid {missing[0]}: not a run of this version")
    return with_defaults(config, Run)


def with_defaults(values: Mapping[str, Any], schema: type) -> dict[str, Any]:
    """The settings, and those that an older version did not have at what jobs.schema says they default to."""
    filled = dict(values)
    for setting in fields(schema):
        section = types_of(schema)[setting.name]
        if is_dataclass(section) and isinstance(section, type) and isinstance(filled.get(setting.name), Mapping):
            filled[setting.name] = with_defaults(filled[setting.name], section)
        elif setting.name not in filled and setting.default is not MISSING:
            default = setting.default
            filled[setting.name] = default.name if isinstance(default, Enum) else default
    return filled


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object; raises UnusableError when it is missing or something else."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UnusableError("unreadable", f"no {path.name}") from error
    except ValueError as error:
        raise UnusableError("unreadable", f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnusableError("unreadable", f"{path.name} is not a JSON object")
    return value


def step_records(directory: RunDir) -> list[dict[str, Any]]:
    """The records of steps, of all attempts, in the order written."""
    return [record for record in read_records(directory.metrics) if number(record, m.STEP) is not None]


def latest(records: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """One record a step: where attempts overlap, the later attempt's replaces the earlier one."""
    return {int(record[m.STEP.name]): record for record in records}


def first_of_attempts(records: Iterable[dict[str, Any]]) -> dict[int, int]:
    """The first step of each attempt, also of those whose records a later attempt replaced."""
    first: dict[int, int] = {}
    for record in records:
        if (attempt := number(record, m.ATTEMPT)) is not None:
            step = int(record[m.STEP.name])
            first[int(attempt)] = min(first.get(int(attempt), step), step)
    return first


def steady_steps(steps: dict[int, dict[str, Any]], unmeasured: int, first: dict[int, int]) -> list[dict[str, Any]]:
    """The records that count: timed, and after the first `unmeasured` steps of their attempt."""
    steady = []
    for step, record in steps.items():
        attempt, time_s = number(record, m.ATTEMPT), number(record, m.STEP_TIME)
        timed = attempt is not None and time_s is not None and time_s > 0 and number(record, m.TOKENS) is not None
        if timed and attempt is not None and step >= first[int(attempt)] + unmeasured:
            steady.append(record)
    return steady


# --- what a run must have --------------------------------------------------------------------------------------


def refuse_unfinished(events: tuple[Mapping[str, Any], ...], config: Mapping[str, Any], *, last: int) -> None:
    """Raise UnusableError unless the run recorded its end; says how far it came and what stopped it."""
    kinds = [event["event"] for event in events]
    if "finished" in kinds:
        return
    steps = config["job"].get("steps")
    reached = f"at step {last} of {steps}" if steps else f"at step {last}"
    latest = events[len(kinds) - 1 - kinds[::-1].index("started") :] if "started" in kinds else events
    # The rank that failed first brings the others down: theirs are consequences.
    failed = next((event for event in latest if event["event"] == "failed"), None)
    if failed is not None:
        when = reached if "started" in kinds else "before its first step"
        who = failed.get("stage") or f"rank {failed.get('rank', '?')} on {failed.get('node', 'an unnamed node')}"
        raise UnusableError("failed", f"failed {when}: {who}: {failed.get('error', 'no error text')}")
    if "started" not in kinds:
        raise UnusableError("not started", "never started")
    stopped = next((event for event in latest if event["event"] == "stopped"), None)
    if stopped is not None:
        raise UnusableError("stopped", f"stopped {reached}: {stopped.get('reason', 'no reason recorded')}")
    raise UnusableError("unfinished", f"no end recorded; last seen {reached}: still running, killed, or out of time")


def refuse_other_hardware(events: tuple[Mapping[str, Any], ...], config: Mapping[str, Any]) -> None:
    """Raise UnusableError when a run was not on what its configuration says, or on two kinds of device."""
    started = [event for event in events if event["event"] == "started"]
    devices = sorted({str(event.get("device_name", "unnamed")) for event in started})
    if len(devices) > 1:
        raise UnusableError("mixed", f"its attempts ran on different devices: {', '.join(devices)}")
    planned = config["nodes"] * config["ranks_per_node"]
    ranks = next((event["ranks"] for event in started if event.get("ranks", planned) != planned), planned)
    if ranks != planned:
        raise UnusableError("mixed", f"ranks: {planned} planned, {ranks} started")


def refuse_unmeasured(steps: dict[int, dict[str, Any]], steady: list[dict[str, Any]], unmeasured: int) -> None:
    """Raise UnusableError when a loss is missing or no step is steady."""
    if not steps:
        raise UnusableError("unmeasured", f"finished, but {AT.metrics.name} holds no step")
    without = [step for step, record in steps.items() if number(record, m.LOSS) is None]
    if without:
        raise UnusableError("no loss", f"the loss of step {without[0]} is absent or not a finite number")
    if not steady:
        raise UnusableError(
            "unmeasured",
            f"no steady step: {len(steps)} recorded, and the first {unmeasured} of every attempt are not measured",
        )


# --- numbers ---------------------------------------------------------------------------------------------------


def measured(steps: dict[int, dict[str, Any]], steady: list[dict[str, Any]], ranks: int) -> dict[Metric, float]:
    """The metrics of one run, by their definitions in jobs.metrics."""
    times_s = [record[m.STEP_TIME.name] for record in steady]
    tokens_per_s = sum(record[m.TOKENS.name] for record in steady) / math.fsum(times_s)
    values = {
        m.TOKENS_PER_S: tokens_per_s,
        m.TOKENS_PER_S_PER_RANK: tokens_per_s / ranks,
        m.FINAL_LOSS: float(steps[max(steps)][m.LOSS.name]),
    }
    percentiles = ((m.STEP_TIME_MEDIAN, 50), (m.STEP_TIME_P10, 10), (m.STEP_TIME_P90, 90))
    values |= {metric: float(np.percentile(times_s, percent)) for metric, percent in percentiles}
    memory = [value for record in steps.values() if (value := number(record, m.MEMORY_PEAK)) is not None]
    return values | ({m.MEMORY_PEAK: max(memory)} if memory else {})


def attempt_times(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """Where the wall time went, summed over the attempts that recorded their end."""
    ends = [event for event in events if event["event"] in {"finished", "stopped"}]
    sums = {}
    for metric in m.ATTEMPT_METRICS:
        values = [value for event in ends if (value := number(event, metric)) is not None]
        if values:
            sums[metric] = math.fsum(values)
    return sums


def evaluated(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """What the latest evaluation found."""
    event = last_event(events, "evaluated")
    return {metric: value for metric in m.EVALUATION_METRICS if (value := number(event, metric)) is not None}


def held_and_sent(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """What a rank keeps and what it sends in a step, as the latest attempt that counted them recorded it."""
    event = last_event(events, "layout")
    held = number(event, m.PARAMETERS_HELD)
    return ({} if held is None else {m.PARAMETERS_HELD: held}) | sums(read_collectives(event))
