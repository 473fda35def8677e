"""Convert a LitGPT directory to Hugging Face's layout, for servers that read no other.

`python -m jobs.work.serve.conversion LITGPT_DIRECTORY NEW_DIRECTORY`, a process of its own: it needs torch and LitGPT.
The weights of ARCHITECTURES are renamed by LitGPT's own functions.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from litgpt.config import Config
from litgpt.scripts.convert_lit_checkpoint import (
    copy_weights_gemma_3,
    copy_weights_llama,
    copy_weights_olmo2,
    copy_weights_qwen_3,
)
from safetensors.torch import save_file

from jobs.data.tokenizer import GENERATION_CONFIG, read_json, special_tokens, tokenizer_files
from jobs.errors import ConfigError
from jobs.files import opened, read_yaml
from jobs.output import own_program
from jobs.work.serve.weights import LITGPT_CONFIG, LITGPT_WEIGHTS


def convert(source: Path, target: Path) -> None:
    """Convert a LitGPT directory; the target appears when it is complete.

    Raise ConfigError for an architecture that is not among ARCHITECTURES.
    """
    # LitGPT's reader would wait for a FIFO, and expand aliases without a limit.
    read_yaml(source / LITGPT_CONFIG)
    config = Config.from_file(source / LITGPT_CONFIG)
    architecture = architecture_of(config, source)
    described = config_json(config, architecture)
    # The file stays mapped, so that its weights are in memory once.
    opened(source / LITGPT_WEIGHTS).close()
    loaded = torch.load(source / LITGPT_WEIGHTS, map_location="cpu", mmap=True, weights_only=True)
    weights: dict[str, torch.Tensor] = {}
    architecture.renames(config, weights, loaded.get("model", loaded))
    if torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]):
        # Servers keep one matrix then, and of some architectures refuse two.
        del weights["lm_head.weight"]
        described["tie_word_embeddings"] = True
    described["torch_dtype"] = str(weights["model.norm.weight"].dtype).removeprefix("torch.")
    aside = target.with_name(f"{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
    files = tokenizer_files(source)
    for name, file in files.items():
        shutil.copyfile(file, aside / name)
    tokens = token_ids(files)
    (aside / "config.json").write_text(json.dumps(described | tokens, indent=2))
    given = read_json(files[GENERATION_CONFIG], strict=False) if GENERATION_CONFIG in files else {}
    (aside / GENERATION_CONFIG).write_text(json.dumps(given | tokens, indent=2))
    aside.rename(target)


def token_ids(files: dict[str, Path]) -> dict[str, Any]:
    """Return the special tokens by Hugging Face's keys, null for those that the tokenizer does not have.

    Without a key transformers takes Llama's own ids, 1 and 2, which are other tokens of most vocabularies.
    """
    tokens = special_tokens(files)
    ends = tokens.ends if len(tokens.ends) > 1 else tokens.ends[0]
    return {"bos_token_id": tokens.bos_id, "eos_token_id": ends, "pad_token_id": tokens.pad_id}


@dataclass(frozen=True)
class Architecture:
    """An architecture of Hugging Face's, and how LitGPT describes it."""

    name: str
    """Begin of its class."""
    kind: str
    """Its model_type."""
    renames: Callable[..., None]
    """LitGPT's function from its names of weights to Hugging Face's."""
    differing: Mapping[str, Any]
    """Fields of LitGPT's configuration that differ from PLAIN's; ANY: in their value."""
    keys: Callable[[Any], dict[str, Any]]
    """Keys of config.json besides common ones, from LitGPT's configuration."""


ANY = object()
# Fields of LitGPT's configuration that decide arithmetic, as Llama has them.
PLAIN: dict[str, Any] = {
    "norm_class_name": "RMSNorm",
    "mlp_class_name": "LLaMAMLP",
    "parallel_residual": False,
    "bias": False,
    "attn_bias": False,
    "norm_qk": False,
    "norm_qk_type": "default",
    "norm_1": True,
    "norm_2": True,
    "post_attention_norm": False,
    "post_mlp_norm": False,
    "rotary_percentage": 1.0,
    "rope_local_base_freq": None,
    "sliding_window_size": None,
    "attention_scores_scalar": None,
    "attention_logit_softcapping": None,
    "final_logit_softcapping": None,
    "scale_embeddings": False,
    "moe_intermediate_size": None,
}


