"""Logs of other programs as runs: their settings under our keys, their steps measured by our rules.

The settings of a run come from its log or from a file next to it (MLPerf's system description, or a `facts.yaml` by the
user), never from a name. A log is a run if it contains training steps, or no measurement but the cause of its program's
death; analysis.benchmarks covers all other logs.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.formatting import plural, significant
from analysis.logs.attempts import cause_words, without_attempts
from analysis.logs.batches import batch_by_counts, last_batch, of_last_batch
from analysis.logs.clock import BY_CLOCK
from analysis.logs.divergence import Trust, trust_in
from analysis.logs.energy import energy_of_log
from analysis.logs.facts import Facts
from analysis.logs.file import LogFile
from analysis.logs.gpu_names import device_name
from analysis.logs.identity import without_copies
from analysis.logs.model import model_of, parameters_of, shape_name
from analysis.logs.rates import OF_SUMMARY, RATES_OF_SAMPLES, RATES_OF_WORK, derived_rates, measured, own_mean, rates_of
from analysis.logs.step import RATES, LogStep
from analysis.logs.steps import LogRun, attempts_of, steady
from analysis.logs.streams import job_name
from analysis.metrics.step_variation import drift, far_out, far_out_share, level_shift, step_variation
from analysis.metrics.stragglers import straggler_share, stragglers_of_log
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from analysis.parsers.cluster import nccl_info
from analysis.parsers.trainings import mlperf_system, torchtune
from analysis.run import FACTS_FILE, RunResult
from jobs import metrics as m
from jobs.failure_causes import FailureCause
from jobs.metrics import Metric
from jobs.schema import Batching

ADD_RANKS = f"write `ranks: N` into a {FACTS_FILE} next to it"
# MLPerf's word for a run that reached its target.
SUCCESS = "success"
# As our own configurations name it.
PACKING = {1.0: Batching.packed.name, 0.0: Batching.padded.name}
StepRates = tuple[Metric, Mapping[int, float]]
DIED_FIRST = "it ended before it reported any step"


def log_runs(files: Iterable[LogFile], root: Path, facts: Mapping[Path, Facts]) -> list[RunResult]:
    """Return the trainings in these files as runs.

    Names are paths below the root; facts apply to the folder that is their key and to all below it.
    """
    files = list(files)
    beside = [file for file in files if is_description(file)]
    systems = systems_in_folders(files)
    reporting = {job_name(file.path) for file in files if has_measurements(file)}
    runs = []
    for file in files:
        if file.quoted:
            continue
        attempts = attempts_of(file)
        died = died_first(file) and job_name(file.path) not in reporting
        if attempts or died or file.latest(a.TIME_TO_TRAIN) is not None or file.latest(a.TRAINING_TIME) is not None:
            settings, texts = dict(file.settings), dict(file.texts)
            for other in descriptions_of(file, beside, shared=len(systems.get(file.path.parent, ())) > 1):
                settings = {**other.settings, **settings}
                texts = {**other.texts, **texts}
            numbers: dict[Metric, float] = {}
            for stated in (facts[folder] for folder in reversed(file.path.parents) if folder in facts):
                numbers |= stated.numbers
                texts |= stated.texts
            runs.append(LogRun(replace(file, facts=numbers), settings | numbers, texts, attempts))
    found = without_copies([(run, replace(result(run, root), energy=energy_of_log(run.file, files))) for run in runs])
    return without_attempts(found, lambda run: result(run, root))


def died_first(file: LogFile) -> bool:
    """Return True if a file reports why its program died and contains no measurement."""
    return file.verdict is not None and file.verdict.weight is not None and not has_measurements(file)


def has_measurements(file: LogFile) -> bool:
    """Return True if a file has a place in the report for what it contains: as a training, or in a table.

    Transports of NCCL are no result: a training that died before its first step prints them, too.
    """
    results = file.measurements.keys() - {nccl_info.FORMAT.name}
    return any(kind is Kind.step for _, kind in file.records) or bool(results)


def is_description(file: LogFile) -> bool:
    """Return True if a file contains only settings."""
    return bool(file.formats) and bool(file.settings or file.texts) and not file.records


def systems_in_folders(files: Iterable[LogFile]) -> dict[Path, set[str]]:
    """Return the names of the systems whose results are in each folder."""
    found: dict[Path, set[str]] = defaultdict(set)
    for file in files:
        if file.records and Text.system in file.texts:
            found[file.path.parent].add(file.texts[Text.system])
    return found


def descriptions_of(log: LogFile, files: Sequence[LogFile], *, shared: bool) -> list[LogFile]:
    """Return the files that describe a log: those next to it and, unless they state its nodes, its system description.

    MLPerf results are in results/SYSTEM/BENCHMARK/, the descriptions in systems/SYSTEM.json. Beside the results of
    several systems (`shared`), a description counts only for that which it names.
    """
    beside = [file for file in files if file.path.parent == log.path.parent]
    if shared:
        beside = [file for file in beside if file.texts.get(Text.system) == log.texts.get(Text.system)]
    if any(a.NODES in file.settings for file in beside):
        return beside
    systems = [file for file in files if mlperf_system.FORMAT.name in file.formats]
    named = [file for file in systems if file.path.stem in {parent.name for parent in log.path.parents}]
    nearest = max(named, key=lambda file: len(os.path.commonpath([file.path, log.path])), default=None)
    return [*beside, nearest] if nearest else beside


def result(run: LogRun, root: Path) -> RunResult:
    """Return a log as a run, with a reason if it is not used."""
    settings = configuration(run, root)
    ranks = settings["ranks"]
    counted, segments = of_last_batch(steady(run.steps))
    times_s = {index: time_s for index, step in enumerate(counted) if (time_s := step.time_s) is not None}
    torn = far_out(times_s)
    torn_steps = [counted[index] for index in torn]
    values = measured(run, counted, torn_steps, ranks)
    of_steps = next((step.derived for step in run.steps if step.derived), None)
    derived, how = ({}, of_steps) if rates_of(values) else derived_rates(run, ranks)
    values |= derived
    if how == BY_CLOCK and values.keys().isdisjoint(RATES_OF_SAMPLES) and (own := own_mean(run)):
        values |= own
        how = f"{BY_CLOCK}; its samples or tokens are {OF_SUMMARY}"
    step_times_s, rates = by_step(run, m.STEP_TIME, counted), step_rates(run, counted)
    values |= step_variation(step_times_s) if rates is None else drift(inverse(rates[1]))
    trust = trust_in(run, counted)
    if trust.useless:
        values = {metric: value for metric, value in values.items() if metric not in RATES_OF_WORK}
        derived, how = {}, None
    state, reason = standing(run, values, trust)
    slow = stragglers_of_log(run.file.of(Kind.sample), run.settings, values.get(m.STEP_TIME_MEDIAN))
    return RunResult(
        run.file.path,
        {**settings, "name": name_below(root, run.file.path), "sweep": root.name or str(root)},
        plan(run, ranks),
        events=({"event": "started", **device(run)},) * max(1, run.starts),
        state=state,
        reason=reason,
        values=values | straggler_share(slow),
        losses=by_step(run, m.LOSS, run.steps),
        steps_are_numbered=numbers_of(run) is not None,
        steady_steps=len(counted),
        step_times_s=step_times_s,
        step_rates=rates,
        stragglers=slow,
        far_out_s=by_step(run, m.STEP_TIME, torn_steps),
        far_out_share=far_out_share(times_s, torn),
        log=run.file,
        derived=how,
        disbelieved=trust.doubt,
        remarks=[
            f"{name_below(root, run.file.path)}: {each}."
            for each in (
                segments,
                *untimed(run),
                *padded(run),
                *other_batch(run, ranks),
                *lasting_change(values, step_times_s, rates),
            )
            if each
        ],
        reservations=contradicted(run),
    )


def other_batch(run: LogRun, ranks: int | None) -> list[str]:
    """Return a clause on a configured global batch that the counts of micro-batches contradict."""
    stated, counted = run.settings.get(a.GLOBAL_BATCH_SIZE), batch_by_counts(run, ranks)
    if counted is None or ranks is None or stated is None or counted == stated:
        return []
    size = run.settings[a.MICRO_BATCH_SIZE]
    return [
        f"a step has {counted:,} samples ({ranks:,} ranks x micro-batch {size:,.0f} x {counted / ranks / size:,.0f} "
        f"micro-batches), not the {stated:,.0f} of its global_batch_size, which older LitGPT takes for one node"
    ]


def untimed(run: LogRun) -> list[str]:
    """Return a clause on printed times that no step takes; the first step of a log may have none."""
    impossible = sum(a.TIME_NOT_POSITIVE in step.values for step in run.steps[1:])
    if not impossible:
        return []
    return [
        f"{impossible:,} of {plural(len(run.steps) - 1, 'logged step')} after the first print a time of 0 or less, or "
        "none that is finite, and have no rate"
    ]


def padded(run: LogRun) -> list[str]:
    """Return a clause on tokens that may be padding, and on unknown packing, in a rate of torchtune."""
    if torchtune.METRICS.name not in run.file.formats or run.settings.get(a.PACKED) == 1:
        return []
    unknown = "; neither the log nor a configuration next to it states dataset.packed" * (a.PACKED not in run.settings)
    return [f"its tokens may include padding, which older releases of torchtune count{unknown}"]


def lasting_change(
    values: Mapping[Metric, float], step_times_s: Mapping[int, float], step_rates: StepRates | None
) -> list[str]:
    """Return a clause on a lasting change of the step time or the reported rate, with the rates before and after it."""
    if step_rates is not None:
        metric, by_number = step_rates
        if (shift := level_shift(inverse(by_number))) is None:
            return []
        before, after = 1 / shift.before_s, 1 / shift.after_s
        return [
            f"from step {shift.step:,} on its {metric.name} is {abs(100 * (after / before - 1)):.0f} % "
            f"{'higher' if after > before else 'lower'} ({significant(before, 3)} before, {significant(after, 3)} "
            "after); its rate is a mean of both"
        ]
    shift = level_shift(step_times_s)
    if shift is None:
        return []
    change = 100 * (shift.after_s / shift.before_s - 1)
    rate = values.get(a.SAMPLES_PER_S)
    work = rate / values[a.STEPS_PER_S] if rate and a.STEPS_PER_S in values else None
    sides = (shift.before_s, shift.after_s)
    rates = [
        f"{significant(work / side_s, 3)} samples/s" if work else f"{significant(side_s, 3)} s" for side_s in sides
    ]
    return [
        f"from step {shift.step:,} on its steps take {abs(change):.0f} % {'more' if change > 0 else 'less'} "
        f"time ({rates[0]} before, {rates[1]} after); its rate is a mean of both"
    ]


def contradicted(run: LogRun) -> list[str]:
    """Return the contradictions between facts.yaml and the log about its size in a few words."""
    own = {**run.file.settings}
    if a.NODES in own and a.RANKS_PER_NODE in own:
        own.setdefault(a.RANKS, own[a.NODES] * own[a.RANKS_PER_NODE])
    own.setdefault(a.RANKS, own.get(a.COMMUNICATOR_RANKS, own.get(a.LAUNCHED_RANKS, 0.0)))
    return [
        f"{FACTS_FILE} has {metric.name} {run.file.facts[metric]:,.0f}, the log {own[metric]:,.0f}"
        for metric in (a.RANKS, a.NODES, a.RANKS_PER_NODE)
        if metric in run.file.facts and own.get(metric) and run.file.facts[metric] != own[metric]
    ]


def numbers_of(run: LogRun) -> list[int] | None:
    """Return the number of each step, by the samples until then if the log does not count; None if neither is known."""
    if all(m.STEP in step.values for step in run.steps):
        # Micro-batches of one step share its number, and the last one stays.
        return [int(step.values[m.STEP]) for step in run.steps]
    batch = run.settings.get(a.GLOBAL_BATCH_SIZE)
    numbers = []
    for step in run.steps:
        if m.STEP in step.values:
            numbers.append(int(step.values[m.STEP]))
        elif batch and a.SAMPLES_DONE in step.values:
            numbers.append(round(step.values[a.SAMPLES_DONE] / batch))
        else:
            return None
    return numbers if len(set(numbers)) == len(numbers) else None


def step_rates(run: LogRun, counted: Sequence[LogStep]) -> StepRates | None:
    """Return the rate of each steady step of a log that reports no step times; None if it reports step times."""
    if any(m.STEP_TIME in step.values for step in counted):
        return None
    found = ((metric, by_step(run, metric, counted)) for metric in RATES)
    return next(((metric, rates) for metric, rates in found if rates and min(rates.values()) > 0), None)


def inverse(rates: Mapping[int, float]) -> dict[int, float]:
    """Return values proportional to the step times, if each step has the same work."""
    return {step: 1 / rate for step, rate in rates.items()}


def by_step(run: LogRun, metric: Metric, chosen: Sequence[LogStep]) -> dict[int, float]:
    """Return a metric of the chosen steps by number, of those that have it; without numbers, by position from 1."""
    wanted = {id(step) for step in chosen}
    numbers = numbers_of(run) or range(1, len(run.steps) + 1)
    return {
        number: step.values[metric]
        for number, step in zip(numbers, run.steps, strict=True)
        if metric in step.values and id(step) in wanted
    }


def name_below(root: Path, path: Path) -> str:
    """Return a path relative to the root; if it is the root, its last part."""
    return path.name if path == root else str(path.relative_to(root))


# --- configuration ---------------------------------------------------------------------------------------------


def configuration(run: LogRun, root: Path) -> dict[str, Any]:
    """Return the settings under the keys of our own configurations; unknown ones are None."""
    texts, ranks = run.texts, count(run, a.RANKS) or count(run, a.COMMUNICATOR_RANKS)
    nodes = count(run, a.NODES) or count(run, a.COMMUNICATOR_NODES)
    per_node = count(run, a.RANKS_PER_NODE) or count(run, a.GPUS_PER_NODE)
    nodes, ranks, per_node = launched(run, nodes, ranks, per_node)
    facts = run.file.facts
    if a.RANKS in facts and nodes and per_node and nodes * per_node != ranks:
        # The log's nodes belong to another rank count than that of facts.yaml.
        nodes, per_node = (int(facts[each]) if each in facts else None for each in (a.NODES, a.RANKS_PER_NODE))
    if nodes and ranks and not per_node and ranks % nodes == 0:
        per_node = ranks // nodes
    if per_node and ranks and not nodes and ranks % per_node == 0:
        nodes = ranks // per_node
    sizes = {name: count(run, metric) for name, metric in LAYOUT.items()}
    model = model_of(run.settings, texts)
    return {
        "nodes": nodes,
        "ranks_per_node": per_node,
        "ranks": ranks or (nodes * per_node if nodes and per_node else None),
        "model": {"name": model_name(run, model, root), **model},
        "engine": {"kind": texts.get(Text.software) or " and ".join(training_formats(run.file))},
        "parallelism": {"name": " ".join(f"{name}{size}" for name, size in sizes.items() if size) or None},
        "system": {
            "name": texts.get(Text.system),
            "organization": texts.get(Text.organization),
            "ranks_per_node": per_node,
        },
        "scaling": {"mode": None},
        "job": {
            "sequence_length": count(run, a.SEQUENCE_LENGTH),
            "full_samples": run.settings.get(a.FULL_SAMPLES) == 1,
            "micro_batch_size": count(run, a.MICRO_BATCH_SIZE),
            "precision": texts.get(Text.precision),
            "batching": PACKING.get(run.settings.get(a.PACKED, math.nan)),
            "seed": count(run, a.SEED),
            "lora": {"rank": rank} if (rank := count(run, a.LORA_RANK)) else None,
        },
        "repeat": None,
    }


def launched(
    run: LogRun, nodes: int | None, ranks: int | None, per_node: int | None
) -> tuple[int | None, int | None, int | None]:
    """Return nodes, ranks and ranks of a node; a launcher's lines add what the program does not state.

    Nothing is added if it contradicts the rest.
    """
    all_nodes, each = nodes or count(run, a.LAUNCHED_NODES), per_node or count(run, a.LAUNCHED_RANKS_PER_NODE)
    product = all_nodes * each if all_nodes and each else None
    all_ranks = ranks or product or count(run, a.LAUNCHED_RANKS)
    if all_ranks and ((product and product != all_ranks) or (all_nodes and all_ranks % all_nodes)):
        return nodes, ranks, per_node
    return all_nodes, all_ranks, each


def model_name(run: LogRun, model: Mapping[str, Any], root: Path) -> str:
    """Return the name of the model, else its shape, else the file's name: logs of unknown models are not compared."""
    named = run.texts.get(Text.benchmark) or run.texts.get(Text.model) or shape_name(model)
    return named or name_below(root, run.file.path)


