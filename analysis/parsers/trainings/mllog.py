"""MLPerf logging: `:::MLLOG {json}` anywhere in a line, with the time of the machine in ms.

A file contains one result, or the power readings of a node or of the switches, whose clock may be hours off. The time
to train is the time from run_start to the last run_stop (mlperf_logging's result_summarizer); the status of that
run_stop decides if the result counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, Text, numbers, value_of
from analysis.parsers.spellings import spelled
from analysis.untrusted import as_number
from jobs import metrics as m
from jobs.metrics import Metric

MARK = ":::MLLOG "
DECODER = json.JSONDecoder()
SETTINGS = {
    "number_of_nodes": a.NODES,
    "number_of_ranks": a.RANKS,
    "accelerators_per_node": a.GPUS_PER_NODE,
    "global_batch_size": a.GLOBAL_BATCH_SIZE,
    "gradient_accumulation_steps": a.ACCUMULATION,
    "max_sequence_length": a.SEQUENCE_LENGTH,
    "seed": a.SEED,
    "train_samples": a.TRAINING_SAMPLES,
    "eval_samples": a.HELD_OUT_SAMPLES,
    "conversion_eff": a.CONVERSION_EFFICIENCY,
}
NAMES = {
    "submission_benchmark": Text.benchmark,
    "submission_org": Text.organization,
    "submission_platform": Text.system,
}
TIMED = ("init", "run", "epoch", "block", "eval", "power_measurement")
EVENTS = {f"{what}_{end}" for what in TIMED for end in ("start", "stop")}
# Nodes: a reading about every second; switches: mostly one estimate for all.
POWERS = {"power_reading", "interconnect_power_est"}
# The first time of these counts.
STARTS = {"init_start", "init_stop", "run_start"}
SCORES = {"eval_accuracy", "eval_error"}
# The score of a benchmark that evaluates nothing else, and with another score only the loss.
EVALUATED_LOSS = "eval_loss"
# Unit of the throughput, which the log does not state: the reference implementation of one benchmark counts tokens, all
# others count samples.
RATES = {"gpt3": m.TOKENS_PER_S}
TRACKED: Names = {"reduced_train_loss": (m.LOSS, 1)}
# A launcher that was not adapted prints SUBMISSION_ORG_PLACEHOLDER, 8xSUBMISSION_PLATFORM_PLACEHOLDER.
PLACEHOLDER = "_PLACEHOLDER"
# In round 3 samples_count of gpt3 counts tokens; a whole training has fewer samples than this.
MOST_SAMPLES = 1e8


class Entry(NamedTuple):
    """One logged event."""

    key: str
    value: Any
    metadata: Mapping[str, Any]
    time_s: float

    @property
    def progress(self) -> dict[Metric, float]:
        """Return the samples or tokens so far, and the time."""
        return progress(self.metadata, self.time_s)


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the records; an evaluated loss is also the score in a log that evaluates nothing else."""
    losses: list[Record] = []
    scored = False
    for record in entries(lines):
        scored = scored or a.EVALUATION_SCORE in record.values
        if record.kind is Kind.evaluation and not scored:
            losses.append(record)
            continue
        if scored:
            yield from losses
            losses = []
        yield record
    for record in losses:
        score = record.values.get(m.EVALUATION_LOSS)
        yield record if score is None else record._replace(values={**record.values, a.EVALUATION_SCORE: score})


def entries(lines: Iterable[Line]) -> Iterator[Record]:
    """Return settings, events, losses, evaluations and throughputs in order, then the time to train."""
    rate: Metric | None = None
    batch: dict[Metric, float] = {}
    starts: dict[str, float] = {}
    stop: tuple[int, Entry] | None = None
    for line in lines:
        fields = fields_of(line.text)
        if fields is None:
            continue
        if fields[0] == "train_loss":
            # Nearly all lines of some logs: return them before any other test.
            _, value, metadata, time_s = fields
            if loss := value_of(m.LOSS, value):
                values = progress(metadata, time_s) | loss
                yield Record(Kind.step, line.number, values, {}, line.rank, line.host)
            continue
        entry = Entry(*fields)
        if entry.key == "submission_benchmark":
            rate = RATES.get(str(entry.value), a.SAMPLES_PER_S)
        elif entry.key == "run_stop":
            stop = line.number, entry
        if entry.key in STARTS:
            starts.setdefault(entry.key, entry.time_s)
        kind, values, texts = content_of(entry, rate)
        if a.GLOBAL_BATCH_SIZE in values:
            batch = values
        elif m.STEP_TIME in values:
            values |= batch
        if values or texts:
            yield Record(kind, line.number, values, texts, line.rank, line.host)
    if stop is not None and "run_start" in starts:
        number, entry = stop
        values = {a.TIME_TO_TRAIN: entry.time_s - starts["run_start"]}
        if {"init_start", "init_stop"} <= starts.keys():
            values[a.INITIALIZATION_TIME] = starts["init_stop"] - starts["init_start"]
        status = entry.metadata.get("status")
        yield Record(Kind.summary, number, values, {Text.state: status} if isinstance(status, str) else {})


