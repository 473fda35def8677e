"""Megatron-LM and its forks: ` iteration 122/ 250000 | consumed samples: 124928 | ... |`, one line per logged step.

A line contains means over the steps since the previous line. Forks add fields and misspell others; since core 0.5 a
time precedes the line, and Primus prints `this line/mean of the run`. Other lines: arguments, timers, memory per rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import log_metrics as a
from analysis.parsers.base import RESUMED, SAVED, Kind, Line, LineFormat, Names, Record, Text, numbers, value_of
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

# NeMo 2 prints "Training epoch 0, iteration 5/99 | ...".
STEP = re.compile(r"(?<!, )\biteration +(\d{1,12})/ *(\d{1,12}) \|(.*)")
# GPT-NeoX prints its rate before the iteration, and no batch.
NEOX_RATE = re.compile(r"\bsamples/sec: (\d{1,9}\.\d{1,6}) \| $")
# A field is complete only with its closing bar: a torn line ends within a number.
FIELD = re.compile(r" *([^:|]+?) *: *([^|]*?) *\|")
VALIDATION = re.compile(r"\bvalidation loss at iteration +(\d{1,12}) .*?\| lm loss value: *(\S+) *\|")
TIMERS = re.compile(r"^time \(ms\) \| (.*)")
TIMER = re.compile(r"([\w -]{1,60}): (\d{1,12}\.\d\d)(?!\d)")
# Since core 0.2: one line per timer, `(fastest, slowest rank)`.
TIMER_OF_RANKS = re.compile(r"^ {4}([\w-]+) \.{3,}: \(\d{1,12}\.\d\d, (\d{1,12}\.\d\d)\)")
# Ranks print at the same time: a line may contain several.
MEMORY = re.compile(
    r"\[Rank (\d{1,6})\] \(after (\d{1,12}) iterations\) memory \(MB\) \| allocated: (\d{1,9}\.\d+) \| "
    r"max allocated: (\d{1,9}\.\d+) \| reserved: \d+\.\d+ \| max reserved: (\d{1,9}\.\d+)"
)
# Straggler detector (megatron/core/README_STRAGGLER.md): minimum and maximum time of a rank in forward passes.
DETECTED = re.compile(r"\| MnRtt/Rnk: (\d{1,9}\.\d+)ms/(\d{1,6}) \| MxRtt/Rnk: (\d{1,9}\.\d+)ms/(\d{1,6}) \|")
FASTEST_RANK, SLOWEST_RANK = "fastest rank", "slowest rank"
EFFECTIVE = re.compile(r"\bEffective Tera Flops per GPU: ([\d.]{1,12}) and total parameters ([\d.]{1,12}) B\b")
ARGUMENT = re.compile(r"(?:^ ?|\] :  ) (\w+) \.{3,} (\S+)\s*$")  # the prefix of a rank may have taken a blank
VALUES: Names = {
    "consumed samples": (a.SAMPLES_DONE, 1),
    "consumed tokens": (a.TOKENS_DONE, 1),
    "elapsed time per iteration (ms)": (m.STEP_TIME, 1e-3),
    "elapsed time per iteration (s)": (m.STEP_TIME, 1),
    "learning rate": (m.LEARNING_RATE, 1),
    "global batch size": (a.GLOBAL_BATCH_SIZE, 1),
    "gloabl batch size": (a.GLOBAL_BATCH_SIZE, 1),
    "lm loss": (m.LOSS, 1),
    "lm-loss": (m.LOSS, 1),
    "lm_loss": (m.LOSS, 1),
    "loss scale": (m.LOSS_SCALE, 1),
    "grad norm": (m.GRADIENT_NORM, 1),
    "actual seqlen": (a.SEQUENCE_LENGTH, 1),
    "number of skipped iterations": (a.SKIPPED_STEPS, 1),
    "number of nan iterations": (a.NAN_STEPS, 1),
    "samples per second": (a.SAMPLES_PER_S, 1),
    "approx flops per GPU": (a.FLOPS_PER_S_PER_RANK, 1e12),
    "TFLOPs": (a.FLOPS_PER_S_PER_RANK, 1e12),
    "throughput per GPU (TFLOP/s/GPU)": (a.FLOPS_PER_S_PER_RANK, 1e12),
    "tokens per GPU (tokens/s/GPU)": (m.TOKENS_PER_S_PER_RANK, 1),
}
DEVICE_MEMORY = "hip mem usage/free/total/usage_ratio"
DEVICE_MEMORY_SIZES = re.compile(r"([\d.]{1,9})GB/[\d.]+GB/([\d.]{1,9})GB/")
TIMES = {
    "forward": a.FORWARD_TIME,
    "forward-compute": a.FORWARD_TIME,
    "backward": a.BACKWARD_TIME,
    "backward-compute": a.BACKWARD_TIME,
    "backward-allreduce": a.GRADIENT_REDUCTION_TIME,
    "backward-params-all-reduce": a.GRADIENT_REDUCTION_TIME,
    "all-grads-sync": a.GRADIENT_REDUCTION_TIME,
    "optimizer": a.OPTIMIZER_TIME,
    "batch-generator": a.DATA_TIME,
    "batch generator": a.DATA_TIME,
}
END_OF_ARGUMENTS = "end of arguments"
VOCABULARY = re.compile(r"> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d{1,12})\)")
# Newer versions print " [ t 1/2, p 1/2 ]" between.
LOADED = re.compile(r"\bsuccessfully loaded checkpoint from (\S+) (?:\[[^\]]*\] )?at iteration (\d{1,12})")
WROTE = re.compile(r"\bsuccessfully saved checkpoint (?:at|from) iteration +(\d{1,12}) to (\S+)")
SHAPE = {
    "num_layers": a.LAYERS,
    "hidden_size": a.HIDDEN_SIZE,
    "num_attention_heads": a.HEADS,
    "kv_channels": a.HEAD_SIZE,
    "ffn_hidden_size": a.INTERMEDIATE_SIZE,
    "padded_vocab_size": a.VOCABULARY_SIZE,
}
EXPERTS = {
    "num_experts": a.EXPERTS,
    "moe_router_topk": a.EXPERTS_PER_TOKEN,
    "moe_ffn_hidden_size": a.INTERMEDIATE_SIZE,
}
# Arguments of a layer or of the model, with their values for "none".
UNCOVERED = {
    "multi_latent_attention": "False",
    "mtp_num_layers": "None",
    "hybrid_override_pattern": "None",
    "moe_shared_expert_intermediate_size": "None",
    "moe_layer_freq": "1",
    "glu_activation": "None",
    "decoder_num_layers": "None",
}
SHAPE_SWITCHES = ("group_query_attention", "num_query_groups", "swiglu", "untie_embeddings_and_output_weights")
PADDED_FROM = ("vocab_size", "make_vocab_size_divisible_by", "tensor_model_parallel_size")
SHAPE_WORDS = {*SHAPE, *EXPERTS, *UNCOVERED, *SHAPE_SWITCHES, *PADDED_FROM}
ARGUMENTS = {
    "world_size": a.RANKS,
    "data_parallel_size": a.DATA_PARALLEL_SIZE,
    "tensor_model_parallel_size": a.TENSOR_PARALLEL_SIZE,
    "pipeline_model_parallel_size": a.PIPELINE_PARALLEL_SIZE,
    "context_parallel_size": a.CONTEXT_PARALLEL_SIZE,
    "expert_model_parallel_size": a.EXPERT_PARALLEL_SIZE,
    "global_batch_size": a.GLOBAL_BATCH_SIZE,
    "micro_batch_size": a.MICRO_BATCH_SIZE,
    "seq_length": a.SEQUENCE_LENGTH,
    "train_iters": a.PLANNED_STEPS,
    "seed": a.SEED,
}
# Besides times and rates: metrics for which 0 or less is a placeholder.
POSITIVE = {a.GLOBAL_BATCH_SIZE, a.SEQUENCE_LENGTH, m.LOSS_SCALE}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return steps, validations, timers, memory and arguments."""
    arguments: dict[str, str] = {}
    for line in lines:
        if found := STEP.search(line.text):
            values = {m.STEP: float(found[1]), a.PLANNED_STEPS: float(found[2]), **fields(found[3])}
            values |= of_neox(line.text[: found.start()], values)
            stamp = re.search(r"\[(\d{4}-\d\d-\d\d [\d:]{8})\]", line.text[: found.start()])
            texts = {Text.timestamp: stamp[1]} if stamp else {}
            yield Record(Kind.step, line.number, values, texts, line.rank, line.host)
        elif found := VALIDATION.search(line.text):
            values = {m.STEP: float(found[1])} | value_of(m.EVALUATION_LOSS, found[2])
            yield Record(Kind.evaluation, line.number, values, {}, line.rank, line.host)
        elif found := ARGUMENT.search(line.text):
            values, texts = argument(found[1], found[2])
            if found[1] in SHAPE_WORDS:
                arguments[found[1]] = found[2]
            if values or texts:
                yield Record(Kind.setting, line.number, values, texts, line.rank, line.host)
        elif END_OF_ARGUMENTS in line.text and "num_layers" in arguments:
            values, texts = shape(arguments)
            arguments = {}
            yield Record(Kind.setting, line.number, values, texts, line.rank, line.host)
        elif found := VOCABULARY.search(line.text):
            yield Record(Kind.setting, line.number, {a.VOCABULARY_SIZE: float(found[1])}, {}, line.rank, line.host)
        elif found := LOADED.search(line.text):
            texts = {Text.event: RESUMED, Text.checkpoint: found[1]}
            yield Record(Kind.event, line.number, {m.STEP: float(found[2])}, texts, line.rank, line.host)
        elif found := WROTE.search(line.text):
            texts = {Text.event: SAVED, Text.checkpoint: found[2]}
            yield Record(Kind.event, line.number, {m.STEP: float(found[1])}, texts, line.rank, line.host)
        else:
            yield from readings(line)


