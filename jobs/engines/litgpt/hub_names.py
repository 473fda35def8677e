"""Weights of Hugging Face's directories under LitGPT's names, one table for reading and for writing.

A weight of LitGPT's is the rows of one or more of Hugging Face's, one after the other: queries, keys and values are one
matrix here. Phi-3 fuses others, of which ours is a part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Rotated(Enum):
    """Rows of matrices that are rotated by their position, in pairs of neighbours: of latent attention, or of heads."""

    queries = "queries"
    """The rotated rows of each head."""
    key = "key"
    """The rows of the one key that all heads share."""
    heads = "heads"
    """All rows of the heads of queries and keys (Llama 4)."""


@dataclass(frozen=True)
class Source:
    """Where a weight of LitGPT's is in a Hugging Face directory."""

    modules: tuple[str, ...]
    """Names of the modules whose rows it is, with {} for the numbers of layer and expert."""
    part: int | None = None
    """Which half of the rows of one module it is, 0 or 1; None: all rows of all modules."""
    of_experts: Stacked | None = None
    """Its place if one tensor has all experts of a layer."""
    rotated: Rotated | None = None
    """Whose rotated rows have another order (jobs.engines.litgpt.hub_weights.rotated_first)."""


@dataclass(frozen=True)
class Stacked:
    """Place of an expert's weight or bias in a tensor of all experts, (experts, in, outputs) or (experts, outputs)."""

    first: int = 0
    """First of its outputs."""
    step: int = 1
    """Distance to the next one: gate and up of GPT-OSS take turns."""
    half: int | None = None
    """Which half of the outputs it is, 0 or 1 (Llama 4), in place of those by `first` and `step`."""
    expert: int = 0
    """Number of the expert."""

    def of(self, of_expert: Tensor) -> Tensor:
        """Return the part of an expert's (in, outputs) or (outputs) that is the weight (out, in) or the bias (out,)."""
        rows = of_expert.movedim(-1, 0)
        return rows[self.first :: self.step] if self.half is None else rows.chunk(2)[self.half]

    def whole(self, part: Tensor, experts: int) -> Tensor:
        """Return an empty tensor of all experts, given the weight or the bias of one."""
        outputs = part.shape[0] * (self.step if self.half is None else 2)
        return part.new_empty(experts, *part.shape[1:], outputs)


def rows_of(*modules: str) -> Source:
    """Return the source of a weight that is all rows of some modules."""
    return Source(modules)


LAYER = "transformer.h.{}."
THEIRS = "model.layers.{}."
COMMON = {
    "lm_head": rows_of("lm_head"),
    "transformer.wte": rows_of("model.embed_tokens"),
    "transformer.ln_f": rows_of("model.norm"),
    f"{LAYER}attn.qkv": rows_of(*(f"{THEIRS}self_attn.{each}_proj" for each in "qkv")),
    f"{LAYER}attn.proj": rows_of(f"{THEIRS}self_attn.o_proj"),
    f"{LAYER}attn.norm_q": rows_of(f"{THEIRS}self_attn.q_norm"),
    f"{LAYER}attn.norm_k": rows_of(f"{THEIRS}self_attn.k_norm"),
    f"{LAYER}mlp.fc_1": rows_of(f"{THEIRS}mlp.gate_proj"),
    f"{LAYER}mlp.fc_2": rows_of(f"{THEIRS}mlp.up_proj"),
    f"{LAYER}mlp.proj": rows_of(f"{THEIRS}mlp.down_proj"),
    f"{LAYER}norm_1": rows_of(f"{THEIRS}input_layernorm"),
    f"{LAYER}norm_2": rows_of(f"{THEIRS}post_attention_layernorm"),
}
PHI3 = {
    f"{LAYER}attn.qkv": rows_of(f"{THEIRS}self_attn.qkv_proj"),
    f"{LAYER}mlp.fc_1": Source((f"{THEIRS}mlp.gate_up_proj",), part=0),
    f"{LAYER}mlp.fc_2": Source((f"{THEIRS}mlp.gate_up_proj",), part=1),
}
AFTER = {
    f"{LAYER}post_attention_norm": rows_of(f"{THEIRS}post_attention_layernorm"),
    f"{LAYER}post_mlp_norm": rows_of(f"{THEIRS}post_feedforward_layernorm"),
}
AROUND = AFTER | {f"{LAYER}norm_2": rows_of(f"{THEIRS}pre_feedforward_layernorm")}


def experts(mixture: str, gate: str, up: str, down: str) -> dict[str, Source]:
    """Return the sources of a router and its experts, by the names of the layer's module and of an expert's."""
    names = {"fc_1": gate, "fc_2": up, "proj": down}
    own = {
        f"{LAYER}mlp.experts.{{}}.{ours}": rows_of(f"{THEIRS}{mixture}.experts.{{}}.{theirs}")
        for ours, theirs in names.items()
    }
    return own | {f"{LAYER}mlp.gate": rows_of(f"{THEIRS}{mixture}.gate")}


