"""Trained adapters as files: LitGPT's lit_model.pth.lora with its metadata, and a directory for PEFT.

PEFT adapts q, k and v by themselves, and names modules as Hugging Face's model does; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from jobs.engines.litgpt.arguments import PRECISIONS, lora_arguments
from jobs.engines.litgpt.config import OwnConfig
from jobs.engines.litgpt.hub_config import nearest_architecture
from jobs.engines.litgpt.hub_names import Rotated, source_of
from jobs.engines.litgpt.hub_weights import rotated_last
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.customization.peft_directory import write_peft
from jobs.files import read_json
from jobs.output import write_file
from jobs.runtime.checkpoints.pickles import load_weights
from jobs.schema import Lora, LoraTarget, Mlp, Model, Run

LITGPT_FILE = "lit_model.pth.lora"
QKV = (LoraTarget.query, LoraTarget.key, LoraTarget.value)
"""Parts of attn.qkv, in its order."""


def write_adapters(run: Run, export: Path) -> None:
    """Write what belongs to lit_model.pth.lora in an export: LitGPT's metadata, and PEFT's directory."""
    lora = run.job.lora
    assert lora is not None
    metadata: dict[str, Any] = {
        "checkpoint_dir": run.job.init_from,
        "precision": PRECISIONS[run.job.precision, run.engine.parameters],
        **lora_arguments(lora),
    }
    write_file(export / "hyperparameters.yaml", yaml.safe_dump(metadata))
    # PEFT names q, k and v apart, as Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma 3 and GPT-OSS have them.
    if run.model.mlp is Mlp.GptNeoxMLP:
        return
    # GPT-OSS has the experts of a layer in one tensor, gate and up in turn. PEFT's adapters of tensors
    # (target_parameters) have one A for both, and whether A or B is of the inputs depends on an attribute of
    # transformers' class (is_transposed), so on its version.
    if run.model.swiglu_limit is not None and LoraTarget.mlp in lora.targets:
        return
    adapters = load_weights(export / LITGPT_FILE)["model"]
    named = dict(peft_weights(adapters, run.model, lora, run.job.init_from))
    write_peft(
        export,
        named,
        {
            "peft_type": "LORA",
            "base_model_name_or_path": run.job.init_from,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "target_modules": sorted({name.split(".")[-3] for name in named}),
            "bias": "none",
        },
    )


def rotates_pairs(base: str | None) -> bool:
    """Return whether rows of the model that the adapters are for are rotated as pairs of neighbours."""
    described = Path(base or "") / "config.json"
    return not (base and described.is_file()) or read_json(described).get("rope_interleave", True) is True


def peft_weights(
    adapters: Mapping[str, Tensor], model: Model, lora: Lora, base: str | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield PEFT's names and weights of adapters under LitGPT's names; `base` has the frozen weights."""
    heads, groups = (count * model.head_size for count in (model.heads, model.kv_heads))
    sizes = dict(zip(QKV, (heads, groups, groups), strict=True))
    chosen = [target for target in QKV if target in lora.targets]
    family = nearest_architecture(OwnConfig(**litgpt_fields(model)))[0].name
    pairs = rotates_pairs(base)
    for name, weight in adapters.items():
        module, _, kind = name.rpartition(".")
        source = source_of(f"{module}.weight", family)
        matrix, modules = kind[-1], source.modules
        parts: Sequence[Tensor] = [weight]
        if module.endswith("attn.qkv"):
            modules = tuple(each for target, each in zip(QKV, modules, strict=True) if target in chosen)
            # A (parts * rank, in), B (rows of the parts, rank)
            parts = weight.split(lora.rank if matrix == "A" else [sizes[target] for target in chosen])
            if matrix == "B" and source.rotated is Rotated.heads:
                # Of queries and keys; values are not rotated.
                heads_of = {LoraTarget.query: model.heads, LoraTarget.key: model.kv_heads}
                parts = [
                    rotated_last(part, heads_of[target], model.head_size) if target in heads_of else part
                    for target, part in zip(chosen, parts, strict=True)
                ]
        elif matrix == "B" and source.rotated is not None:
            assert model.latent is not None
            count = model.heads if source.rotated is Rotated.queries else 1
            parts = [rotated_last(weight, count, model.latent.rope_head_size, pairs=pairs)]
        for hugging_face, part in zip(modules, parts, strict=True):
            yield f"base_model.model.{hugging_face.removesuffix('weight')}lora_{matrix}.weight", part.contiguous()