def fields(text: str) -> dict[Metric, float]:
    """Return the numbers of a line by metric; the first of Primus's pairs."""
    reported = dict(FIELD.findall(text))
    known = numbers(
        ((name, value.partition("/")[0].removesuffix("TFLOPS")) for name, value in reported.items()), VALUES
    )
    values = {metric: value for metric, value in known.items() if value > 0 or metric not in POSITIVE}
    if sizes := DEVICE_MEMORY_SIZES.match(reported.get(DEVICE_MEMORY, "")):
        used, total = (printed_number(size) for size in sizes.groups())
        if used and total:
            values |= {a.DEVICE_MEMORY_USED: used * 2**30, a.DEVICE_MEMORY: total * 2**30}
    return values


def of_neox(before: str, values: Mapping[Metric, float]) -> dict[Metric, float]:
    """Return GPT-NeoX's rate, and the global batch if rate times step time is near one whole number only."""
    found = NEOX_RATE.search(before)
    rate = printed_number(found[1]) if found else None
    if not rate:
        return {}
    samples = rate * values.get(m.STEP_TIME, 0.0)
    # Both are rounded to a thousandth or less, so the product of a batch of up to a hundred is exact to a tenth.
    whole = round(samples)
    near = whole > 0 and abs(samples - whole) <= 1e-3 * samples + 0.05 and samples < 400
    return {a.SAMPLES_PER_S: rate} | ({a.GLOBAL_BATCH_SIZE: float(whole)} if near else {})


