"""MXNet's Speedometer: `Epoch[0] Batch [20-40] Speed: 2650.20 samples/sec accuracy=0.123456`, every few batches.

Before 1.3 it names the last batch alone, and without a metric it prints `Iter[0]`. The rate is of the batch that the
program gives it: MXNet's own programs give it that of the process, so that of several that print each tells its own;
MLPerf's give it that of all, and one process prints. A worker evaluates only its own part of the held-out samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, RankLabel, Record, Text
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

STEP = re.compile(
    r"\b(?:Epoch|Iter)\[(\d{1,9})\] Batch ?\[(?:\d{1,12}-)?(\d{1,12})\]\s+Speed: (\d{1,12}\.\d{1,9}|inf) samples/sec"
)
EVALUATION = re.compile(r"\bEpoch\[(\d{1,9})\] (?=Validation-)")
ARGUMENTS = re.compile(r"\bstart with arguments Namespace\((.*)\)")
ARGUMENT = re.compile(r"\b(network|dtype|kv_store)='([^',()]{1,60})'")
# What stands before: `2022-05-14 03:40:19,292 Node[0] `, numbered by the key-value store.
PROCESS = re.compile(r"\bNode\[(\d{1,6})\] ")
TIME = re.compile(r"\b(\d{4}-\d\d-\d\d [\d:]{8}(?:,\d{3})?) ")
# All are printed with six decimals: one with fewer is torn.
FIELD = re.compile(r"\b([A-Za-z][\w-]{0,60})=(-?\d{1,15}\.\d{6})(?!\d)")
NAMES: dict[str, Metric] = {
    "cross-entropy": m.LOSS,
    "Train-cross-entropy": m.LOSS,
    "loss": m.LOSS,
    "lr": m.LEARNING_RATE,
    "Validation-cross-entropy": m.EVALUATION_LOSS,
    "Validation-accuracy": a.EVALUATION_SCORE,
}
TEXTS = {"network": Text.model, "dtype": Text.precision}
# Key-value stores whose processes each have a batch of their own.
OF_PROCESSES = "dist"


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Steps, evaluations, and the arguments of the programs that MXNet comes with."""
    rate = a.SAMPLES_PER_S
    printing: set[RankLabel] = set()
    # Of a single line nobody knows yet whether other processes print, too.
    waiting: list[Record] = []
    given: dict[Text, str] = {}
    for line in lines:
        if found := STEP.search(line.text):
            place = {a.EPOCH: float(found[1]), a.ITERATION: float(found[2])}
            waiting.append(told(Kind.step, line, place | numbers([(a.SAMPLES_PER_S, found[3])]) | metrics(line.text)))
            printing.add(waiting[-1].rank)
            if len(printing) > 1:
                rate = a.SAMPLES_PER_S_PER_RANK
            if len(waiting) > 1:
                yield from of_metric(waiting, rate)
                waiting = []
        elif found := EVALUATION.search(line.text):
            if values := metrics(line.text):
                yield told(Kind.evaluation, line, {a.EPOCH: float(found[1])} | values)
        elif found := ARGUMENTS.search(line.text):
            arguments = dict(ARGUMENT.findall(found[1]))
            if arguments.get("kv_store", "").startswith(OF_PROCESSES):
                rate = a.SAMPLES_PER_S_PER_RANK
            texts = {text: arguments[name] for name, text in TEXTS.items() if name in arguments}
            if texts and texts != given:
                given = texts
                yield Record(Kind.setting, line.number, {}, texts)
    yield from of_metric(waiting, rate)


def told(kind: Kind, line: Line, values: Mapping[Metric, float]) -> Record:
    """What a line says, and which process says it when."""
    process, time = PROCESS.search(line.text), TIME.search(line.text)
    texts = {Text.timestamp: time[1]} if time else {}
    return Record(kind, line.number, values, texts, int(process[1]) if process else line.rank, line.host)


def metrics(text: str) -> dict[Metric, float]:
    """The metrics behind the rate that have a name here."""
    return numbers((NAMES[name], said) for name, said in FIELD.findall(text) if name in NAMES)


def numbers(printed: Iterable[tuple[Metric, str]]) -> dict[Metric, float]:
    """Those of the values that are numbers."""
    return {metric: value for metric, said in printed if (value := printed_number(said)) is not None}


def of_metric(records: Iterable[Record], rate: Metric) -> Iterator[Record]:
    """The records, their rate as that of all processes or of each."""
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
