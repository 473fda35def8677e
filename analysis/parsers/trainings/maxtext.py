"""MaxText: `completed step: 5, seconds: 4.002, TFLOP/s/device: 125.1, Tokens/s/device: 8188.2, ..., loss: 9.8`.

Steps count from 0. JAX returns before a step has been computed, and the program waits for the previous one: the first
line of a start has the compilation, and the second one only the dispatch, often a tenth of a step. It has no time here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, Text, numbers
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

STEP = re.compile(r"\bcompleted step: (\d{1,12}), (seconds: .*)$")
# A torn line ends within a number: accept numbers before a comma, and a loss with all of its digits.
FIELD = re.compile(r"([A-Za-z][\w/]{0,40}): ([^\s,]{1,40})(?:,|(?<=\.\d{3})\s*$|(?<=nan)\s*$|(?<=inf)\s*$)")
NAMES: Names = {
    "seconds": (m.STEP_TIME, 1),
    "TFLOP/s/device": (a.FLOPS_PER_S_PER_RANK, 1e12),
    "Tokens/s/device": (m.TOKENS_PER_S_PER_RANK, 1),
    "loss": (m.LOSS, 1),
}
# Of 2025 and of 0.2.5.
EVALUATION = re.compile(
    r"\b(?:eval metrics after step:|Completed eval after train step) (\d{1,12}), loss=([^\s,]{1,40}),"
)
PARAMETER = re.compile(r"\bConfig param (\w{1,80}): (\S.{0,200}?)\s*$")
SETTINGS: Names = {
    "global_batch_size_to_train_on": (a.GLOBAL_BATCH_SIZE, 1),
    "gradient_accumulation_steps": (a.ACCUMULATION, 1),
    "max_target_length": (a.SEQUENCE_LENGTH, 1),
    "steps": (a.PLANNED_STEPS, 1),
    "data_shuffle_seed": (a.SEED, 1),
}
# Each axis is the product of its size within a slice (ici) and over slices (dcn); -1 means "all devices that are left".
AXES = {
    "tensor": a.TENSOR_PARALLEL_SIZE,
    "pipeline": a.PIPELINE_PARALLEL_SIZE,
    "context": a.CONTEXT_PARALLEL_SIZE,
    "expert": a.EXPERT_PARALLEL_SIZE,
}
AXIS = re.compile(rf"(?:ici|dcn)_({'|'.join(AXES)})_parallelism")
DEVICES = re.compile(r"\bNum_devices: (\d{1,9}), shape \(")
SIZE = re.compile(r"\bnumber parameters: (\d[\d.]{0,20}) billion\b")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, evaluations and settings."""
    axes: dict[str, dict[str, float]] = {}
    before, in_start = -1, 0
    for line in lines:
        if found := STEP.search(line.text):
            step = int(found[1])
            # Ranks may each print their lines: the same step again is not a new start.
            if step != before:
                in_start = in_start + 1 if step == before + 1 and in_start else 1
                before = step
            yield Record(Kind.step, line.number, step_values(step, found[2], in_start), {}, line.rank, line.host)
        elif found := EVALUATION.search(line.text):
            values = {m.STEP: float(found[1]) + 1} | numbers([("loss", found[2])], {"loss": (m.EVALUATION_LOSS, 1)})
            yield Record(Kind.evaluation, line.number, values, {}, line.rank, line.host)
        elif found := PARAMETER.search(line.text):
            values, texts = setting(found[1], found[2], axes)
            if values or texts:
                yield Record(Kind.setting, line.number, values, texts, line.rank, line.host)
        elif found := DEVICES.search(line.text):
            yield Record(Kind.setting, line.number, {a.RANKS: float(found[1])}, {}, line.rank, line.host)
        elif (found := SIZE.search(line.text)) and (billions := printed_number(found[1])):
            yield Record(Kind.setting, line.number, {a.PARAMETERS: billions * 1e9}, {}, line.rank, line.host)


def step_values(step: int, text: str, in_start: int) -> dict[Metric, float]:
    """Return the numbers of a step; the second one of a start has a loss only."""
    values = {m.STEP: step + 1.0} | numbers(FIELD.findall(text), NAMES)
    return {metric: value for metric, value in values.items() if in_start != 2 or metric in {m.STEP, m.LOSS}}


def setting(name: str, text: str, axes: dict[str, dict[str, float]]) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return the setting in a line of the configuration; keep the sizes of the axes in `axes`."""
    if name == "model_name" and text != "default":
        return {}, {Text.model: text}
    if name == "dtype":
        return {}, {Text.precision: text}
    if (found := AXIS.fullmatch(name)) and (size := printed_number(text)):
        sizes = axes.setdefault(found[1], {})
        sizes[name] = size
        # -1: all devices that are left.
        return ({AXES[found[1]]: math.prod(sizes.values())} if min(sizes.values()) > 0 else {}), {}
    return {metric: value for metric, value in numbers([(name, text)], SETTINGS).items() if value > 0}, {}


FORMAT = LineFormat(
    "MaxText",
    "https://github.com/AI-Hypercomputer/maxtext/blob/28e5097/src/MaxText/metric_logger.py",
    parse,
    markers=(
        "completed step: ",
        "eval metrics after step: ",
        "Completed eval after train step ",
        *(f"Config param {name}: " for name in (*SETTINGS, "model_name", "dtype")),
        *(f"Config param {net}_{axis}_parallelism: " for net in ("ici", "dcn") for axis in AXES),
        "Num_devices: ",
        "number parameters: ",
    ),
)