def argument(name: str, reported: str) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return the setting in a line of the table of arguments, if it has a metric or text here."""
    if name == "params_dtype":
        return {}, {Text.precision: reported.removeprefix("torch.")}
    if name == "fp8" and reported not in {"None", "False"}:
        return {}, {Text.precision: f"fp8 {reported}"}
    value = printed_number(reported) if name in ARGUMENTS else None
    return ({} if value is None else {ARGUMENTS[name]: value}), {}


def shape(reported: Mapping[str, str]) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return the model of a whole table of arguments; features that a version lacks have no argument."""
    names = SHAPE if reported.get("num_experts", "None") in {"None", "[1]"} else SHAPE | EXPERTS
    known = {metric: printed_number(reported.get(name, "")) for name, metric in names.items()}
    values = {metric: value for metric, value in known.items() if value is not None and value > 0}
    grouped = (
        printed_number(reported.get("num_query_groups", ""))
        if reported.get("group_query_attention") == "True"
        else None
    )
    if (heads := grouped or values.get(a.HEADS)) is not None:
        values[a.KV_HEADS] = heads
    values[a.GATED] = float(reported.get("swiglu") == "True")
    values[a.TIED_EMBEDDINGS] = float(reported.get("untie_embeddings_and_output_weights") != "True")
    values = defaults(reported, values) | values
    extra = [f"{name} {reported[name]}" for name, none in UNCOVERED.items() if reported.get(name, none) != none]
    return values, {Text.uncovered: ", ".join(extra)} if extra else {}


