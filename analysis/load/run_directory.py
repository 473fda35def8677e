"""Read a run directory as a `RunResult`: the measured values, or the reason that the run cannot be used.

The files are those of jobs/rundir.py; no run is dropped, none is repaired. A run is used if it recorded its end
(`finished`), every step has a finite loss, and at least one step is steady. Values in files are untrusted: a value that
is not a finite number is absent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

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
    records_of,
)
from analysis.load.serving import served_run
from analysis.metrics.checkpoints import checkpoint_values
from analysis.metrics.communication import Collective, read_collectives, sums
from analysis.metrics.energy import energy_of_run
from analysis.metrics.goodput import account, starts_of
from analysis.metrics.node_load import node_load
from analysis.metrics.node_use import node_use_values, read_node_use
from analysis.metrics.profile import profile_values, read_profiles
from analysis.metrics.step_variation import far_out, far_out_share, step_variation
from analysis.metrics.storage import read_storage
from analysis.metrics.stragglers import straggler_share, stragglers
from analysis.metrics.tested_storage import storage_test_values
from analysis.parsers import log_metrics as a
from analysis.run import RunResult, last_event
from analysis.untrusted import lookup, number, printed_number
from jobs import metrics as m
from jobs.failures import end_of, latest_attempt
from jobs.files import parse_yaml, reason
from jobs.metrics import Metric
from jobs.rundir import RunDir
from jobs.schema import Run

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
# Runs of these two states are in no figure and no ranking.
EVALUATED = "trained nothing, as configured (job.train=false); its results are in the section Evaluations"
TESTED = "measured storage and trained nothing; its results are in the section Storage tests"
COUNTS = ("nodes", "ranks_per_node", "repeat", "job.unmeasured_steps")
types_of = functools.cache(get_type_hints)


def read_run(path: Path, submissions: Sequence[Mapping[str, Any]] = ()) -> RunResult:
    """Read one run directory; `submissions` are its records in the sweep's ledger."""
    contents = {name: content_of(f"{path}/{name}") for name in FILES}
    config: Mapping[str, Any] = {}
    plan: Mapping[str, Any] = {}
    provenance: Mapping[str, Any] = {}
    events: tuple[Mapping[str, Any], ...] = ()
    try:
        events = tuple(events_of(contents, RunDir(path)))
        config = read_config(contents)
        plan = read_plan(contents)
        provenance = {} if missing(contents, AT.provenance) else read_json(contents, AT.provenance)
        if lookup(config, "serving") is not None:
            refuse_unfinished(events, config, last=None)
            nodes = read_node_use(RunDir(path))
            served = served_run(RunResult(path, config, plan, provenance, events, node_use=nodes))
            return replace(served, values={**served.values, **node_use_values(nodes)})
        if lookup(config, "storage") is not None:
            refuse_unfinished(events, config, last=None)
            return storage_test(RunResult(path, config, plan, provenance, events))
        if lookup(config, "images") is not None:
            # Images have no sequences.
            config = {**config, "job": {key: value for key, value in config["job"].items() if key != "sequence_length"}}
        if lookup(config, "job.train") is False:
            refuse_unfinished(events, config, last=None)
            values = {**evaluated(events), **data_account(plan)}
            return RunResult(path, config, plan, provenance, events, "evaluated", EVALUATED, values=values)
        records = step_records(records_of(contents, AT.metrics))
        steps = latest(records)
        refuse_unfinished(events, config, last=max(steps, default=0))
        refuse_other_hardware(events, config)
        unmeasured = config["job"]["unmeasured_steps"]
        steady = steady_steps(steps, unmeasured, first_of_attempts(records))
        refuse_unmeasured(steps, steady, unmeasured)
        ranks = config["nodes"] * config["ranks_per_node"]
        starts = starts_of(events, records, submissions)
        energy = energy_of_run(RunDir(path).power_logs, starts, ranks) if starts else None
    except UnusableError as error:
        state, why = error.state, str(error)
        return RunResult(path, config, plan, provenance, events, state, why, collectives=collectives_of(events))
    except OSError as error:
        why = f"{error.filename or path} cannot be read: {error.strerror or error}"
        return RunResult(path, config, plan, provenance, events, "unreadable", why, collectives=collectives_of(events))
    spent = account(starts) if starts else None
    step_times_s = {int(record[m.STEP.name]): float(record[m.STEP_TIME.name]) for record in steady}
    torn = far_out(step_times_s)
    slow, collectives = stragglers(events, step_times_s), collectives_of(events)
    profiles, storage = read_profiles(last_event(events, "profile")), read_storage(RunDir(path))
    nodes = read_node_use(RunDir(path))
    return RunResult(
        path,
        config,
        plan,
        provenance,
        events,
        values={
            **measured(steps, steady, torn, ranks),
            **step_variation(step_times_s),
            **straggler_share(slow),
            **attempt_times(events),
            **startup_parts(events),
            **held(events),
            **sums(collectives),
            **evaluated(events),
            **data_account(plan),
            **checkpoint_values(events, records),
            **node_load(events, last_event(events, "started")),
            **node_use_values(nodes),
            **profile_values(profiles),
            **(storage.values if storage else {}),
            **(spent.values if spent else {}),
        },
        losses={step: value for step, record in steps.items() if (value := number(record, m.LOSS)) is not None},
        steady_steps=len(steady),
        step_times_s=step_times_s,
        lost_to=spent.losses if spent else [],
        energy=energy,
        collectives=collectives,
        stragglers=slow,
        storage=storage,
        node_use=nodes,
        profiles=profiles,
        far_out_s={step: step_times_s[step] for step in torn},
        far_out_share=far_out_share(step_times_s, torn),
    )


