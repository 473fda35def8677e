"""torchtune: one bar per step, `1|26|Loss: 1.25:  26%|... | 26/101 [06:45<17:27, 13.96s/it]`, of rank 0, and metrics.

The bar of each step is drawn twice, the second time with the count of the next step; the first is read. The metric
logger writes a line per step, `Step 26 | loss:1.25 lr:2e-05 tokens_per_second_per_gpu:812.5 `, to its own file or
between the bars. It counts tokens with a loss, without padding and masked prompts; older releases count all. Whether
samples are packed is in the configuration, which recipes print and write to torchtune_config.yaml, or in an override
on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, numbers, value_of
from analysis.parsers.spellings import spelled
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

BAR = re.compile(r"\b(\d{1,6})\|(\d{1,12})\|Loss: ([^:|\s]+):? .*?(?:, *([\d.]{1,12})(s/it|it/s)\]|$)")

STEP = re.compile(r"\bStep (\d{1,12}) \| (.*)")
FIELD = re.compile(r"([\w/]{1,60}):(\S{1,40})")
# The entries of a section are indented alike; a list of data sets has a dash before the first one.
COMPONENT = re.compile(r"^( *(?:- )?)_component_: ")
PACKED = re.compile(r"^( *)packed: ([Tt]rue|[Ff]alse)\b")
OVERRIDE = re.compile(r"\bdataset\.packed=([Tt]rue|[Ff]alse)\b")
SPEED = "tokens_per_second_per_gpu"
NAMES: dict[str, tuple[Metric, float]] = {
    "loss": (m.LOSS, 1),
    "lr": (m.LEARNING_RATE, 1),
    "grad_norm": (m.GRADIENT_NORM, 1),
    "peak_memory_alloc": (m.MEMORY_PEAK, 2**30),
    "peak_memory_reserved": (m.MEMORY_RESERVED_PEAK, 2**30),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a record for each step."""
    before = ("", "")
    for line in lines:
        found = BAR.search(line.text)
        if found is None or (found[1], found[2]) == before:
            continue
        before = found[1], found[2]
        values = {a.EPOCH: float(found[1]), m.STEP: float(found[2])} | value_of(m.LOSS, found[3])
        if rate := printed_number(found[4] or ""):
            values[a.STEP_TIME_SMOOTHED] = rate if found[5] == "s/it" else 1 / rate
        yield Record(Kind.step, line.number, values, {}, line.rank, line.host)


def parse_metrics(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a record for each logged step."""
    for line in lines:
        if found := STEP.search(line.text):
            fields = FIELD.findall(found[2])
            speeds = {name: speed for name, _ in fields if (speed := spelled(name))}
            values = {m.STEP: float(found[1])} | numbers(fields, NAMES | speeds)
            yield Record(Kind.step, line.number, values, {}, line.rank, line.host)


def parse_configuration(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a record if a line states that samples are packed, or that they are not; of several data sets the first.

    The data of the training comes before those of validations.
    """
    indent = -1
    for line in lines:
        if found := COMPONENT.match(line.text):
            indent = len(found[1])
        elif found := OVERRIDE.search(line.text):
            stated = found[1]
            break
        elif (found := PACKED.match(line.text)) and len(found[1]) == indent:
            stated = found[2]
            break
    else:
        return
    yield Record(Kind.setting, line.number, {a.PACKED: float(stated in {"True", "true"})}, {}, line.rank, line.host)


FORMAT = LineFormat(
    "torchtune",
    "https://github.com/meta-pytorch/torchtune/blob/v0.6.1/recipes/full_finetune_distributed.py",
    parse,
    markers=("|Loss: ",),
)
METRICS = LineFormat(
    "torchtune (metric logger)",
    "https://github.com/meta-pytorch/torchtune/blob/v0.6.1/torchtune/training/metric_logging.py",
    parse_metrics,
    markers=(f"{SPEED}:",),
)
CONFIGURATION = LineFormat(
    "torchtune configuration",
    "https://github.com/meta-pytorch/torchtune/blob/v0.6.1/torchtune/utils/_logging.py",
    parse_configuration,
    markers=("_component_: ", " packed: ", "dataset.packed="),
)
