"""DLLogger of NVIDIA's DeepLearningExamples: `DLL time - Epoch: 0 Iteration: 19  train.loss : 6.95 train.ips : 1040 `.

The step, in five notations, precedes the fields; summaries of an epoch or the run have a shorter one or none. Those of
BERT in TensorFlow count iterations without epochs: `Iteration: 100  throughput_train : 812.5 total_loss : 8.1 `. A
second file contains the same as `DLLL {json}`, often with each batch of a validation. Rates are totals of all ranks;
`batch_size` may refer to one rank or to all, and is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text, value_of
from analysis.parsers.spellings import spelled
from analysis.untrusted import as_list, as_number
from jobs import metrics as m
from jobs.files import parse_json
from jobs.metrics import Metric

# Often follows a progress bar on the same line.
PRINTED = re.compile(r"\bDLL (\d{4}-\d\d-\d\d [\d:.]{8,15}) - (.*)")
WRITTEN = re.compile(r"\bDLLL (\{.*\})")
STEP = re.compile(
    r"(?:(?:Training )?Epoch: (\d{1,9})(?: (?:Training )?Iteration: (\d{1,12}))?"
    r"|\((\d{1,9}),(?: (\d{1,12}))?\)|\(\)|Summary:|(PARAMETER)|(?:Iteration: )?(\d{1,12})|(?= [\w.-]+ : )) "
)
# One batch of an evaluation, which is not its result.
VALIDATION_STEP = "Validation Iteration"
# Each value is followed by its unit or a space: a torn line ends within a number.
FIELD = re.compile(r"([\w.-]+) : (\S+)(?=\s)")
TRAINING: dict[str, Metric] = {
    "loss": m.LOSS,
    "train.loss": m.LOSS,
    "train_loss": m.LOSS,
    "step_loss": m.LOSS,
    "total_loss": m.LOSS,
    "average_loss": m.LOSS,
    "lr": m.LEARNING_RATE,
    "train.lr": m.LEARNING_RATE,
    "learning_rate": m.LEARNING_RATE,
    "train.data_time": a.DATA_TIME,
    "train.ips": a.SAMPLES_PER_S,
    "train_throughput": a.SAMPLES_PER_S,
    "throughput_train": a.SAMPLES_PER_S,
}
SUMMARY: dict[str, Metric] = {
    "training_sequences_per_second": a.SAMPLES_PER_S,
    "raw_train_time": a.TRAINING_TIME,
}
EVALUATION: dict[str, Metric] = {
    "val.loss": m.EVALUATION_LOSS,
    "val.top1": a.EVALUATION_SCORE,
    "val.accuracy": a.EVALUATION_SCORE,
}
PARAMETERS = {"arch": Text.model, "dtype": Text.precision}


class Entry(NamedTuple):
    """One logged step."""

    when: str
    place: dict[Metric, float] | None
    """Epoch and iteration, or fewer, or the step; None for the parameters of the run."""
    data: Mapping[str, Any]


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, epochs, evaluations and the parameters of the run."""
    for line in lines:
        entry = printed(line.text) or written(line.text)
        if entry is None:
            continue
        when = {Text.timestamp: entry.when}
        if entry.place is None:
            texts = {PARAMETERS[name]: field for name, field in entry.data.items() if name in PARAMETERS}
            if texts and all(isinstance(field, str) for field in texts.values()):
                yield Record(Kind.setting, line.number, {}, when | texts, line.rank, line.host)
            continue
        training = Kind.summary if entry.place.keys().isdisjoint({a.ITERATION, m.STEP}) else Kind.step
        whole = TRAINING | SUMMARY if training is Kind.summary else TRAINING
        for kind, names in ((training, whole), (Kind.evaluation, EVALUATION)):
            if values := numbers(entry.data, names):
                yield Record(kind, line.number, entry.place | values, when, line.rank, line.host)


def printed(text: str) -> Entry | None:
    """Return the entry in a line of the terminal."""
    if not (found := PRINTED.search(text)) or not (step := STEP.match(found[2])):
        return None
    if found[2].startswith(VALIDATION_STEP, step.end()):
        return None
    place = place_of([float(part) for part in step.group(1, 2, 3, 4) if part]) | (
        {m.STEP: float(step[6])} if step[6] else {}
    )
    return Entry(found[1], None if step[5] else place, dict(FIELD.findall(found[2], step.end())))


def place_of(counts: Sequence[float]) -> dict[Metric, float]:
    """Return epoch and iteration, as far as they are given."""
    return dict(zip((a.EPOCH, a.ITERATION), counts, strict=False))


def written(text: str) -> Entry | None:
    """Return the entry in a line of the JSON stream."""
    if not (found := WRITTEN.search(text)):
        return None
    try:
        logged = parse_json(found[1])
    except ValueError:
        return None
    data, step = logged.get("data"), logged.get("step")
    if not isinstance(data, dict):
        return None
    counts = [part for part in map(as_number, as_list(step)) if part is not None]
    if len(counts) > 2:  # a step of validation
        return None
    number = as_number(step)
    place = place_of(counts) if number is None else {m.STEP: number}
    return Entry(str(logged.get("datetime")), None if step == "PARAMETER" else place, data)


def numbers(data: Mapping[str, Any], names: Mapping[str, Metric]) -> dict[Metric, float]:
    """Return the values of fields by metric; a rate of 0 was not measured."""
    values: dict[Metric, float] = {}
    for name, field in data.items():
        if known := (names[name], 1.0) if name in names else spelled(name) if names is not EVALUATION else None:
            values |= value_of(known[0], field, known[1])
    return values


FORMAT = LineFormat(
    "DLLogger",
    "https://github.com/NVIDIA/dllogger/blob/v1.0.0/dllogger/logger.py",
    parse,
    markers=("DLL 2", "DLLL {"),
)