LAYOUT = {
    "tp": a.TENSOR_PARALLEL_SIZE,
    "pp": a.PIPELINE_PARALLEL_SIZE,
    "cp": a.CONTEXT_PARALLEL_SIZE,
    "ep": a.EXPERT_PARALLEL_SIZE,
}


def training_formats(file: LogFile) -> list[str]:
    """Return the formats that contain its steps; all of them if none does."""
    return [name for name, kind in file.records if kind is Kind.step] or list(file.formats)


def plan(run: LogRun, ranks: int | None) -> dict[str, Any]:
    """Return the part of our plan.json that a log reports."""
    size = last_batch(run.steps) or batch_by_counts(run, ranks) or count(run, a.GLOBAL_BATCH_SIZE)
    return {
        "global_batch_size": None if size is None else int(size),
        "accumulation": count(run, a.ACCUMULATION),
        "parameters": parameters_of(run.settings, model_of(run.settings, run.texts)),
    }


def device(run: LogRun) -> dict[str, str]:
    """Return device kind and name; empty if the log does not name its GPU."""
    name = run.texts.get(Text.gpu_name)
    return {"device": "gpu", "device_name": device_name(name)} if name else {}


def count(run: LogRun, metric: Metric) -> int | None:
    """Return a setting if it is a whole number, else None."""
    value = run.settings.get(metric)
    return int(value) if value is not None and value == int(value) else None


