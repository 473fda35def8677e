"""metrics.csv of Lightning's CSVLogger: columns named by the user, sparse rows, one row per call of the logger.

A value logged by step and by epoch has two columns, `_step` and `_epoch`. Steps are counted from 0, except by LitGPT
(recognised by the column iter_time), which counts micro-batches from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, numbers
from analysis.parsers.spellings import spelled
from jobs import metrics as m
from jobs.metrics import Metric

# Common names, with `_`, `/` or nothing between the words.
COLUMNS: tuple[tuple[re.Pattern[str], Kind, Metric], ...] = (
    (re.compile(r"(?:train(?:ing)?[_/])?loss(?:_step)?"), Kind.step, m.LOSS),
    (re.compile(r"lr(?:-[\w/-]+)?|learning_rate"), Kind.step, m.LEARNING_RATE),
    (re.compile(r"grad(?:ient)?_norm(?:_step)?"), Kind.step, m.GRADIENT_NORM),
    (re.compile(r"global_batch_size"), Kind.step, a.GLOBAL_BATCH_SIZE),
    (re.compile(r"iter_time"), Kind.step, a.MICRO_BATCH_TIME),
    (re.compile(r"(?:train\|)?device/flops_per_sec"), Kind.step, a.FLOPS_PER_S_PER_RANK),
    (re.compile(r"(?:train(?:ing)?[_/])?loss_epoch"), Kind.summary, a.MEAN_LOSS),
    (re.compile(r"(?:val(?:id(?:ation)?)?|eval)[_/]loss(?:_epoch)?"), Kind.evaluation, m.EVALUATION_LOSS),
    (re.compile(r"(?:val(?:id(?:ation)?)?|eval)[_/](?:ppl|perplexity)(?:_epoch)?"), Kind.evaluation,
     m.EVALUATION_PERPLEXITY),
    (re.compile(r"(?:val(?:id(?:ation)?)?|eval)[_/]acc(?:uracy)?(?:_epoch)?"), Kind.evaluation, a.EVALUATION_SCORE),
)  # fmt: skip
LITGPT_COLUMN = "iter_time"


def is_header(text: str) -> bool:
    """Return True if a line names the columns that CSVLogger always writes, and one more."""
    columns = text.split(",")
    return {"epoch", "step"} < set(columns)


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a record for each kind of values in a row."""
    columns: list[str] = []
    names: dict[Kind, Names] = {}
    for line in lines:
        text = line.text.removeprefix("\ufeff").strip()
        cells = text.split(",")
        if is_header(text):
            columns, names = cells, names_of(cells)
        elif len(cells) == len(columns):
            row = dict(zip(columns, cells, strict=True))
            for kind, of_kind in names.items():
                if values := numbers(row.items(), of_kind):
                    yield Record(kind, line.number, progress(row) | values, {}, line.rank, line.host)


def names_of(columns: Iterable[str]) -> dict[Kind, Names]:
    """Return the columns with a metric, by the kind of their record."""
    found: dict[Kind, dict[str, tuple[Metric, float]]] = {}
    for column in columns:
        for pattern, kind, metric in COLUMNS:
            if pattern.fullmatch(column):
                found.setdefault(kind, {})[column] = metric, 1
        if speed := spelled(column):
            found.setdefault(Kind.summary if speed[0] is a.EPOCH_TIME else Kind.step, {})[column] = speed
    return dict(found)


def progress(row: dict[str, str]) -> dict[Metric, float]:
    """Return epoch and step of a row."""
    if LITGPT_COLUMN in row:
        return numbers(row.items(), {"epoch": (a.EPOCH, 1), "step": (a.MICRO_BATCHES_DONE, 1)})
    values = numbers(row.items(), {"epoch": (a.EPOCH, 1), "step": (m.STEP, 1)})
    return values | {metric: value + 1 for metric, value in values.items() if metric is m.STEP}


FORMAT = LineFormat(
    "Lightning CSV",
    "https://github.com/Lightning-AI/pytorch-lightning/blob/2.5.6/src/lightning/fabric/loggers/csv_logs.py",
    parse,
    is_header=is_header,
)
