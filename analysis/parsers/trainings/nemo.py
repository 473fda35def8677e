"""NeMo 2: `Training epoch 0, iteration 5/99 | lr: 1e-4 | ...`; NeMo 1: `Epoch 0: 7%|  | 7/99 [..., global_step=6.0]`.

Both count steps from 0. If NeMo 2 does not print every step, all its values are means, counts included. The bar of
NeMo 1 rounds large counts to three digits (1.63e+6, so no step is derived from them), and repeats itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import RESUMED, Kind, Line, LineFormat, Names, Record, Text, numbers
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

ITERATION = re.compile(r"\bTraining epoch (?P<epoch>\d+), iteration (?P<done>\d+)/\d+ (?P<fields>\|.*)")
ITERATION_FIELD = re.compile(r"\| ([^|:]+): ([-+.\w]+)")
BAR = re.compile(
    r"\bEpoch (?P<epoch>\d+): [^\[\]]{0,300}?\b(?P<done>\d+)(?:/\d+|it) \[[\d:?<]+"
    r"(?:, +(?P<rate>[\d.]+)(?P<unit>s/it|it/s))?, (?P<fields>[^\[\]]*)\]"
)
BAR_FIELD = re.compile(r"(?:^|, )([^,=]+)=([-+.\w]+)")
TIMES = re.compile(r"\btrain_step_timing in s: \[([\d., ]+)\]")
SPEED = re.compile(r"\bTFLOPs per sec per GPU=(\d+\.\d+)")
# Printed by Lightning after a whole checkpoint was read.
RESTORED = re.compile(r"\bRestored all states from the checkpoint at (\S+)")
VOCABULARY = re.compile(r"\bPadded vocab_size: (\d{1,12}), original vocab_size: ")
# Printed by Lightning in any program: returned only together with a step of NeMo.
STARTED = re.compile(r"^All distributed processes registered\. Starting with (\d{1,7}) processes$")
FEWEST_DIGITS = 3
TIME = "train_step_timing in s"
NAMES: Names = {
    "lr": (m.LEARNING_RATE, 1),
    "reduced_train_loss": (m.LOSS, 1),
    "grad_norm": (m.GRADIENT_NORM, 1),
    "global_batch_size": (a.GLOBAL_BATCH_SIZE, 1),
    "consumed_samples": (a.SAMPLES_DONE, 1),
    TIME: (m.STEP_TIME, 1),
    "samples/sec": (a.SAMPLES_PER_S, 1),
    "tokens_per_sec_per_gpu": (m.TOKENS_PER_S_PER_RANK, 1),
    "TFLOPS_per_GPU": (a.FLOPS_PER_S_PER_RANK, 1e12),
    "peak_memory_usage": (m.MEMORY_RESERVED_PEAK, 1),
    "max_memory_reserved": (m.MEMORY_RESERVED_PEAK, 1),
    "max_memory_allocated": (m.MEMORY_PEAK, 1),
    "val_loss": (m.EVALUATION_LOSS, 1),
}
# Metrics for which a mean over several steps is meaningless.
OF_ONE_STEP = {a.SAMPLES_DONE, m.EVALUATION_LOSS}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, the number of ranks, the rows of the embedding, and the speed that NeMo 1 prints at its end."""
    last: float | None = None
    every_step = False
    ranks: Record | None = None
    shown: dict[Metric, float] = {}
    for line in lines:
        if found := ITERATION.search(line.text):
            if ranks is not None:
                yield ranks
                ranks = None
            fields = dict(ITERATION_FIELD.findall(found["fields"]))
            values = progress(found, fields.get("global_step")) | numbers(fields.items(), NAMES)
            step = values.get(m.STEP)
            if step != last:
                every_step = found["done"] == "0" or (step is not None and last is not None and step - last == 1)
                last = step
            if not every_step:
                values = {metric: value for metric, value in values.items() if metric not in OF_ONE_STEP}
            yield Record(Kind.step, line.number, values, {}, line.rank, line.host)
        elif found := STARTED.match(line.text):
            ranks = Record(Kind.setting, line.number, {a.RANKS: float(found[1])})
        else:
            yield from around(line)
        for found in BAR.finditer(line.text):
            # Any program with Lightning's bar prints the rest of it.
            if "global_step=" in found["fields"] and (values := bar(found)) != shown:
                shown = values
                yield Record(Kind.step, line.number, values, {}, line.rank, line.host)


def around(line: Line) -> Iterator[Record]:
    """Return other records: loaded checkpoints, rows of the embedding, times and the speed at the end."""
    if found := RESTORED.search(line.text):
        texts = {Text.event: RESUMED, Text.checkpoint: found[1]}
        yield Record(Kind.event, line.number, {}, texts, line.rank, line.host)
    elif found := VOCABULARY.search(line.text):
        yield Record(Kind.setting, line.number, {a.VOCABULARY_SIZE: float(found[1])}, {}, line.rank, line.host)
    elif found := TIMES.search(line.text):
        for time_s in found[1].split(", "):
            yield Record(Kind.step, line.number, numbers([(TIME, time_s)], NAMES), {}, line.rank)
    elif found := SPEED.search(line.text):
        values = numbers([("TFLOPS_per_GPU", found[1])], NAMES)
        yield Record(Kind.summary, line.number, values, {}, line.rank, line.host)


def bar(found: re.Match[str]) -> dict[Metric, float]:
    """Return the numbers of a state of NeMo 1's bar."""
    fields: dict[str, str] = dict(BAR_FIELD.findall(found["fields"]))
    step = fields.get("global_step", "")
    rate = printed_number(found["rate"] or "")
    # Lightning prints slow rates as 0.02it/s: a time from so few digits may be wrong by a quarter.
    rounded = found["unit"] == "it/s" and len(found["rate"].replace(".", "").lstrip("0")) < FEWEST_DIGITS
    shown = {TIME: rate if found["unit"] == "s/it" else 1 / rate} if rate and not rounded else {}
    return progress(found, None if "e" in step else step) | numbers({**shown, **fields}.items(), NAMES)


def progress(found: re.Match[str], global_step: str | None) -> dict[Metric, float]:
    """Return epoch and step; the count in the first epoch replaces an unknown global_step."""
    epoch = printed_number(found["epoch"])
    step = printed_number(global_step or "")
    if step is None and epoch == 0:
        step = printed_number(found["done"])
        if step is not None and found.re is BAR:
            # The bar counts finished steps, everything else counts from 0.
            step -= 1
    values = {} if epoch is None else {a.EPOCH: epoch}
    return values | ({} if step is None else {m.STEP: step + 1})


FORMAT = LineFormat(
    "NeMo",
    "https://github.com/NVIDIA/NeMo/blob/v2.7.3/nemo/lightning/pytorch/callbacks/progress_printer.py",
    parse,
    markers=(
        "Training epoch ",
        "global_step=",
        "train_step_timing in s: [",
        "TFLOPs per sec per GPU=",
        "Restored all states from the checkpoint at ",
        "Padded vocab_size: ",
        "All distributed processes registered. Starting with ",
    ),
)
