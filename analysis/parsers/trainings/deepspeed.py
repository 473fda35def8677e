"""DeepSpeed: engine reports every `steps_per_print` steps, and timers of phases with `wall_clock_breakdown`.

A step prints up to two lines, progress and throughput. The throughput refers to the time of the engine's timer, which
may be far less than the step: one known log reports 329 samples/s where Megatron-LM reports 27.5 for the same step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text, value_of
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d [\d:]{8},\d{3})\] \[INFO\]")
PROGRESS = re.compile(r"\[Rank (\d{1,6})\] step=(\d{1,12}), skipped=(\d{1,12}), lr=\[([^],]*)[],]")
# Until 0.7.7 `epoch/micro step`; until 0.6 the mean only.
THROUGHPUT = re.compile(
    r"\b(?:epoch=(\d{1,9})/micro_step=\d+/global_step=(\d{1,12})|\d+/\d+), (?=\w*SamplesPerSec=)(.*)"
)
PIPELINE = re.compile(r"\bsteps: (\d{1,12}) (?=loss: )(.* samples/sec: \d+\.\d{3})\s*$")
OVERFLOWED = "overflow"
OVERFLOW = re.compile(r"OVERFLOW! (?:Rank (\d{1,6}) )?Skipping step\.(?: Attempted loss scale: ([\d.]+),)?")
PHASES = re.compile(r"(?:\brank=|\[Rank )(\d{1,6})\]? time \(ms\) \| (.*)")
# A torn line ends within a number: accept numbers followed by a separator or with all or most of their digits.
FIELD = re.compile(r"(\w+)=([\d.e+-]+)(?:GB|,|(?<=\d{9})$)")
WORDS = re.compile(r"(loss|iter time \(s\)|samples/sec): (\S+)")
PHASE = re.compile(r"(\w+): (\d{1,12}\.\d\d)(?!\d)")
# The table under `DeepSpeedEngine configuration:`. Its world size does not count ranks that share a model.
CONFIGURED = re.compile(r"\[config\.py:\d+:print\] +(\w+) \.* (?:enabled=)?([\w.]+)")
CONFIGURATION = {
    "train_batch_size": a.GLOBAL_BATCH_SIZE,
    "train_micro_batch_size_per_gpu": a.MICRO_BATCH_SIZE,
    "gradient_accumulation_steps": a.ACCUMULATION,
    "world_size": a.DATA_PARALLEL_SIZE,
}
# If True. Since 0.17 the names are those of sections that begin with `enabled`.
PRECISIONS = {
    "fp16_enabled": "float16",
    "float16_config": "float16",
    "bfloat16_enabled": "bfloat16",
    "bfloat16_config": "bfloat16",
}
VALUES: dict[str, tuple[Metric, float]] = {
    "SamplesPerSec": (a.SAMPLES_PER_S_TIMED_MEAN, 1),
    "RunningAvgSamplesPerSec": (a.SAMPLES_PER_S_TIMED_MEAN, 1),
    "CurrSamplesPerSec": (a.SAMPLES_PER_S_TIMED, 1),
    # 2**30 bytes, although the unit is printed as GB.
    "MemAllocated": (a.MEMORY_ALLOCATED, 2**30),
    "MaxMemAllocated": (m.MEMORY_PEAK, 2**30),
    "loss": (m.LOSS, 1),
    "iter time (s)": (m.STEP_TIME, 1),
    "samples/sec": (a.SAMPLES_PER_S, 1),
}
# Names before and since 0.11.
PHASE_TIMES: dict[str, Metric] = {
    "forward": a.FORWARD_TIME,
    "fwd": a.FORWARD_TIME,
    "backward": a.BACKWARD_TIME,
    "bwd": a.BACKWARD_TIME,
    "backward_allreduce": a.GRADIENT_REDUCTION_TIME,
    "bwd_allreduce": a.GRADIENT_REDUCTION_TIME,
    "step": a.OPTIMIZER_TIME,
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, skipped steps, times of phases, and the configuration."""
    for line in lines:
        stamp = STAMP.search(line.text)
        texts = {Text.timestamp: stamp[1]} if stamp else {}
        if found := PROGRESS.search(line.text):
            if found[2] == "0":
                # Printed when an engine is created.
                continue
            values = {m.STEP: float(found[2]), a.SKIPPED_STEPS_SO_FAR: float(found[3])}
            if (rate := printed_number(found[4])) is not None:
                values[m.LEARNING_RATE] = rate
            yield Record(Kind.step, line.number, values, texts, int(found[1]), line.host)
        elif found := THROUGHPUT.search(line.text):
            counted = {} if found[1] is None else {a.EPOCH: float(found[1]), m.STEP: float(found[2])}
            values = counted | numbers(FIELD.findall(found[3]))
            yield Record(Kind.step, line.number, values, texts, line.rank, line.host)
        elif found := PIPELINE.search(line.text):
            values = {m.STEP: float(found[1])} | numbers(WORDS.findall(found[2]))
            yield Record(Kind.step, line.number, values, texts, line.rank, line.host)
        elif found := OVERFLOW.search(line.text):
            rank = line.rank if found[1] is None else int(found[1])
            scale = printed_number(found[2] or "")
            values = {} if scale is None else {m.LOSS_SCALE: scale}
            yield Record(Kind.event, line.number, values, texts | {Text.event: OVERFLOWED}, rank, line.host)
        elif found := PHASES.search(line.text):
            yield from phases(line, found, texts)
        elif found := CONFIGURED.search(line.text):
            yield from configured(line, found[1], found[2])


def configured(line: Line, name: str, text: str) -> Iterator[Record]:
    """Return the batch size, rank count or precision in a line of the engine's configuration."""
    if name in CONFIGURATION and (value := printed_number(text)) is not None and value > 0:
        yield Record(Kind.setting, line.number, {CONFIGURATION[name]: value}, {}, line.rank, line.host)
    elif name in PRECISIONS and text == "True":
        yield Record(Kind.setting, line.number, {}, {Text.precision: PRECISIONS[name]}, line.rank, line.host)


def numbers(fields: list[tuple[str, str]]) -> dict[Metric, float]:
    """Return the values of fields by metric; a rate of -inf or 0 was not measured."""
    values: dict[Metric, float] = {}
    for name, text in fields:
        metric, unit = VALUES.get(name, (None, 1.0))
        if metric is not None:
            values |= value_of(metric, text, unit)
    return values


def phases(line: Line, found: re.Match[str], texts: dict[Text, str]) -> Iterator[Record]:
    """Return the times of phases of one micro-batch or one step; none if the line times something else."""
    times = PHASE.findall(found[2])
    micro = any(name.endswith("_microstep") for name, _ in times)
    values = {
        PHASE_TIMES[phase]: float(time) / 1000
        for name, time in times
        if (phase := name.removesuffix("_microstep")) in PHASE_TIMES
    }
    if values:
        texts = texts | {Text.variant: "micro-batch" if micro else "step"}
        yield Record(Kind.sample, line.number, values, texts, int(found[1]), line.host)


FORMAT = LineFormat(
    "DeepSpeed",
    "https://github.com/deepspeedai/DeepSpeed/blob/v0.12.3/deepspeed/utils/timer.py",
    parse,
    markers=("SamplesPerSec=", ", skipped=", " iter time (s): ", "OVERFLOW! ", " time (ms) | ", ":print]   "),
)
