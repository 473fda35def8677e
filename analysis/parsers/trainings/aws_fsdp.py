"""AWS's FSDP example: `Batch 5 Loss: 10.8, Speed: 8.98 samples/sec, lr: 0.0001`, one line per logged step of rank 0.

The speed counts the samples of all data-parallel ranks; batches are counted from 0. A logger prints the time before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, Text, numbers
from jobs import metrics as m

STEP = re.compile(
    r"\bBatch (?P<before>\d{1,12}) Loss: (?P<loss>\S{1,40}?), Speed: (?P<speed>\S{1,40}) samples/sec"
    r"(?:, lr: (?P<rate>\S{1,40}))?"
)
VALIDATION = re.compile(r"\bBatch (?P<step>\d{1,12}) Validation loss: (?P<loss>\S{1,40})(?=\s|,|$)")
STAMP = re.compile(r"\b(\d{4}-\d\d-\d\d [\d:]{8}(?:[.,]\d{1,6})?)")
NAMES: Names = {"loss": (m.LOSS, 1), "speed": (a.SAMPLES_PER_S, 1), "rate": (m.LEARNING_RATE, 1)}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps and validations."""
    for line in lines:
        if found := STEP.search(line.text):
            stamp = STAMP.search(line.text[: found.start()])
            when = {Text.timestamp: stamp[1]} if stamp else {}
            values = {m.STEP: float(found["before"]) + 1} | numbers(found.groupdict().items(), NAMES)
            yield Record(Kind.step, line.number, values, when, line.rank, line.host)
        elif found := VALIDATION.search(line.text):
            values = {m.STEP: float(found["step"]) + 1}
            values |= numbers([("loss", found["loss"])], {"loss": (m.EVALUATION_LOSS, 1)})
            yield Record(Kind.evaluation, line.number, values, {}, line.rank, line.host)


FORMAT = LineFormat(
    "AWS FSDP example",
    "https://github.com/awslabs/awsome-distributed-training/blob/main/3.test_cases/pytorch/FSDP/src/train.py",
    parse,
    markers=(" samples/sec", " Validation loss: "),
)
