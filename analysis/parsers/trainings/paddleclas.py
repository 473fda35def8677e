"""PaddleClas: `[Train][Epoch 1/120][Iter: 10/5005]lr: ..., loss: ..., batch_cost: ...s, ips: ... samples/s`.

Static graphs, and all versions before 2.2, print `epoch:0  train step:10  loss: ...` instead. The rate refers to one
GPU. Rate and times are means over the epoch so far without its first steps; during those, over the previous epoch too.
Dynamic graphs, unlike static ones, also print the mean loss of the epoch so far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text, value_of
from jobs import metrics as m
from jobs.metrics import Metric

STAMP = re.compile(r"\b(\d{4}[-/]\d\d[-/]\d\d [\d:]{8})\]? (?:ppcls )?INFO:")
DYNAMIC = re.compile(
    r"INFO: +\[(?P<mode>Train|Eval)\]\[Epoch (?P<epoch>\d{1,9})(?:/\d+)?\]\[(?:Iter: (?P<iteration>\d{1,12})/\d+|Avg)\]"
)
STATIC = re.compile(
    r"INFO: +(?:END )?(?:epoch:(?P<epoch>\d{1,9})[ ,]+)?(?P<mode>train|valid|eval) (?:step:(?P<iteration>\d{1,12}))?"
)
# A torn line ends within a number: accept numbers followed by a separator or with all five decimals.
FIELD = re.compile(
    r"\b(\w+)(?:\(\w+\))?: *(\d{1,15}\.\d+|[-+]?(?:nan|inf)\b)(?=s,|[ ,]|(?<=\.\d{5})\s*$|(?<=nan|inf)\s*$)"
)
# Warning if the number of GPUs differs from the one that the configuration was made for.
RANKS = re.compile(r"But the number of gpu is (\d{1,9}) in current training")
TRAINING: dict[str, Metric] = {
    "loss": m.LOSS,
    "lr": m.LEARNING_RATE,
    "batch_cost": m.STEP_TIME,
    "reader_cost": a.DATA_TIME,
    "ips": a.SAMPLES_PER_S_PER_RANK,
}
EVALUATION: dict[str, Metric] = {"loss": m.EVALUATION_LOSS, "top1": a.EVALUATION_SCORE}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, epochs, whole evaluations and the number of ranks; skip single batches of an evaluation."""
    for line in lines:
        if ranks := RANKS.search(line.text):
            yield Record(Kind.setting, line.number, {a.RANKS: float(ranks[1])}, {}, line.rank, line.host)
        found = DYNAMIC.search(line.text) or STATIC.search(line.text)
        if found is None:
            continue
        training, iteration = found["mode"].lower() == "train", found["iteration"]
        if iteration and not training:
            continue
        kind = Kind.evaluation if not training else Kind.step if iteration else Kind.summary
        place = ((a.EPOCH, found["epoch"]), (a.ITERATION, iteration))
        values = {metric: float(at) for metric, at in place if at}
        names = TRAINING if training else EVALUATION
        for name, text in FIELD.findall(line.text, found.end()):
            if name in names:
                values |= value_of(names[name], text)
        stamp = STAMP.search(line.text)
        yield Record(kind, line.number, values, {Text.timestamp: stamp[1]} if stamp else {}, line.rank, line.host)


FORMAT = LineFormat(
    "PaddleClas",
    "https://github.com/PaddlePaddle/PaddleClas/blob/v2.5.1/ppcls/engine/train/utils.py",
    parse,
    markers=("batch_cost: ", "][Avg]", "But the number of gpu is "),
)