def stacked_experts() -> dict[str, Source]:
    """Return the sources of GPT-OSS's sinks, router and experts."""
    theirs = f"{THEIRS}mlp.experts."
    return {
        f"{LAYER}attn": rows_of(f"{THEIRS}self_attn"),
        f"{LAYER}mlp.gate": rows_of(f"{THEIRS}mlp.router"),
        f"{LAYER}mlp.experts.{{}}.fc_1": Source((f"{theirs}gate_up_proj",), of_experts=Stacked(0, 2)),
        f"{LAYER}mlp.experts.{{}}.fc_2": Source((f"{theirs}gate_up_proj",), of_experts=Stacked(1, 2)),
        f"{LAYER}mlp.experts.{{}}.proj": Source((f"{theirs}down_proj",), of_experts=Stacked()),
    }


GATED = ("gate_proj", "up_proj", "down_proj")
DEEPSEEK = {
    **experts("mlp", *GATED),
    **{
        f"{LAYER}mlp.shared_experts.{ours}": rows_of(f"{THEIRS}mlp.shared_experts.{theirs}")
        for ours, theirs in zip(("fc_1", "fc_2", "proj"), GATED, strict=True)
    },
    f"{LAYER}attn.q_proj": Source((f"{THEIRS}self_attn.q_proj",), rotated=Rotated.queries),
    f"{LAYER}attn.q_a_proj": rows_of(f"{THEIRS}self_attn.q_a_proj"),
    f"{LAYER}attn.q_a_norm": rows_of(f"{THEIRS}self_attn.q_a_layernorm"),
    f"{LAYER}attn.q_b_proj": Source((f"{THEIRS}self_attn.q_b_proj",), rotated=Rotated.queries),
    f"{LAYER}attn.kv_a_proj_with_mqa": Source((f"{THEIRS}self_attn.kv_a_proj_with_mqa",), rotated=Rotated.key),
    f"{LAYER}attn.kv_a_norm": rows_of(f"{THEIRS}self_attn.kv_a_layernorm"),
    f"{LAYER}attn.kv_b_proj": rows_of(f"{THEIRS}self_attn.kv_b_proj"),
}
LLAMA4 = {
    f"{LAYER}attn.qkv": replace(COMMON[f"{LAYER}attn.qkv"], rotated=Rotated.heads),
    f"{LAYER}mlp.gate": rows_of(f"{THEIRS}feed_forward.router"),
    f"{LAYER}mlp.experts.{{}}.fc_1": Source(
        (f"{THEIRS}feed_forward.experts.gate_up_proj",), of_experts=Stacked(half=0)
    ),
    f"{LAYER}mlp.experts.{{}}.fc_2": Source(
        (f"{THEIRS}feed_forward.experts.gate_up_proj",), of_experts=Stacked(half=1)
    ),
    f"{LAYER}mlp.experts.{{}}.proj": Source((f"{THEIRS}feed_forward.experts.down_proj",), of_experts=Stacked()),
    **{
        f"{LAYER}mlp.{own}{ours}": rows_of(f"{THEIRS}feed_forward.{own.replace('experts', 'expert')}{theirs}")
        for own in ("", "shared_experts.")
        for ours, theirs in zip(("fc_1", "fc_2", "proj"), GATED, strict=True)
    },
}
OF_FAMILY: Mapping[str, Mapping[str, Source]] = {
    "Llama": {},
    "Llama4": LLAMA4,
    "Mistral": {},
    "Mixtral": experts("block_sparse_moe", "w1", "w3", "w2"),
    "Phi3": PHI3,
    "Qwen2": {},
    "Qwen3": {},
    "Qwen3Moe": experts("mlp", *GATED),
    "DeepseekV2": DEEPSEEK,
    "DeepseekV3": DEEPSEEK,
    "Olmo2": AFTER,
    "Olmo3": AFTER,
    "Gemma2": AROUND,
    "Gemma3": AROUND,
    "GptOss": stacked_experts(),
}
"""Sources that differ from those in COMMON, by family (jobs.plan.model_file.family_of)."""


def source_of(name: str, family: str) -> Source:
    """Return where a weight of LitGPT's is (transformer.h.3.attn.qkv.weight), with the numbers and its kind filled in.

    Raise KeyError if the family has no such weight.
    """
    module, _, kind = name.rpartition(".")
    numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", module)
    source = {**COMMON, **OF_FAMILY[family]}[re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", module)]
    modules = [each.format(*numbers) for each in source.modules]
    if source.of_experts is None:
        return replace(source, modules=tuple(f"{each}.{kind}" for each in modules))
    names = tuple(each if kind == "weight" else f"{each}_{kind}" for each in modules)
    return Source(names, of_experts=replace(source.of_experts, expert=int(numbers[-1])))
