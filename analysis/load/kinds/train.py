"""Read a training: the steps that it recorded, over all attempts, and what it measured in the steady ones.

It is used if every step has a finite loss and at least one step is steady.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.load.ended import Submissions, refuse_unfinished
from analysis.load.kinds.evaluate import data_account, evaluated
from analysis.load.run_files import AT, Contents, UnusableError, content_of, records_of
from analysis.metrics.checkpoints import checkpoint_values
from analysis.metrics.cold_starts import found_values
from analysis.metrics.communication import read_collectives, sums
from analysis.metrics.energy import energy_of_run, intervals_of
from analysis.metrics.goodput import account, starts_of, suspensions_of
from analysis.metrics.node_load import node_load
from analysis.metrics.node_use import node_use_values, read_node_use
from analysis.metrics.profile import profile_values, read_profiles
from analysis.metrics.step_variation import far_out, far_out_share, step_variation
from analysis.metrics.storage import read_storage
from analysis.metrics.stragglers import straggler_share, stragglers
from analysis.parsers import log_metrics as a
from analysis.run import RunResult, last_event
from analysis.untrusted import as_number, number
from jobs import metrics as m
from jobs.metrics import Metric
from jobs.rundir import RunDir


def read(run: RunResult, contents: Contents, submissions: Submissions) -> RunResult:
    """Return a run with its measured steps. Raise UnusableError if it is not used, and OSError for a file."""
    records = step_records(records_of(contents, AT.metrics))
    steps = latest(records)
    refuse_unfinished(run, last=max(steps, default=0))
    refuse_other_hardware(run)
    unmeasured = run.config["job"]["unmeasured_steps"]
    steady = steady_steps(steps, unmeasured, first_of_attempts(records))
    refuse_unmeasured(steps, steady, unmeasured)
    ranks, directory = run.config["nodes"] * run.config["ranks_per_node"], RunDir(run.path)
    starts = starts_of(run.events, records, submissions)
    energy = energy_of_run(directory.power_logs, intervals_of(starts), ranks) if starts else None
    spent = account(starts, suspensions_of(run.events)) if starts else None
    step_times_s = {int(record[m.STEP.name]): float(record[m.STEP_TIME.name]) for record in steady}
    torn = far_out(step_times_s)
    slow, collectives = stragglers(run.events, step_times_s), read_collectives(last_event(run.events, "layout"))
    profiles, storage = read_profiles(last_event(run.events, "profile")), read_storage(directory)
    nodes = read_node_use(directory)
    return replace(
        run,
        values={
            **measured(steps, steady, torn, ranks),
            **step_variation(step_times_s),
            **straggler_share(slow),
            **attempt_times(run.events),
            **startup_parts(run.events),
            **found_values(run.events),
            **held(run.events),
            **sums(collectives),
            **evaluated(run.events),
            **data_account(run.plan),
            **checkpoint_values(run.events, records),
            **time_to_target(run, steps),
            **node_load(run.events, last_event(run.events, "started")),
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


def so_far(run: RunResult) -> RunResult:
    """Return a run that goes on, with loss and rate of the steps that it recorded; of none if they are unreadable."""
    try:
        found = latest(
            step_records(records_of({AT.metrics.name: content_of(f"{RunDir(run.path).metrics}")}, AT.metrics))
        )
    except OSError:
        return run
    losses = {step: loss for step, record in found.items() if (loss := number(record, m.LOSS)) is not None}
    work = m.TOKENS if any(m.TOKENS.name in record for record in found.values()) else m.SAMPLES
    rates = {
        step: done / time_s
        for step, record in found.items()
        if (done := number(record, work)) and (time_s := number(record, m.STEP_TIME)) and time_s > 0
    }
    rate = m.TOKENS_PER_S if work is m.TOKENS else a.SAMPLES_PER_S
    return replace(run, losses=losses, step_rates=(rate, rates))


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


def time_to_target(run: RunResult, steps: Mapping[int, dict[str, Any]]) -> dict[Metric, float]:
    """Return the time until the loss of the run's contest was reached; empty if it was not, or without one."""
    target, window = (as_number(run.setting(f"contest.{key}")) for key in ("target_loss", "loss_steps"))
    if target is None or window is None:
        return {}
    losses: list[float] = []
    for _, record in sorted(steps.items()):
        loss, elapsed_s = number(record, m.LOSS), number(record, m.ELAPSED)
        losses = [*losses, *([] if loss is None else [loss])][-int(window) :]
        if elapsed_s is not None and len(losses) == int(window) and statistics.fmean(losses) <= target:
            return {m.TIME_TO_TARGET: elapsed_s}
    return {}


# --- requirements of a used run --------------------------------------------------------------------------------


def refuse_other_hardware(run: RunResult) -> None:
    """Raise UnusableError if a run had other ranks than configured, or two kinds of device."""
    started = [event for event in run.events if event["event"] == "started"]
    devices = sorted({str(event.get("device_name", "unnamed")) for event in started})
    if len(devices) > 1:
        raise UnusableError("mixed", f"its attempts ran on different devices: {', '.join(devices)}")
    planned = run.config["nodes"] * run.config["ranks_per_node"]
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
    loads = [load for record in steady if (load := number(record, m.EXPERT_IMBALANCE)) is not None]
    values |= {m.EXPERT_IMBALANCE: math.fsum(loads) / len(loads)} if loads else {}
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


def held(events: tuple[Mapping[str, Any], ...]) -> dict[Metric, float]:
    """Return the parameters per rank and those that train, from the latest attempt if it recorded them."""
    event = last_event(events, "layout")
    recorded = {metric: number(event, metric) for metric in (m.PARAMETERS_HELD, m.PARAMETERS_TRAINED)}
    return {metric: value for metric, value in recorded.items() if value is not None}