def fields_of(text: str) -> tuple[str, Any, Mapping[str, Any], float] | None:
    """Return the fields of the entry in a line; None if there is no complete one."""
    at = text.find(MARK)
    if at < 0:
        return None
    try:
        logged = orjson.loads(text[at + len(MARK) :])
    except orjson.JSONDecodeError:
        # Python writes NaN, which is not JSON; and another rank may have printed behind the entry.
        try:
            logged, _ = DECODER.raw_decode(text, at + len(MARK))
        except (ValueError, RecursionError):
            return None
    if not isinstance(logged, dict):
        return None
    key, time_ms, metadata = logged.get("key"), as_number(logged.get("time_ms")), logged.get("metadata")
    if not isinstance(key, str) or time_ms is None:
        return None
    return key, logged.get("value"), metadata if isinstance(metadata, dict) else {}, time_ms / 1000


def progress(metadata: Mapping[str, Any], time_s: float) -> dict[Metric, float]:
    """Return the samples or tokens so far, and the time."""
    done = as_number(metadata["samples_count"] if "samples_count" in metadata else metadata.get("step"))
    if done is None:
        return {a.UNIX_TIME: time_s}
    return {a.UNIX_TIME: time_s, a.SAMPLES_DONE if done < MOST_SAMPLES else a.TOKENS_DONE: done}


def content_of(entry: Entry, rate: Metric | None) -> tuple[Kind, dict[Metric, float], dict[Text, str]]:
    """Return kind, values and texts of an event; both empty if it is not used."""
    key, value = entry.key, as_number(entry.value)
    if key in EVENTS:
        status = entry.metadata.get("status")
        texts = {Text.event: key} | ({Text.state: status} if isinstance(status, str) else {})
        return Kind.event, entry.progress, texts
    if key in NAMES:
        named = str(entry.value)
        return Kind.setting, {}, {} if PLACEHOLDER in named else {NAMES[key]: named}
    if key == "tracked_stats" and isinstance(entry.value, dict):
        times = {name: found for name in entry.value if (found := spelled(name)) and found[0] is m.STEP_TIME}
        tracked = numbers(entry.value.items(), {**TRACKED, **times, **({"throughput": (rate, 1)} if rate else {})})
        return (Kind.step, entry.progress | tracked, {}) if tracked else (Kind.event, {}, {})
    if key == EVALUATED_LOSS and (loss := value_of(m.EVALUATION_LOSS, entry.value)):
        return Kind.evaluation, entry.progress | loss, {}
    if value is None:
        return Kind.event, {}, {}
    if key in SETTINGS:
        return Kind.setting, {SETTINGS[key]: value}, {}
    if key in POWERS:
        host = entry.metadata.get("host")
        texts = {Text.variant: key} | ({Text.device: host} if isinstance(host, str) else {})
        return Kind.sample, {a.UNIX_TIME: entry.time_s, a.POWER: value}, texts
    if key in SCORES:
        return Kind.evaluation, entry.progress | {a.EVALUATION_SCORE: value}, {}
    if key == "throughput" and rate is not None:
        return Kind.step, entry.progress | {rate: value}, {}
    return Kind.event, {}, {}


FORMAT = LineFormat(
    "MLPerf MLLOG",
    "https://github.com/mlcommons/logging/blob/4.1.0/mlperf_logging/mllog/mllog.py",
    parse,
    markers=(MARK,),
)
