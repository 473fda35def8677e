"""DLIO, the benchmark of MLPerf Storage: lines of epochs and a `[METRIC]` block in its log, or summary.json.

DLIO reads data as a training would and sleeps for the compute time of an accelerator. Its MB are MiB. Training figures
are summed over n ranks. Evaluation figures since 2.0 are the concatenated lists of the ranks, and their means are an
nth of the total. The records contain totals; whether an evaluation met its expectation is then unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Line, LineFormat, Record, Text
from analysis.untrusted import as_list, as_number, lookup, printed_number
from jobs.metrics import Metric

MIB = float(1 << 20)
NUMBER = r"(?P<number>[\d.]{1,20})"
ACCELERATORS = re.compile(rf"\[METRIC\] Number of Simulated Accelerators: {NUMBER}\s*$")
EPOCH = re.compile(
    r"\bEpoch (?P<epoch>\d{1,9}) (?:- Block (?P<block>\d+) )?\[(?P<phase>Training|Eval)\] (?P<what>[^:]+): " + NUMBER
)
OVERALL = re.compile(rf"\[METRIC\] (?P<phase>Training|Eval|Checkpoint save|Checkpoint load) (?P<what>[^:]+): {NUMBER}")
EXPECTATION = re.compile(r"\[METRIC\] (?P<phase>train|eval)_au_meet_expectation: (?P<state>success|fail)\b")
PHASES = {"Training": "training", "Eval": "evaluation", "train": "training", "eval": "evaluation"}
VALUES: dict[str, tuple[Metric, float]] = {
    "Accelerator Utilization [AU] (%)": (a.ACCELERATOR_UTILIZATION, 1e-2),
    "Throughput (samples/second)": (a.SAMPLES_PER_S, 1),
    "I/O Throughput (MB/second)": (a.IO_BANDWIDTH, MIB),
    "I/O Throughput (MiB/second)": (a.IO_BANDWIDTH, MIB),
    "Throughput (MB/second)": (a.IO_BANDWIDTH, MIB),
    "I/O Throughput (GB/second)": (a.IO_BANDWIDTH, MIB * 1024),
    "I/O Throughput (GiB/second)": (a.IO_BANDWIDTH, MIB * 1024),
    "duration (seconds)": (a.DURATION, 1),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a measurement for each block of an epoch and a summary for each phase; both span several lines."""
    open_for: tuple[str | None, ...] = ()
    record: list[Record] = []
    values: dict[Metric, float] = {}
    texts: dict[Text, str] = {}
    ranks: float | None = None
    for line in lines:
        if found := EPOCH.search(line.text) or OVERALL.search(line.text):
            epoch = found["epoch"] if found.re is EPOCH else None
            key = (found["phase"], epoch, found["block"] if epoch else None)
            if key != open_for:
                yield from record
                values = {a.EPOCH: float(epoch)} if epoch else {}
                texts = {Text.benchmark: PHASES.get(found["phase"], found["phase"].lower())}
                kind = Kind.measurement if epoch else Kind.summary
                open_for, record = key, [Record(kind, line.number, values, texts, line.rank, line.host)]
            number = printed_number(found["number"])
            if key == ("Eval", None, None):
                number = number * ranks if number and ranks else None
            values |= measured(found["what"], number)
        elif found := EXPECTATION.search(line.text):
            if found["phase"] == "train" or ranks == 1:
                texts |= {Text.state: found["state"]}
        elif (found := ACCELERATORS.search(line.text)) and (ranks := printed_number(found["number"])):
            yield Record(Kind.setting, line.number, {a.RANKS: ranks}, {}, line.rank, line.host)
    yield from record


def measured(what: str, number: float | None) -> dict[Metric, float]:
    """Return a printed number by metric; 0 was not measured."""
    metric, unit = VALUES.get(what, (None, 1.0))
    return {metric: number * unit} if metric is not None and number else {}


def recognises(document: Any) -> bool:
    """Return True if a document is a summary.json."""
    return isinstance(lookup(document, "metric"), Mapping) and "num_accelerators" in document


def parse_document(document: Any) -> Iterator[Record]:
    """Return the setting, a measurement for each epoch, and a summary each for training and evaluation."""
    sizes = numbers({a.RANKS: (document["num_accelerators"], 1), a.NODES: (document.get("num_hosts"), 1)})
    started = document.get("start")
    yield Record(Kind.setting, 0, sizes, {Text.timestamp: started} if isinstance(started, str) else {})
    metric = document["metric"]
    for phase in ("train", "eval"):
        texts = {Text.benchmark: PHASES[phase]}
        ranks = sizes.get(a.RANKS, 1) if phase == "eval" else 1
        utilizations = over_ranks(metric.get(f"{phase}_au_percentage"), ranks)
        rates = over_ranks(metric.get(f"{phase}_throughput_samples_per_second"), ranks)
        # Some epochs may not have been evaluated.
        epochs = range(1, len(rates) + 1) if len(rates) == document.get("epochs") else [None] * len(rates)
        for epoch, percent, rate in zip(epochs, utilizations, rates, strict=False):
            values = numbers(
                {a.EPOCH: (epoch, 1), a.ACCELERATOR_UTILIZATION: (percent, 1e-2), a.SAMPLES_PER_S: (rate, 1)}
            )
            yield Record(Kind.measurement, 0, values, texts)
        state = metric.get(f"{phase}_au_meet_expectation") if ranks == 1 else None
        if values := numbers({
            a.ACCELERATOR_UTILIZATION: (metric.get(f"{phase}_au_mean_percentage"), 1e-2 * ranks),
            a.SAMPLES_PER_S: (metric.get(f"{phase}_throughput_mean_samples_per_second"), ranks),
            a.IO_BANDWIDTH: (metric.get(f"{phase}_io_mean_MB_per_second"), MIB * ranks),
        }):  # fmt: skip
            yield Record(Kind.summary, 0, values, texts | ({Text.state: state} if isinstance(state, str) else {}))


def over_ranks(listed: Any, ranks: float) -> list[float | None]:
    """Return the sums over ranks of concatenated lists; None for an unknown value."""
    each = [as_number(value) for value in as_list(listed)]
    count, rest = divmod(len(each), max(int(ranks), 1))
    if rest:
        return []
    sums = (each[index::count] for index in range(count))
    return [sum(value for value in of_one if value is not None) if None not in of_one else None for of_one in sums]


def numbers(given: Mapping[Metric, tuple[Any, float]]) -> dict[Metric, float]:
    """Return the values that are numbers, in base units; 0 was not measured."""
    found = {metric: as_number((as_number(value) or 0) * unit) for metric, (value, unit) in given.items()}
    return {metric: value for metric, value in found.items() if value}


UPSTREAM = "https://github.com/argonne-lcf/dlio_benchmark/blob/v2.0.0/dlio_benchmark/utils/statscounter.py"
FORMAT = LineFormat("DLIO", UPSTREAM, parse, markers=("[METRIC]", "[Training] ", "[Eval] "))
DOCUMENT = DocumentFormat("DLIO (JSON)", UPSTREAM, recognises, parse_document)
