"""nanotron: `... [INFO|DP=0|PP=0|TP=0|host]: iteration: 5 / 99 | consumed_tokens: 1.64M | ...`, one line per step.

Numbers have three digits and, from 1000, suffixes K, M, G or T for powers of 1000, also for bytes. Fields differ
between versions; `global_batch_size` is in samples in old ones and in tokens in new ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import log_metrics as a
from analysis.parsers.base import RESUMED, Kind, Line, LineFormat, Names, Record, Text, numbers
from analysis.untrusted import is_not_finite, printed_number
from jobs import metrics as m
from jobs.metrics import Metric

STEP = re.compile(r"\biteration: (?P<step>\d+) / (?P<planned>\d+) (?P<fields>\|.*)")
# Without Slurm the head has no host at its end.
HEAD = re.compile(r"(\d\d/\d\d/\d{4} [\d:]{8}) \[\w+(?:\|\w+=\d+)*(?:\|([^\]|=]+))?\]: $")
FIELD = re.compile(r"\| (\w+): ([-+]?(?:[\d.]+(?:e[-+]\d+)?|nan|inf))([KMGTP]?)(?= *(?:\||$))")
THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
# The configuration as Python prints it, one setting per line.
SETTING = re.compile(r"[ (](\w+)=([\w.]+)[,)]+$")
SETTINGS = {
    "num_hidden_layers": a.LAYERS,
    "hidden_size": a.HIDDEN_SIZE,
    "num_attention_heads": a.HEADS,
    "num_key_value_heads": a.KV_HEADS,
    "intermediate_size": a.INTERMEDIATE_SIZE,
    "vocab_size": a.VOCABULARY_SIZE,
    "sequence_length": a.SEQUENCE_LENGTH,
    "micro_batch_size": a.MICRO_BATCH_SIZE,
    "dp": a.DATA_PARALLEL_SIZE,
    "pp": a.PIPELINE_PARALLEL_SIZE,
    "tp": a.TENSOR_PARALLEL_SIZE,
}
LLAMA = "LlamaConfig("
START = re.compile(r"\| start_iteration_step: (\d{1,12}) \|")
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
    "cuda_max_memory_reserved": (m.MEMORY_RESERVED_PEAK, 1),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the settings, then steps with the host that logs."""
    settings: dict[Metric, float] = {}
    texts: dict[Text, str] = {}
    configured: int | None = None
    for line in lines:
        if configured is None and LLAMA in line.text:
            configured = line.number
            settings[a.GATED] = 1.0
        if found := STEP.search(line.text):
            if configured is not None:
                yield Record(Kind.setting, configured, settings | ranks_of(settings), texts)
                settings, texts, configured = {}, {}, None
            fields = {name: scaled(digits, suffix) for name, digits, suffix in FIELD.findall(found["fields"])}
            values = numbers((found.groupdict() | fields).items(), NAMES) | batch(fields)
            head = HEAD.search(line.text[: found.start()])
            when = {Text.timestamp: head[1]} if head else {}
            yield Record(Kind.step, line.number, values, when, line.rank, (head and head[2]) or line.host)
        elif found := START.search(line.text):
            if (done := float(found[1])) > 0:
                yield Record(Kind.event, line.number, {m.STEP: done}, {Text.event: RESUMED}, line.rank, line.host)
        elif found := SETTING.search(line.text):
            if found[1] in SETTINGS and found[2].isdecimal():
                settings.setdefault(SETTINGS[found[1]], float(found[2]))
            elif found[1] == "dtype":
                texts.setdefault(Text.precision, found[2].removeprefix("torch."))
            elif found[1] == "tie_word_embeddings":
                settings.setdefault(a.TIED_EMBEDDINGS, float(found[2] == "True"))


def ranks_of(settings: Mapping[Metric, float]) -> dict[Metric, float]:
    """Return the rank count as the product of the axes, if all three are known."""
    axes = (a.DATA_PARALLEL_SIZE, a.PIPELINE_PARALLEL_SIZE, a.TENSOR_PARALLEL_SIZE)
    return {a.RANKS: math.prod(settings[axis] for axis in axes)} if settings.keys() >= set(axes) else {}


def batch(fields: Mapping[str, float | None]) -> dict[Metric, float]:
    """Return the batch size: in tokens if it equals the tokens of a step (speed by time), else in samples."""
    size, speed = fields.get("global_batch_size"), fields.get("tokens_per_sec")
    time_ms = fields.get("elapsed_time_per_iteration_ms", fields.get("time_per_iteration_ms"))
    if not (size and speed and time_ms):
        return {}
    in_tokens = size > speed * time_ms / 1000 / 2
    return numbers([("size", size)], {"size": (m.PADDED_TOKENS if in_tokens else a.GLOBAL_BATCH_SIZE, 1)})


def scaled(digits: str, suffix: str) -> float | None:
    """Return the number printed as, for example, 1.64 and M; NaN for one that is not finite."""
    number = printed_number(digits)
    if number is None:
        return math.nan if is_not_finite(digits) else None
    return number * THOUSANDS[suffix]


FORMAT = LineFormat(
    "nanotron",
    "https://github.com/huggingface/nanotron/blob/v0.4/src/nanotron/trainer.py (train_step_logs)",
    parse,
    markers=(
        "| consumed_tokens: ",
        "| start_iteration_step: ",
        LLAMA,
        "tie_word_embeddings=",
        " dtype=torch.",
        "sequence_length=",
        "(dp=",
        *(f" {name}=" for name in SETTINGS if name not in {"sequence_length", "dp"}),
    ),
)
