"""OLMo-core and OLMo: a block per step, `[step=10/1000,epoch=1,eta=...]` and one line `    NAME=VALUE` per metric.

Batches per second are those of the step itself; `(actual avg)` and OLMo's own speed are means, and are read only where
the step has nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record
from analysis.parsers.base import numbers as known
from analysis.untrusted import printed_number
from jobs import metrics as m

HEAD = re.compile(r"\[step=(\d{1,12})/(\d{1,12}|\?\?\?)(?:[,\]]|$)")
LINE = re.compile(r"^\s+([A-Za-z]\w{0,30}/[\w /()-]{1,80})=([-+\w.,]{1,40})\s*$")
NAMES: Names = {
    "train/CE loss": (m.LOSS, 1),
    "train/CrossEntropyLoss": (m.LOSS, 1),
    "throughput/device/TPS": (m.TOKENS_PER_S_PER_RANK, 1),
    "throughput/device/tokens_per_second": (m.TOKENS_PER_S_PER_RANK, 1),
    "throughput/device/data loading (s)": (a.DATA_TIME, 1),
    "throughput/device/MFU": (a.MODEL_FLOPS_UTILIZATION, 0.01),
    "throughput/total tokens": (a.TOKENS_DONE, 1),
    "throughput/total_tokens": (a.TOKENS_DONE, 1),
    "optim/total grad norm": (m.GRADIENT_NORM, 1),
    "optim/total_grad_norm": (m.GRADIENT_NORM, 1),
    "optim/LR (group 0)": (m.LEARNING_RATE, 1),
    "optim/LR": (m.LEARNING_RATE, 1),
    "optim/learning_rate_group0": (m.LEARNING_RATE, 1),
    "optim/step skipped": (a.SKIPPED_STEPS, 1),
    "gpu_memory/GPU active mem (GiB)": (m.MEMORY_PEAK, 2**30),
    "gpu_memory/GPU reserved mem (GiB)": (m.MEMORY_RESERVED_PEAK, 2**30),
    "System/Peak GPU Memory (MB)": (m.MEMORY_PEAK, 1e6),
}
STEPS_PER_S = ("throughput/device/BPS", "throughput/device/batches_per_second")
EVALUATED = re.compile(r"eval/.*/?(?:CE loss|CrossEntropyLoss)$")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the planned steps, a record for each block with metrics, and evaluations."""
    fields: dict[str, str] = {}
    head: Line | None = None
    step, planned = 0.0, ""
    for line in lines:
        if found := HEAD.search(line.text):
            yield from block(head, step, fields)
            head, step, fields = line, float(found[1]), {}
            if found[2] not in {planned, "???"}:
                planned = found[2]
                yield Record(Kind.setting, line.number, {a.PLANNED_STEPS: float(planned)}, {}, line.rank, line.host)
        elif found := LINE.match(line.text):
            fields[found[1]] = found[2].replace(",", "")
    yield from block(head, step, fields)


def block(head: Line | None, step: float, fields: dict[str, str]) -> Iterator[Record]:
    """Yield the step of a block, and its evaluation."""
    if head is None:
        return
    values = known(fields.items(), NAMES)
    for name in STEPS_PER_S:
        if (rate := printed_number(fields.get(name, ""))) and rate > 0:
            values[m.STEP_TIME] = 1 / rate
    if values:
        yield Record(Kind.step, head.number, {m.STEP: step, **values}, {}, head.rank, head.host)
    losses = [text for name, text in fields.items() if EVALUATED.match(name)]
    # Several evaluation sets have no common loss.
    if len(losses) == 1 and (evaluated := known([("loss", losses[0])], {"loss": (m.EVALUATION_LOSS, 1)})):
        yield Record(Kind.evaluation, head.number, {m.STEP: step, **evaluated}, {}, head.rank, head.host)


FORMAT = LineFormat(
    "OLMo",
    "https://github.com/allenai/OLMo-core/blob/00e2b7b/src/olmo_core/train/callbacks/console_logger.py, "
    "https://github.com/allenai/OLMo/blob/v0.6.0/olmo/train.py",
    parse,
    markers=("[step=", *(f"{name}=" for name in (*NAMES, *STEPS_PER_S)), "CE loss=", "/CrossEntropyLoss="),
)
