"""NeMo's configuration as YAML: what NeMo 1 prints before a training, and the `model.yaml` of NeMo 2's checkpoints.

A model's numbers have Megatron-core's names. NeMo 2 keeps what a model was made with, and its trainer sets precision
and parallelism later: of them `model.yaml` tells nothing for sure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from analysis.parsers import metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.parsers.megatron import SHAPE
from analysis.untrusted import printed_number
from jobs.metrics import Metric

BANNER = "* Experiment configuration *"
HEADER = "_target_: nemo.collections.llm."
# A log line of NeMo indents the lines after its first.
ENTRY = re.compile(r"^( *)([\w-]+):(?: (.*\S))?\s*$")
ITEM = re.compile(r"^ *- |^\s*$")
Entries = Mapping[str, str]
"""What stands at each place, as in `model.data.data_impl`; of a section the empty text."""

EXPERTS = {
    "num_moe_experts": a.EXPERTS,
    "moe_router_topk": a.EXPERTS_PER_TOKEN,
    "moe_ffn_hidden_size": a.INTERMEDIATE_SIZE,
}
UNTOLD = {"null", "???", ""}
# Of a layer or of the model, with what stands where there is none of it.
UNCOVERED = {
    "multi_latent_attention": "false",
    "is_hybrid_model": "false",
    "mtp_num_layers": "null",
    "moe_shared_expert_intermediate_size": "null",
    "moe_layer_freq": "1",
    "heterogeneous_block_specs": "false",
}
GATED_ACTIVATIONS = {f"{fast}{name}" for fast in ("", "fast-") for name in ("swiglu", "geglu", "reglu")}
# Of a model of NeMo 1, by its trainer's word for precision.
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
# That of GPT's pretraining; what is fine-tuned on has files of its own, and padding.
ONE_STREAM = {"mmap", "lazy", "cached", "mock"}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """The first configuration, as one record of settings."""
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


def of_nemo_1(said: Entries) -> tuple[dict[Metric, float], dict[Text, str]]:
    """A whole experiment: its trainer, its model and the data that decides whether samples are padded."""
    values, extra = shape(below(said, "model"))
    for place, metric in RUN.items():
        if (number := printed_number(said.get(place, ""))) is not None and number > 0:
            values[metric] = number
    if a.NODES in values and a.RANKS_PER_NODE in values:
        values[a.RANKS] = values[a.NODES] * values[a.RANKS_PER_NODE]
    if said.get("model.rampup_batch_size", "null") not in UNTOLD:
        values.pop(a.GLOBAL_BATCH_SIZE, None)
    if a.LAYERS in values:
        values[a.GATED] = float(said.get("model.activation") in GATED_ACTIVATIONS)
    if said.get("model.data.data_impl") in ONE_STREAM:
        values[a.FULL_SAMPLES] = 1.0
    adapters = said.get("model.peft.peft_scheme", "null")
    dimension = printed_number(said.get("model.peft.lora_tuning.adapter_dim", ""))
    if adapters == "lora" and dimension is not None:
        values[a.LORA_RANK] = dimension
    elif adapters not in UNTOLD:
        extra.append(f"peft_scheme {adapters}")
    precision = said.get("trainer.precision", "")
    if said.get("model.fp8", "false") not in {"false", *UNTOLD}:
        precision = "fp8"
    texts = {Text.precision: PRECISIONS.get(precision, precision)} if precision not in UNTOLD else {}
    return values, texts | ({Text.uncovered: ", ".join(extra)} if extra else {})


def of_nemo_2(said: Entries) -> tuple[dict[Metric, float], dict[Text, str]]:
    """A model, and whether it has adapters."""
    model = below(said, "config")
    values, extra = shape(model)
    values[a.GATED] = float(model.get("gated_linear_unit") == "true")
    if (length := printed_number(model.get("seq_length", ""))) is not None:
        values[a.SEQUENCE_LENGTH] = length
    if said.get("model_transform", "null") != "null":
        extra.append("model_transform")
    return values, {Text.uncovered: ", ".join(extra)} if extra else {}


def below(said: Entries, section: str) -> Entries:
    """The entries right below a section, by their names."""
    return {
        place.removeprefix(f"{section}."): value for place, value in said.items() if place.startswith(f"{section}.")
    }


def shape(model: Entries) -> tuple[dict[Metric, float], list[str]]:
    """The model's numbers, and what it has that the formula of FLOPs does not cover."""
    dense = model.get("num_moe_experts", "null") in {"1", *UNTOLD}
    told = {metric: printed_number(model.get(name, "")) for name, metric in SHAPE.items()}
    told |= {
        metric: number
        for name, metric in ({} if dense else EXPERTS).items()
        if (number := printed_number(model.get(name, ""))) is not None
    }
    values = {metric: number for metric, number in told.items() if number is not None and number > 0}
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
    # Of Lightning, as soon as the trainer is made.
    section_end=("GPU available: ",),
    is_header=lambda header: header.startswith(HEADER),
)
