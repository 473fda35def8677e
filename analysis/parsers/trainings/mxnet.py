"""MXNet's Speedometer: `Epoch[0] Batch [20-40] Speed: 2650.20 samples/sec accuracy=0.123456`, every few batches.

Before 1.3 it prints the last batch only, and without a metric it prints `Iter[0]`. The rate uses the batch size that
the program passes: MXNet's own programs pass that of the process, and each process prints its own rate; MLPerf's pass
the total, and one process prints. A worker evaluates only its own part of the held-out samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, RankLabel, Record, Text, value_of
from jobs import metrics as m
from jobs.metrics import Metric

STEP = re.compile(
    r"\b(?:Epoch|Iter)\[(\d{1,9})\] Batch ?\[(?:\d{1,12}-)?(\d{1,12})\]\s+Speed: (\d{1,12}\.\d{1,9}|inf) samples/sec"
)
EVALUATION = re.compile(r"\bEpoch\[(\d{1,9})\] (?=Validation-)")
ARGUMENTS = re.compile(r"\bstart with arguments Namespace\((.*)\)")
ARGUMENT = re.compile(r"\b(network|dtype|kv_store)='([^',()]{1,60})'")
# Prefix `2022-05-14 03:40:19,292 Node[0] `; the key-value store numbers the nodes.
PROCESS = re.compile(r"\bNode\[(\d{1,6})\] ")
TIME = re.compile(r"\b(\d{4}-\d\d-\d\d [\d:]{8}(?:,\d{3})?) ")
# Numbers have six decimals: one with fewer is torn.
FIELD = re.compile(r"\b([A-Za-z][\w-]{0,60})=(-?\d{1,15}\.\d{6}|[-+]?(?:nan|inf)\b)(?!\d)")
NAMES: dict[str, Metric] = {
    "cross-entropy": m.LOSS,
    "Train-cross-entropy": m.LOSS,
    "loss": m.LOSS,
    "lr": m.LEARNING_RATE,
    "Validation-cross-entropy": m.EVALUATION_LOSS,
    "Validation-accuracy": a.EVALUATION_SCORE,
}
TEXTS = {"network": Text.model, "dtype": Text.precision}
# Key-value stores whose processes have a batch each.
OF_PROCESSES = "dist"


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, evaluations, and the arguments of MXNet's example programs."""
    rate = a.SAMPLES_PER_S
    printing: set[RankLabel] = set()
    # The first lines do not show yet if other processes print.
    waiting: list[Record] = []
    given: dict[Text, str] = {}
    for line in lines:
        if found := STEP.search(line.text):
            place = {a.EPOCH: float(found[1]), a.ITERATION: float(found[2])}
            waiting.append(
                record_of(Kind.step, line, place | numbers([(a.SAMPLES_PER_S, found[3])]) | metrics(line.text))
            )
            printing.add(waiting[-1].rank)
            if len(printing) > 1:
                rate = a.SAMPLES_PER_S_PER_RANK
            if len(waiting) > 1:
                yield from of_metric(waiting, rate)
                waiting = []
        elif found := EVALUATION.search(line.text):
            if values := metrics(line.text):
                yield record_of(Kind.evaluation, line, {a.EPOCH: float(found[1])} | values)
        elif found := ARGUMENTS.search(line.text):
            arguments = dict(ARGUMENT.findall(found[1]))
            if arguments.get("kv_store", "").startswith(OF_PROCESSES):
                rate = a.SAMPLES_PER_S_PER_RANK
            texts = {text: arguments[name] for name, text in TEXTS.items() if name in arguments}
            if texts and texts != given:
                given = texts
                yield Record(Kind.setting, line.number, {}, texts)
    yield from of_metric(waiting, rate)


def record_of(kind: Kind, line: Line, values: Mapping[Metric, float]) -> Record:
    """Return the record of a line, with its process and time."""
    process, time = PROCESS.search(line.text), TIME.search(line.text)
    texts = {Text.timestamp: time[1]} if time else {}
    return Record(kind, line.number, values, texts, int(process[1]) if process else line.rank, line.host)


def metrics(text: str) -> dict[Metric, float]:
    """Return the known metrics after the rate."""
    return numbers((NAMES[name], text) for name, text in FIELD.findall(text) if name in NAMES)


def numbers(printed: Iterable[tuple[Metric, str]]) -> dict[Metric, float]:
    """Return the values that are numbers."""
    return {each: value for metric, text in printed for each, value in value_of(metric, text).items()}


def of_metric(records: Iterable[Record], rate: Metric) -> Iterator[Record]:
    """Return the records with their rate stored as `rate`: of all processes, or of each."""
    for record in records:
        yield record._replace(
            values={rate if metric is a.SAMPLES_PER_S else metric: value for metric, value in record.values.items()}
        )


FORMAT = LineFormat(
    "MXNet Speedometer",
    "https://github.com/apache/mxnet/blob/1.9.1/python/mxnet/callback.py",
    parse,
    markers=(" samples/sec", "] Validation-", "start with arguments Namespace("),
)