def copy_weights_of_olmo2(config: Any, found: dict[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
    """Rename weights by LitGPT's function, which expects the norm after attention under the name of another one."""
    copy_weights_olmo2(
        config, found, {name.replace("post_attention_norm", "norm_2"): weight for name, weight in weights.items()}
    )


def no_keys(_config: Any) -> dict[str, Any]:
    """Return the keys of a model without further ones."""
    return {"hidden_act": "silu"}


def mixtral_keys(config: Any) -> dict[str, Any]:
    """Return the keys of Mixtral's experts."""
    experts = {"num_local_experts": config.n_expert, "num_experts_per_tok": config.n_expert_per_token}
    return {"hidden_act": "silu", **experts}


def qwen3_moe_keys(config: Any) -> dict[str, Any]:
    """Return the keys of Qwen 3's experts; LitGPT's router normalizes the weights of the chosen ones."""
    return {
        "hidden_act": "silu",
        "num_experts": config.n_expert,
        "num_experts_per_tok": config.n_expert_per_token,
        "moe_intermediate_size": config.moe_intermediate_size or config.intermediate_size,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def gemma3_keys(config: Any) -> dict[str, Any]:
    """Return the keys of Gemma 3's layers with and without sliding windows."""
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config.attention_scores_scalar or config.head_size,
        **window_keys(config),
        "rope_local_base_freq": float(config.rope_local_base_freq),
    }


def olmo3_keys(config: Any) -> dict[str, Any]:
    """Return the keys of OLMo 3's layers, whose rotary scaling is that of layers without a window."""
    return {"hidden_act": "silu", **window_keys(config)}


def window_keys(config: Any) -> dict[str, Any]:
    """Return the keys of layers with and without sliding windows."""
    kinds = ("full_attention", "sliding_attention")
    return {
        "sliding_window": config.sliding_window_size,
        "layer_types": [kinds[has_window] for has_window in config.sliding_window_indices],
    }


GEMMA3 = dict.fromkeys(("sliding_window_size", "rope_local_base_freq", "attention_scores_scalar"), ANY) | {
    "mlp_class_name": "GemmaMLP", "norm_qk": True, "post_attention_norm": True, "post_mlp_norm": True,
    "scale_embeddings": True,
}  # fmt: skip
OLMO2 = {
    "norm_qk": True, "norm_qk_type": "olmo2", "norm_1": False, "norm_2": False, "post_attention_norm": True,
    "post_mlp_norm": True,
}  # fmt: skip
OLMO3 = OLMO2 | {"sliding_window_size": ANY, "rope_local_base_freq": ANY}
EXPERTS = {"mlp_class_name": "LLaMAMoE"}
ARCHITECTURES = (
    Architecture("Llama", "llama", copy_weights_llama, {}, no_keys),
    Architecture("Mixtral", "mixtral", copy_weights_llama, EXPERTS, mixtral_keys),
    Architecture("Qwen3", "qwen3", copy_weights_qwen_3, {"norm_qk": True}, no_keys),
    Architecture(
        "Qwen3Moe",
        "qwen3_moe",
        copy_weights_qwen_3,
        EXPERTS | {"norm_qk": True, "moe_intermediate_size": ANY},
        qwen3_moe_keys,
    ),
    Architecture("Olmo2", "olmo2", copy_weights_of_olmo2, OLMO2, no_keys),
    Architecture("Olmo3", "olmo3", copy_weights_of_olmo2, OLMO3, olmo3_keys),
    Architecture("Gemma3", "gemma3_text", copy_weights_gemma_3, GEMMA3, gemma3_keys),
)


def architecture_of(config: Any, source: Path) -> Architecture:
    """Return the architecture of a LitGPT configuration, whose fields LitGPT sets by name."""

    def differing(architecture: Architecture) -> list[str]:
        wanted = {**PLAIN, **architecture.differing}
        return [
            f"{name}={getattr(config, name)}"
            for name, value in wanted.items()
            if value is not ANY and getattr(config, name) != value
        ]

    nearest = min(ARCHITECTURES, key=lambda each: len(differing(each)))
    if others := differing(nearest):
        raise ConfigError(
            f"{source} is of no architecture that can be converted ({', '.join(each.name for each in ARCHITECTURES)}); "
            f"from {nearest.name} it differs by {', '.join(others)}. Set job.init_from to the model in Hugging Face's "
            "layout."
        )
    return nearest


def config_json(config: Any, architecture: Architecture) -> dict[str, Any]:
    """Return Hugging Face's description of a LitGPT configuration."""
    found = {
        "architectures": [f"{architecture.name}ForCausalLM"],
        "model_type": architecture.kind,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_query_groups,
        "head_dim": config.head_size,
        "hidden_size": config.n_embd,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.padded_vocab_size,
        "max_position_embeddings": config.block_size,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": float(config.rope_base),
        "tie_word_embeddings": False,
        **architecture.keys(config),
    }
    if config.rope_adjustments:
        names = {"original_max_seq_len": "original_max_position_embeddings", "yarn_factor": "factor"}
        names["round_limits"] = "truncate"
        scaling = {names.get(name, name): value for name, value in config.rope_adjustments.items()}
        yarn, llama = "beta_fast" in scaling, "low_freq_factor" in scaling
        found["rope_scaling"] = {"rope_type": "yarn" if yarn else "llama3" if llama else "linear", **scaling}
    return found


if __name__ == "__main__":
    with own_program():
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
