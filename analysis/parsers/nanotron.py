"""nanotron: `... [INFO|DP=0|PP=0|TP=0|host]: iteration: 5 / 99 | consumed_tokens: 1.64M | ...`, one line a logged step.

Numbers have three digits and, from a thousand on, K, M, G or T for powers of 1000, bytes too. Fields come and go;
`global_batch_size` was in samples and is in tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import metrics as a
from analysis.parsers.fields import Names, numbers
from analysis.parsers.record import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

STEP = re.compile(r"\biteration: (?P<step>\d+) / (?P<planned>\d+) (?P<fields>\|.*)")
HEAD = re.compile(r"(\d\d/\d\d/\d{4} [\d:]{8}) \[\w+\|(?:\w+=\d+\|)*([^\]|]+)\]: $")
FIELD = re.compile(r"\| (\w+): (-?[\d.]+(?:e[-+]\d+)?)([KMGTP]?)(?= *(?:\||$))")
THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
NAMES: Names = {
    "step": (m.STEP, 1),
    "planned": (a.PLANNED_STEPS, 1),
    "consumed_tokens": (a.TOKENS_DONE, 1),
    "elapsed_time_per_iteration_ms": (m.STEP_TIME, 1e-3),
    "time_per_iteration_ms": (m.STEP_TIME, 1e-3),
    "tokens_per_sec": (m.TOKENS_PER_S, 1),
    "tokens_per_sec_per_gpu": (m.TOKENS_PER_S_PER_RANK, 1),
    "lm_loss": (m.LOSS, 1),
    "lr": (m.LEARNING_RATE, 1),
    "grad_norm": (m.GRADIENT_NORM, 1),
    "model_tflops_per_gpu": (a.FLOPS_PER_S_PER_RANK, 1e12),
    "cuda_max_memory_allocated": (m.MEMORY_PEAK, 1),
    "cuda_max_memory_reserved": (a.MEMORY_RESERVED_PEAK, 1),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Steps, with the host that logs."""
    for line in lines:
        if found := STEP.search(line.text):
            fields = {name: scaled(said, suffix) for name, said, suffix in FIELD.findall(found["fields"])}
            values = numbers((found.groupdict() | fields).items(), NAMES) | batch(fields)
            head = HEAD.search(line.text[: found.start()])
            texts = {Text.timestamp: head[1]} if head else {}
            yield Record(Kind.step, line.number, values, texts, line.rank, head[2] if head else line.host)


def batch(fields: Mapping[str, float | None]) -> dict[Metric, float]:
    """The size of a step, in what it is in: with the tokens that a step has, by speed and time, it is in tokens."""
    size, speed = fields.get("global_batch_size"), fields.get("tokens_per_sec")
    time_ms = fields.get("elapsed_time_per_iteration_ms", fields.get("time_per_iteration_ms"))
    if not (size and speed and time_ms):
        return {}
    in_tokens = size > speed * time_ms / 1000 / 2
    return numbers([("size", size)], {"size": (m.PADDED_TOKENS if in_tokens else a.GLOBAL_BATCH_SIZE, 1)})


def scaled(said: str, suffix: str) -> float | None:
    """The number that is printed as 1.64 and M."""
    number = printed_number(said)
    return None if number is None else number * THOUSANDS[suffix]


FORMAT = LineFormat(
    "nanotron",
    "https://github.com/huggingface/nanotron/blob/v0.4/src/nanotron/trainer.py (train_step_logs)",
    parse,
    needles=("| consumed_tokens: ",),
)
