"""Composer and LLM Foundry: a block per batch, `[batch=5/100]:` and one line ` Train NAME: VALUE` per metric.

Rates are means over the last batches, by the window of the speed monitor. `time/...` is in hours with four digits, too
few for the time of a step; `memory/...` is in bytes or in 1e9 bytes, by version, and is not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, value_of
from analysis.parsers.base import numbers as known
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

HEAD = re.compile(r"\[batch=(\d{1,12})/(\d{1,12})\]:?\s*$")
LINE = re.compile(r"\b(Train|Eval) (\S{1,100}): (\S{1,40})\s*$")
NAMES: Names = {
    "loss/train/total": (m.LOSS, 1),
    "throughput/tokens_per_sec": (m.TOKENS_PER_S, 1),
    "throughput/samples_per_sec": (a.SAMPLES_PER_S, 1),
    "throughput/device/tokens_per_sec": (m.TOKENS_PER_S_PER_RANK, 1),
    "throughput/device/samples_per_sec": (a.SAMPLES_PER_S_PER_RANK, 1),
    "throughput/device/flops_per_sec": (a.FLOPS_PER_S_PER_RANK, 1),
    "throughput/device/mfu": (a.MODEL_FLOPS_UTILIZATION, 1),
    "l2_norm/grad/global": (m.GRADIENT_NORM, 1),
    "trainer/device_train_microbatch_size": (a.MICRO_BATCH_SIZE, 1),
}
# Batches before this one, over all epochs; `[batch=...]` counts within the epoch where epochs are numbered.
BEFORE = ("trainer/global_step", "time/batch")
BATCHES_PER_S = "throughput/batches_per_sec"
EVALUATED = re.compile(r"metrics/\S+/(?:LanguageCrossEntropy|CrossEntropy)$")
RATE = re.compile(r"lr-\w+/group0$")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a record for each block, what the rates show about ranks and batch, and evaluations."""
    fields: dict[str, str] = {}
    head: Line | None = None
    shown: dict[Metric, float] = {}
    for line in lines:
        if found := HEAD.search(line.text):
            yield from block(head, fields)
            head, fields = line, {"step": found[1]}
            if not shown.get(a.PLANNED_STEPS):
                shown[a.PLANNED_STEPS] = float(found[2])
                yield Record(Kind.setting, line.number, {a.PLANNED_STEPS: float(found[2])}, {}, line.rank, line.host)
        elif (found := LINE.search(line.text)) and found[1] == "Train":
            fields[found[2]] = found[3]
            about = {metric: value for metric, value in of_rates(fields).items() if shown.get(metric) != value}
            if about:
                shown |= about
                yield Record(Kind.setting, line.number, about, {}, line.rank, line.host)
        elif found and EVALUATED.search(found[2]) and (loss := value_of(m.EVALUATION_LOSS, found[3])):
            yield Record(Kind.evaluation, line.number, loss, {}, line.rank, line.host)
    yield from block(head, fields)


def block(head: Line | None, fields: dict[str, str]) -> Iterator[Record]:
    """Yield the record of a block that has metrics."""
    values = known(fields.items(), NAMES)
    if head is None or not values:
        return
    before = next((number for name in BEFORE if (number := printed_number(fields.get(name, ""))) is not None), None)
    values[m.STEP] = float(fields["step"]) if before is None else before + 1
    for name, text in fields.items():
        if RATE.match(name):
            values |= known([(name, text)], {name: (m.LEARNING_RATE, 1)})
    yield Record(Kind.step, head.number, values, {}, head.rank, head.host)


def of_rates(fields: dict[str, str]) -> dict[Metric, float]:
    """Return ranks and global batch if the rounding of the printed rates leaves one whole number for each."""
    pairs = (
        (a.RANKS, "throughput/tokens_per_sec", "throughput/device/tokens_per_sec"),
        (a.RANKS, "throughput/samples_per_sec", "throughput/device/samples_per_sec"),
        (a.GLOBAL_BATCH_SIZE, "throughput/samples_per_sec", BATCHES_PER_S),
    )
    found: dict[Metric, float] = {}
    for metric, above, below in pairs:
        whole = only_whole(fields.get(above, ""), fields.get(below, ""))
        if whole is not None:
            found.setdefault(metric, whole)
    return found


def only_whole(above: str, below: str) -> float | None:
    """Return the whole number that a ratio of two rounded numbers can be; None if there is none or a choice."""
    over, under = printed_number(above), printed_number(below)
    if not over or not under:
        return None
    half = [10.0 ** -len(text.partition(".")[2]) / 2 for text in (above, below)]
    low, high = (over - half[0]) / (under + half[1]), (over + half[0]) / max(under - half[1], 1e-300)
    whole = math.ceil(low)
    return float(whole) if 0 < whole <= high < whole + 1 else None


FORMAT = LineFormat(
    "Composer",
    "https://github.com/mosaicml/composer/blob/v0.28.0/composer/loggers/console_logger.py",
    parse,
    markers=(
        "[batch=",
        "Train loss/train/total: ",
        "Train throughput/",
        "Train trainer/",
        "Train time/batch: ",
        "Train l2_norm/grad/global: ",
        "Train lr-",
        "Eval metrics/",
    ),
)
