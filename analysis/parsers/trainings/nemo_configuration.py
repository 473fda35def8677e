"""NeMo's configuration as YAML: printed by NeMo 1 before a training, and `model.yaml` of NeMo 2's checkpoints.

Numbers of a model have Megatron-core's names. NeMo 2 writes the arguments of the model, and its trainer sets precision
and parallelism later: `model.yaml` does not state them reliably.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.parsers.trainings.megatron import SHAPE
from analysis.untrusted import printed_number
from jobs.metrics import Metric

BANNER = "* Experiment configuration *"
HEADER = "_target_: nemo.collections.llm."
# NeMo's logger indents all lines of a message after the first.
ENTRY = re.compile(r"^( *)([\w-]+):(?: (.*\S))?\s*$")
ITEM = re.compile(r"^ *- |^\s*$")
Entries = Mapping[str, str]
"""Value at each place, such as `model.data.data_impl`; the empty text for a section."""

EXPERTS = {
    "num_moe_experts": a.EXPERTS,
    "moe_router_topk": a.EXPERTS_PER_TOKEN,
    "moe_ffn_hidden_size": a.INTERMEDIATE_SIZE,
}
UNKNOWN = {"null", "???", ""}
# Settings of a layer or of the model, with their values for "none".
UNCOVERED = {
    "multi_latent_attention": "false",
    "is_hybrid_model": "false",
    "mtp_num_layers": "null",
    "moe_shared_expert_intermediate_size": "null",
    "moe_layer_freq": "1",
    "heterogeneous_block_specs": "false",
}
GATED_ACTIVATIONS = {f"{fast}{name}" for fast in ("", "fast-") for name in ("swiglu", "geglu", "reglu")}
# Precision of a model of NeMo 1, by the trainer's name for it.
PRECISIONS = {"16": "fp16", "32": "float32", "32-true": "float32"}
RUN = {
    "trainer.num_nodes": a.NODES,
    "trainer.devices": a.RANKS_PER_NODE,
    "trainer.max_steps": a.PLANNED_STEPS,
    "model.micro_batch_size": a.MICRO_BATCH_SIZE,
    "model.global_batch_size": a.GLOBAL_BATCH_SIZE,
    "model.tensor_model_parallel_size": a.TENSOR_PARALLEL_SIZE,
    "model.pipeline_model_parallel_size": a.PIPELINE_PARALLEL_SIZE,
    "model.context_parallel_size": a.CONTEXT_PARALLEL_SIZE,
    "model.expert_model_parallel_size": a.EXPERT_PARALLEL_SIZE,
    "model.encoder_seq_length": a.SEQUENCE_LENGTH,
    "model.data.seq_length": a.SEQUENCE_LENGTH,
    "model.seed": a.SEED,
}
# Data of GPT pretraining, without padding; fine-tuning has other files, with padding.
ONE_STREAM = {"mmap", "lazy", "cached", "mock"}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the first configuration as one record of settings."""
    begin: Line | None = None
    entries: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in lines:
        if begin is None and (BANNER in line.text or line.text.startswith(HEADER)):
            begin = line
        if begin is None:
            continue
        found = ENTRY.match(line.text)
        if found:
            depth = len(found[1])
            above = [section for section in above if section[0] < depth] + [(depth, found[2])]
            entries.setdefault(".".join(name for _, name in above), (found[3] or "").strip("'\""))
        elif entries and not ITEM.match(line.text):
            break
    if begin is not None:
        values, texts = of_nemo_2(entries) if "config.num_layers" in entries else of_nemo_1(entries)
        if values:
            yield Record(Kind.setting, begin.number, values, texts)


def of_nemo_1(entries: Entries) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return values and texts of an experiment: trainer, model, and the data, which decides if samples are padded."""
    values, extra = shape(below(entries, "model"))
    for place, metric in RUN.items():
        if (number := printed_number(entries.get(place, ""))) is not None and number > 0:
            values[metric] = number
    if a.NODES in values and a.RANKS_PER_NODE in values:
        values[a.RANKS] = values[a.NODES] * values[a.RANKS_PER_NODE]
    if entries.get("model.rampup_batch_size", "null") not in UNKNOWN:
        values.pop(a.GLOBAL_BATCH_SIZE, None)
    if a.LAYERS in values:
        values[a.GATED] = float(entries.get("model.activation") in GATED_ACTIVATIONS)
    if entries.get("model.data.data_impl") in ONE_STREAM:
        values[a.FULL_SAMPLES] = 1.0
    adapters = entries.get("model.peft.peft_scheme", "null")
    dimension = printed_number(entries.get("model.peft.lora_tuning.adapter_dim", ""))
    if adapters == "lora" and dimension is not None:
        values[a.LORA_RANK] = dimension
    elif adapters not in UNKNOWN:
        extra.append(f"peft_scheme {adapters}")
    precision = entries.get("trainer.precision", "")
    if entries.get("model.fp8", "false") not in {"false", *UNKNOWN}:
        precision = "fp8"
    texts = {Text.precision: PRECISIONS.get(precision, precision)} if precision not in UNKNOWN else {}
    return values, texts | ({Text.uncovered: ", ".join(extra)} if extra else {})


def of_nemo_2(entries: Entries) -> tuple[dict[Metric, float], dict[Text, str]]:
    """Return values and texts of a model, and if it has adapters."""
    model = below(entries, "config")
    values, extra = shape(model)
    values[a.GATED] = float(model.get("gated_linear_unit") == "true")
    if (length := printed_number(model.get("seq_length", ""))) is not None:
        values[a.SEQUENCE_LENGTH] = length
    if entries.get("model_transform", "null") != "null":
        extra.append("model_transform")
    return values, {Text.uncovered: ", ".join(extra)} if extra else {}


def below(entries: Entries, section: str) -> Entries:
    """Return the entries below a section by their names."""
    return {
        place.removeprefix(f"{section}."): value for place, value in entries.items() if place.startswith(f"{section}.")
    }


def shape(model: Entries) -> tuple[dict[Metric, float], list[str]]:
    """Return the numbers of the model, and its parts that the FLOPs formula does not cover."""
    dense = model.get("num_moe_experts", "null") in {"1", *UNKNOWN}
    known = {metric: printed_number(model.get(name, "")) for name, metric in SHAPE.items()}
    known |= {
        metric: number
        for name, metric in ({} if dense else EXPERTS).items()
        if (number := printed_number(model.get(name, ""))) is not None
    }
    values = {metric: number for metric, number in known.items() if number is not None and number > 0}
    grouped = printed_number(model.get("num_query_groups", ""))
    if a.LAYERS in values:
        if (heads := grouped or values.get(a.HEADS)) is not None:
            values[a.KV_HEADS] = heads
        values[a.TIED_EMBEDDINGS] = float(model.get("share_embeddings_and_output_weights", "true") == "true")
    return values, [
        f"{name} {model[name]}" for name, none in UNCOVERED.items() if model.get(name, none) not in {none, ""}
    ]


FORMAT = LineFormat(
    "NeMo configuration",
    "https://github.com/NVIDIA/NeMo/blob/v1.23.0/examples/nlp/language_modeling/megatron_gpt_pretraining.py (main)",
    parse,
    section_start=(BANNER,),
    # Printed by Lightning when the trainer is created.
    section_end=("GPU available: ",),
    is_header=lambda header: header.startswith(HEADER),
)
