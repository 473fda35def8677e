"""torchtitan: `step: 10  loss: ...  memory: ...  tps: ...`, where tps (until 2024 wps) is of one device.

Each rank in LOG_RANK prints its own line, without that filter all ranks do: their rates describe the same step and must
not be added. With pipeline parallelism a loss of -1 means that the rank does not hold the last stage. For an unknown
GPU it assumes the peak of an A100, with one warning: MFU is then absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import RESUMED, Kind, Line, LineFormat, Record, Text, value_of
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

STAMP = re.compile(r"\b(\d{4}-\d\d-\d\d [\d:]{8},\d{3}) - ")
STEP = re.compile(r"\b(validate )?step: *(\d{1,12})  (loss: .*  (?:[tw]ps|data): .*)")
# A torn line ends within a number: accept numbers followed by a separator. This drops tps at the end of a validation.
FIELD = re.compile(r"(\w+): *([-+]?(?:[\d.,]+|nan|inf))(GiB\(|%|(?=  ))")
VALUES: dict[tuple[str, str], tuple[Metric, float]] = {
    ("loss", ""): (m.LOSS, 1),
    ("grad_norm", ""): (m.GRADIENT_NORM, 1),
    ("memory", "GiB("): (m.MEMORY_RESERVED_PEAK, 2**30),
    ("tps", ""): (m.TOKENS_PER_S_PER_RANK, 1),
    ("wps", ""): (m.TOKENS_PER_S_PER_RANK, 1),
    ("tflops", ""): (a.FLOPS_PER_S_PER_RANK, 1e12),
    # Until March 2024, in seconds.
    ("iter", ""): (a.COMPUTE_TIME, 1),
    ("data", ""): (a.DATA_TIME, 1),
    ("mfu", "%"): (a.MODEL_FLOPS_UTILIZATION, 0.01),
}
SETTING = re.compile(r"\b(local batch size|global batch size|gradient accumulation steps|sequence length|total steps) "
                     r"(\d{1,12})(?=[, ])")  # fmt: skip
SETTINGS = {
    "local batch size": a.MICRO_BATCH_SIZE,
    "global batch size": a.GLOBAL_BATCH_SIZE,
    "gradient accumulation steps": a.ACCUMULATION,
    "sequence length": a.SEQUENCE_LENGTH,
    "total steps": a.PLANNED_STEPS,
}
GPU = re.compile(r"\b[A-Z]{2,4} capacity: (.+) with ([\d.]{1,12})GiB memory")
MODEL = re.compile(r"\bModel (.+) size: ([\d,]{1,20}) total parameters")
# Versions of 2024 print the index of the GPU after its name.
INDEX = re.compile(r" \(\d+\)$")
MESH = re.compile(r"\bBuilding \d-D device mesh with \[[\w', ]*\], \[([\d, ]{1,60})\]")
# As 0.3 prints it; expert parallelism takes its ranks from the other axes.
AXES = re.compile(
    r"\bBuilding device mesh with parallelism: "
    r"pp=(\d{1,9}), dp_replicate=(\d{1,9}), dp_shard=(\d{1,9}), cp=(\d{1,9}), tp=(\d{1,9}), "
)
BUILT = re.compile(r"\bBuilding .{1,80} with \w*ModelArgs\((.*)")
ARGUMENT = re.compile(r"\b(\w+)=(\w+)")
SHAPE = {"dim": a.HIDDEN_SIZE, "n_layers": a.LAYERS, "n_heads": a.HEADS, "head_dim": a.HEAD_SIZE,
         "vocab_size": a.VOCABULARY_SIZE}  # fmt: skip
UNCOVERED = ("moe_args", "moe_enabled", "q_lora_rank", "kv_lora_rank")
PRECISION = re.compile(r"\bRunning with args: .*'mixed_precision_param': '(\w+)'")
# Such as float8: the line does not state which matrix products use it.
CONVERTED = re.compile(r"'converters': \[[^\]]")
STARTS = re.compile(r"\bTraining starts at step (\d{1,12})\b")
UNKNOWN_PEAK = "Peak flops undefined for: "
PEAK = re.compile(r"\bPeak FLOPS used for computing MFU: ([\d.]+e\+\d\d)")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, validations and settings."""
    warned = guessed = False
    for line in lines:
        stamp = STAMP.search(line.text)
        when = {Text.timestamp: stamp[1]} if stamp else {}
        if found := STEP.search(line.text):
            values = {m.STEP: float(found[2])} | fields(found[3])
            if guessed:
                values.pop(a.MODEL_FLOPS_UTILIZATION, None)
            if not found[1]:
                yield Record(Kind.step, line.number, values, when, line.rank, line.host)
                continue
            if m.LOSS in values:
                values[m.EVALUATION_LOSS] = values.pop(m.LOSS)
            yield Record(Kind.evaluation, line.number, values, when, line.rank, line.host)
        elif found := STARTS.search(line.text):
            if (done := float(found[1]) - 1) > 0:
                texts = when | {Text.event: RESUMED}
                yield Record(Kind.event, line.number, {m.STEP: done}, texts, line.rank, line.host)
        elif UNKNOWN_PEAK in line.text:
            warned = guessed = True
        else:
            values, texts = settings(line.text)
            if a.PEAK_FLOPS_PER_S in values:
                # Each run in a file prints its peak, after the warning if there is one.
                guessed, warned = warned, False
                values = {} if guessed else values
            if values or texts:
                yield Record(Kind.setting, line.number, values, when | texts, line.rank, line.host)