def defaults(reported: Mapping[str, str], values: Mapping[Metric, float]) -> dict[Metric, float]:
    """Return the sizes that Megatron-LM derives from others, for tables without them.

    Versions before the argument ffn_hidden_size, which came with kv_channels, have an inner width of 4 x hidden size;
    where a newer table lacks it, its line was lost. The vocabulary is padded to a multiple for each tensor rank.
    """
    found: dict[Metric, float] = {}
    hidden = values.get(a.HIDDEN_SIZE)
    vocabulary, multiple, tensor = (printed_number(reported.get(name, "")) for name in PADDED_FROM)
    if hidden and reported.keys().isdisjoint({"kv_channels", "swiglu"}):
        found[a.INTERMEDIATE_SIZE] = 4 * hidden
    if vocabulary and multiple and tensor:
        found[a.VOCABULARY_SIZE] = math.ceil(vocabulary / (multiple * tensor)) * multiple * tensor
    return found


def readings(line: Line) -> Iterator[Record]:
    """Return timers, memory and FLOP/s, which have lines of their own."""
    times = TIMER.findall(found[1]) if (found := TIMERS.match(line.text)) else TIMER_OF_RANKS.findall(line.text)
    if values := {TIMES[name.strip()]: float(time) / 1000 for name, time in times if name.strip() in TIMES}:
        yield Record(Kind.sample, line.number, values, {Text.variant: "step"}, line.rank, line.host)
    for rank, step, allocated, most, reserved in MEMORY.findall(line.text):
        values = {
            m.STEP: float(step),
            a.MEMORY_ALLOCATED: float(allocated) * 2**20,
            m.MEMORY_PEAK: float(most) * 2**20,
            m.MEMORY_RESERVED_PEAK: float(reserved) * 2**20,
        }
        yield Record(Kind.sample, line.number, values, {}, int(rank), line.host)
    if found := DETECTED.search(line.text):
        for which, time_ms, rank in ((FASTEST_RANK, found[1], found[2]), (SLOWEST_RANK, found[3], found[4])):
            values = {a.FORWARD_TIME: float(time_ms) / 1000}
            yield Record(Kind.sample, line.number, values, {Text.variant: which}, int(rank))
    if found := EFFECTIVE.search(line.text):
        rate, size = printed_number(found[1]), printed_number(found[2])
        if rate and size:
            values = {a.FLOPS_PER_S_PER_RANK: rate * 1e12, a.PARAMETERS: size * 1e9}
            yield Record(Kind.sample, line.number, values, {}, line.rank, line.host)


FORMAT = LineFormat(
    "Megatron-LM",
    "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/training.py (training_log)",
    parse,
    markers=(
        " iteration ",
        "lm loss value:",
        "time (ms) | ",
        "...: (",
        " memory (MB) | ",
        "Effective Tera Flops",
        END_OF_ARGUMENTS,
        "successfully loaded checkpoint from ",
        "successfully saved checkpoint ",
        "> padded vocab (size: ",
        "| MnRtt/Rnk: ",
        *(f"  {name} ." for name in ("params_dtype", "fp8", *ARGUMENTS, *sorted(SHAPE_WORDS))),
    ),
)