# --- state -----------------------------------------------------------------------------------------------------


def standing(run: LogRun, values: Mapping[Metric, float], trust: Trust) -> tuple[str, str | None]:
    """Return the state of the run, and the reason if it is not used."""
    stops = [record.texts[Text.state] for record in run.file.of(Kind.summary) if Text.state in record.texts]
    if stops and stops[-1] != SUCCESS:
        return stops[-1], f"the log reports its end as: {stops[-1]}"
    verdict = run.file.verdict
    if verdict and died_first(run.file):
        return cause_words(verdict), DIED_FIRST
    state = cause_words(verdict) if verdict and verdict.is_failure else "as far as logged"
    if stops:
        state = "succeeded"
    if trust.useless:
        return "unmeasured", trust.useless
    if trust.diverged:
        state = FailureCause.diverged.word
    if rates_of(values) or a.TIME_TO_TRAIN in values:
        # A score stands without a throughput.
        return state.replace("_", " "), None
    if values.keys() & {m.TOKENS_PER_S_PER_RANK, a.SAMPLES_PER_S_PER_RANK}:
        return "unmeasured", f"it reports the throughput per rank, but not the number of ranks: {ADD_RANKS}"
    if any(a.MICRO_BATCH_TIME in step.values for step in run.steps):
        return "unmeasured", "it reports the times of micro-batches, not of whole steps"
    return "unmeasured", unmeasured(run)


def unmeasured(run: LogRun) -> str:
    """Return why no throughput follows from the steps of a log."""
    if impossible := untimed(run):
        return impossible[0]
    timed = sum(step.time_s is not None for step in run.steps)
    if not timed:
        return "it reports neither step time nor throughput"
    if counted := len(steady(run.steps)):
        return f"its {plural(counted, 'step')} after the warm-up have no time or throughput of whole steps"
    lines, attempts = sum(1 for _ in run.file.of(Kind.step)), len({step.attempt for step in run.steps})
    printed = f"{plural(lines, 'line')} of steps, which are {plural(timed, 'timed step')}"
    return f"it has {printed} in {plural(attempts, 'attempt')}: all of them are warm-up"