def fields(text: str) -> dict[Metric, float]:
    """Return the numbers of a line by metric; 0 and less are placeholders for metrics that are always positive."""
    values: dict[Metric, float] = {}
    for name, digits, unit in FIELD.findall(text):
        metric, factor = VALUES.get((name, unit), (None, 1.0))
        found = value_of(metric, digits.replace(",", ""), factor) if metric else {}
        if all(value > 0 or (each is m.GRADIENT_NORM and value == 0) for each, value in found.items()):
            values |= found
    return values


def settings(text: str) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return the settings in a line: of the run, its model or its GPUs."""
    if found := GPU.search(text):
        size = printed_number(found[2])
        return {} if size is None else {a.DEVICE_MEMORY: size * 2**30}, {Text.gpu_name: INDEX.sub("", found[1])}
    if found := BUILT.search(text):
        return shape(found[1])
    if found := MESH.search(text):
        return {a.RANKS: float(math.prod(int(size) for size in found[1].split(",") if size.strip()))}, {}
    if found := AXES.search(text):
        pipeline, replicas, shards, context, tensor = map(float, found.groups())
        return {
            a.RANKS: pipeline * replicas * shards * context * tensor,
            a.PIPELINE_PARALLEL_SIZE: pipeline,
            a.CONTEXT_PARALLEL_SIZE: context,
            a.TENSOR_PARALLEL_SIZE: tensor,
        }, {}
    if found := PRECISION.search(text):
        return {}, {} if CONVERTED.search(text) else {Text.precision: found[1]}
    if found := MODEL.search(text):
        size = printed_number(found[2].replace(",", ""))
        return {} if size is None else {a.PARAMETERS: size}, {Text.model: found[1]}
    if found := PEAK.search(text):
        peak = printed_number(found[1])
        return {} if peak is None else {a.PEAK_FLOPS_PER_S: peak}, {}
    return {SETTINGS[name]: float(digits) for name, digits in SETTING.findall(text)}, {}


def shape(text: str) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return the model that the arguments describe; all models have a gated feed-forward, which no argument states."""
    arguments = dict(ARGUMENT.findall(text))
    values = {metric: float(arguments[name]) for name, metric in SHAPE.items() if arguments.get(name, "").isdecimal()}
    heads = arguments.get("n_kv_heads", "")
    if heads.isdecimal() or heads == "None":
        values |= {a.KV_HEADS: float(heads)} if heads.isdecimal() else {a.KV_HEADS: values.get(a.HEADS, 0.0)}
    values[a.GATED] = 1.0
    values[a.TIED_EMBEDDINGS] = float(arguments.get("enable_weight_tying") == "True")
    extra = [name for name in UNCOVERED if arguments.get(name, "None") not in {"None", "False", "0"}]
    return values, {Text.uncovered: ", ".join(extra)} if extra else {}


FORMAT = LineFormat(
    "torchtitan",
    "https://github.com/pytorch/torchtitan/blob/v0.2.0/torchtitan/components/metrics.py",
    parse,
    # A terminal has colours between the fields.
    markers=(
        "GiB(",
        "  data: ",
        "local batch size ",
        " total parameters",
        "GiB memory",
        "Peak FLOPS used",
        UNKNOWN_PEAK,
        "Training starts at step ",
        "-D device mesh with [",
        "device mesh with parallelism: ",
        "ModelArgs(",
        "'mixed_precision_param': '",
    ),
)