def storage_test(run: RunResult) -> RunResult:
    """Return a run with its measurements of storage. Raise UnusableError if it has none."""
    directory = RunDir(run.path)
    found, storage, nodes = (
        storage_test_values(directory, run.events),
        read_storage(directory),
        read_node_use(directory),
    )
    if not found:
        raise UnusableError("unmeasured", "neither status.jsonl nor storage-results/ has a measurement of storage")
    values = {**found, **node_use_values(nodes), **(storage.values if storage else {})}
    return replace(run, state="tested", reason=TESTED, values=values, storage=storage, node_use=nodes)


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


def step_records(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of steps, of all attempts, in the order written."""
    return [record for record in records if number(record, m.STEP) is not None]


def latest(records: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return one record per step: if attempts overlap, the later attempt's replaces the earlier one."""
    return {int(record[m.STEP.name]): record for record in records}


def first_of_attempts(records: Iterable[dict[str, Any]]) -> dict[int, int]:
    """Return the first step of each attempt, also of those whose records a later attempt replaced."""
    first: dict[int, int] = {}
    for record in records:
        if (attempt := number(record, m.ATTEMPT)) is not None:
            step = int(record[m.STEP.name])
            first[int(attempt)] = min(first.get(int(attempt), step), step)
    return first


def steady_steps(steps: dict[int, dict[str, Any]], unmeasured: int, first: dict[int, int]) -> list[dict[str, Any]]:
    """Return the steady records: timed, not profiled, and after the first `unmeasured` steps of their attempt."""
    steady = []
    for step, record in steps.items():
        attempt, time_s = number(record, m.ATTEMPT), number(record, m.STEP_TIME)
        work = number(record, m.TOKENS if m.TOKENS.name in record else m.SAMPLES)
        timed = time_s is not None and time_s > 0 and (work or 0) > 0
        if (
            timed
            and not number(record, m.PROFILED)
            and attempt is not None
            and step >= first[int(attempt)] + unmeasured
        ):
            steady.append(record)
    return steady


# --- requirements of a used run --------------------------------------------------------------------------------


def refuse_unfinished(events: tuple[Mapping[str, Any], ...], config: Mapping[str, Any], *, last: int | None) -> None:
    """Raise UnusableError, with the last step and the reason, unless the run recorded its end.

    `last` is None for a run without steps.
    """
    kinds = [event["event"] for event in events]
    if "finished" in kinds:
        return
    steps = config["job"].get("steps")
    reached = "" if last is None else f" at step {last} of {steps}" if steps else f" at step {last}"
    end = end_of(latest_attempt(events))
    if end is not None and end["event"] == "failed":
        when = reached if "started" in kinds else " before its start" if last is None else " before its first step"
        who = end.get("stage") or f"rank {end.get('rank', '?')} on {end.get('node', 'an unnamed node')}"
        raise UnusableError("failed", f"failed{when}: {who}: {end.get('error', 'no error text')}")
    if "started" not in kinds:
        raise UnusableError("not started", "never started")
    if end is not None:
        raise UnusableError("stopped", f"stopped{reached}: {end.get('reason', 'no reason recorded')}")
    seen = f"; last seen{reached}" if reached else ""
    raise UnusableError("unfinished", f"no end recorded{seen}: still running, killed, or out of time")


def refuse_other_hardware(events: tuple[Mapping[str, Any], ...], config: Mapping[str, Any]) -> None:
    """Raise UnusableError if a run had other ranks than configured, or two kinds of device."""
    started = [event for event in events if event["event"] == "started"]
    devices = sorted({str(event.get("device_name", "unnamed")) for event in started})
    if len(devices) > 1:
        raise UnusableError("mixed", f"its attempts ran on different devices: {', '.join(devices)}")
    planned = config["nodes"] * config["ranks_per_node"]
    ranks = next((event["ranks"] for event in started if event.get("ranks", planned) != planned), planned)
    if ranks != planned:
        raise UnusableError("mixed", f"ranks: {planned} planned, {ranks} started")


def refuse_unmeasured(steps: dict[int, dict[str, Any]], steady: list[dict[str, Any]], unmeasured: int) -> None:
    """Raise UnusableError if a loss is missing or no step is steady."""
    if not steps:
        raise UnusableError("unmeasured", f"finished, but {AT.metrics.name} contains no step")
    without = [step for step, record in steps.items() if number(record, m.LOSS) is None]
    if without:
        raise UnusableError("no loss", f"the loss of step {without[0]} is absent or not a finite number")
    if not steady:
        raise UnusableError(
            "unmeasured",
            f"no steady step: {len(steps)} recorded, and the first {unmeasured} of every attempt are not measured"
            + (", nor are profiled ones" if any(number(record, m.PROFILED) for record in steps.values()) else ""),
        )


# --- numbers ---------------------------------------------------------------------------------------------------


def measured(
    steps: dict[int, dict[str, Any]], steady: list[dict[str, Any]], torn: Collection[int], ranks: int
) -> dict[Metric, float]:
    """Return the metrics of one run, by their definitions in jobs.metrics; the steps `torn` are not in its rate."""
    times_s = [record[m.STEP_TIME.name] for record in steady]
    kept = [record for record in steady if int(record[m.STEP.name]) not in torn]
    kept_s = math.fsum(record[m.STEP_TIME.name] for record in kept)
    values = {m.FINAL_LOSS: float(steps[max(steps)][m.LOSS.name])}
    if all(m.TOKENS.name in record for record in steady):
        tokens_per_s = sum(record[m.TOKENS.name] for record in kept) / kept_s
        values |= {m.TOKENS_PER_S: tokens_per_s, m.TOKENS_PER_S_PER_RANK: tokens_per_s / ranks}
        values[m.TOKENS_PER_STEP] = sum(record[m.TOKENS.name] for record in steady) / len(steady)
    else:
        images_per_s = sum(number(record, m.SAMPLES) or 0.0 for record in kept) / kept_s
        values |= {a.SAMPLES_PER_S: images_per_s, a.SAMPLES_PER_S_PER_RANK: images_per_s / ranks}
    waits_s = [waited_s for record in steady if (waited_s := number(record, m.DATA_WAIT_TIME)) is not None]
    if len(waits_s) == len(steady):
        values[m.DATA_WAIT_SHARE] = math.fsum(waits_s) / math.fsum(times_s)
    trained = [number(record, m.TOKENS) for record in steps.values()]
    percentiles = ((m.STEP_TIME_MEDIAN, 50), (m.STEP_TIME_P10, 10), (m.STEP_TIME_P90, 90))
    values |= {metric: float(np.percentile(times_s, percent)) for metric, percent in percentiles}
    # The sums are unknown if one step has no count.
    if None not in trained:
        values |= {m.TOKENS_TRAINED: sum(filter(None, trained))}
    samples = [number(record, m.SAMPLES) for record in steps.values()]
    if None not in samples:
        total = sum(filter(None, samples))
        values |= {m.SAMPLES_TRAINED: total, m.SAMPLES_PER_STEP: total / len(samples)}
    for metric in (m.MEMORY_PEAK, m.MEMORY_RESERVED_PEAK):
        peaks = [value for record in steps.values() if (value := number(record, metric)) is not None]
        values |= {metric: max(peaks)} if peaks else {}
    return values


def attempt_times(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """Return the parts of the wall time, summed over the attempts that recorded their end."""
    ends = [event for event in events if event["event"] in {"finished", "stopped"}]
    sums = {}
    for metric in m.ATTEMPT_METRICS:
        values = [value for event in ends if (value := number(event, metric)) is not None]
        if values:
            sums[metric] = math.fsum(values)
    return sums


def startup_parts(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """Return the parts of the start-up of rank 0, summed over the starts that recorded them."""
    starts = [event for event in events if event["event"] == "started"]
    known = {metric: [number(event, metric) for event in starts] for metric in m.STARTUP_PARTS}
    present = {metric: [value for value in values if value is not None] for metric, values in known.items()}
    return {metric: math.fsum(values) for metric, values in present.items() if values}


def evaluated(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """Return the results of the latest evaluation."""
    event = last_event(events, "evaluated")
    return {metric: value for metric in m.EVALUATION_METRICS if (value := number(event, metric)) is not None}


def data_account(plan: Mapping[str, Any]) -> dict[Metric, float]:
    """Return the account of the data set; empty for a run that was planned without one."""
    account = plan.get("account")
    record = account if isinstance(account, Mapping) else {}
    return {metric: value for metric in m.DATA_METRICS if (value := number(record, metric)) is not None}


def held(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """Return the parameters per rank and those that train, from the latest attempt if it recorded them."""
    event = last_event(events, "layout")
    recorded = {metric: number(event, metric) for metric in (m.PARAMETERS_HELD, m.PARAMETERS_TRAINED)}
    return {metric: value for metric, value in recorded.items() if value is not None}


def collectives_of(events: tuple[Mapping[str, Any], ...]) -> tuple[Collective, ...] | None:
    """Return the communication of a rank in one step, from the latest attempt that recorded it; None if none did."""
    return read_collectives(last_event(events, "layout"))
