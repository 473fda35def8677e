"""Convert the directory of a model between LitGPT's layout and Hugging Face's: `slurmscale convert`.

`python -m jobs.work.serve.conversion DIRECTORY NEW_DIRECTORY` does it in a process of its own, before a server starts.
It needs torch and LitGPT. The weights are renamed by jobs.engines.litgpt.hub_names.
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
import yaml
from huggingface_hub import save_torch_state_dict

from jobs.data.tokenizer import GENERATION_CONFIG, read_json, special_tokens, tokenizer_files
from jobs.engines.litgpt.config import OwnConfig
from jobs.engines.litgpt.hub_names import source_of
from jobs.engines.litgpt.hub_weights import HubDirectory
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native.model import empty_model
from jobs.errors import ConfigError
from jobs.files import opened, read_yaml
from jobs.output import own_program, write_file
from jobs.plan.model_file import SWIGLU_LIMIT, from_config_json
from jobs.runtime.checkpoint_directory import save_archive
from jobs.work.serve.weights import LITGPT_CONFIG, LITGPT_WEIGHTS


def convert(source: Path, target: Path) -> None:
    """Convert a LitGPT directory to Hugging Face's layout, or the other way; the target appears when it is complete.

    Raise ConfigError for an architecture that is not among ARCHITECTURES, CheckpointError for other weights.
    """
    aside = target.with_name(f"{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(mode=0o700)
        writes = to_hugging_face if (source / LITGPT_WEIGHTS).exists() else to_litgpt
        writes(source, aside)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def to_hugging_face(source: Path, target: Path) -> None:
    """Write a LitGPT directory in Hugging Face's layout, into a directory that exists."""
    # LitGPT's reader would wait for a FIFO, and expand aliases without a limit.
    read_yaml(source / LITGPT_CONFIG)
    config = OwnConfig.from_file(source / LITGPT_CONFIG)
    architecture = architecture_of(config, source)
    described = config_json(config, architecture)
    # The file stays mapped, so that its weights are in memory once.
    opened(source / LITGPT_WEIGHTS).close()
    loaded = torch.load(source / LITGPT_WEIGHTS, map_location="cpu", mmap=True, weights_only=True)
    weights = by_hub_names(loaded.get("model", loaded), config, architecture.name)
    if torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]):
        # Servers keep one matrix then, and of some architectures refuse two.
        del weights["lm_head.weight"]
        described["tie_word_embeddings"] = True
    described["torch_dtype"] = str(weights["model.norm.weight"].dtype).removeprefix("torch.")
    # Files of 5 GB each with their index, as transformers writes them.
    save_torch_state_dict(weights, target, max_shard_size="5GB", metadata={"format": "pt"})
    files = tokenizer_files(source)
    for name, file in files.items():
        shutil.copyfile(file, target / name)
    tokens = token_ids(files)
    (target / "config.json").write_text(json.dumps(described | tokens, indent=2))
    given = read_json(files[GENERATION_CONFIG], strict=False) if GENERATION_CONFIG in files else {}
    (target / GENERATION_CONFIG).write_text(json.dumps(given | tokens, indent=2))


def to_litgpt(source: Path, target: Path) -> None:
    """Write a Hugging Face directory in LitGPT's layout, into a directory that exists; weights keep their type."""
    model, stored = from_config_json(source / "config.json"), HubDirectory(source)
    weights = {
        name: stored.read(name, empty.shape, None, torch.device("cpu"))
        for name, empty in empty_model(model, 1).state_dict().items()
    }
    save_archive(weights, target / LITGPT_WEIGHTS)
    write_file(target / LITGPT_CONFIG, yaml.safe_dump(litgpt_fields(model)))
    for name, file in tokenizer_files(source).items():
        shutil.copyfile(file, target / name)


def by_hub_names(weights: Mapping[str, torch.Tensor], config: Any, family: str) -> dict[str, torch.Tensor]:
    """Return the weights of a LitGPT directory by their names in Hugging Face's of that family."""
    heads, groups = config.n_head, config.n_query_groups
    found: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        source = source_of(name, family)
        names = source.modules
        if source.of_experts is not None:
            whole = found.setdefault(names[0], source.of_experts.whole(weight, config.n_expert))
            source.of_experts.of(whole).copy_(weight)
            continue
        # Queries, keys and values are rows of one matrix here. They are copied: weights in a file share no memory.
        rows = [number * config.head_size for number in (heads, groups, groups)]
        parts = [weight] if len(names) == 1 else [part.clone() for part in weight.split(rows)]
        found |= zip(names, parts, strict=True)
    return found


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
    "attention_sinks": False,
    "router_bias": False,
    "swiglu_limit": None,
}


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


def gpt_oss_keys(config: Any) -> dict[str, Any]:
    """Return the keys of GPT-OSS's experts and of its layers with and without sliding windows."""
    return {
        **mixtral_keys(config),
        **window_keys(config),
        "attention_bias": True,
        "swiglu_limit": config.swiglu_limit,
        "experts_per_token": config.n_expert_per_token,
    }


def window_keys(config: Any) -> dict[str, Any]:
    """Return the keys of layers with and without sliding windows."""
    kinds = ("full_attention", "sliding_attention")
    return {
        # transformers makes a mask of this size even if no layer has a window.
        "sliding_window": config.sliding_window_size or config.block_size,
        "layer_types": [kinds[has_window] for has_window in config.sliding_window_indices or [0] * config.n_layer],
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
# transformers' class has the limit as a constant.
GPT_OSS = EXPERTS | {
    "bias": True, "attention_sinks": True, "router_bias": True, "swiglu_limit": SWIGLU_LIMIT,
    "sliding_window_size": ANY,
}  # fmt: skip
ARCHITECTURES = (
    Architecture("Llama", "llama", {}, no_keys),
    Architecture("Mixtral", "mixtral", EXPERTS, mixtral_keys),
    Architecture("Qwen2", "qwen2", {"attn_bias": True}, no_keys),
    Architecture("Qwen3", "qwen3", {"norm_qk": True}, no_keys),
    Architecture(
        "Qwen3Moe",
        "qwen3_moe",
        EXPERTS | {"norm_qk": True, "moe_intermediate_size": ANY},
        qwen3_moe_keys,
    ),
    Architecture("Olmo2", "olmo2", OLMO2, no_keys),
    Architecture("Olmo3", "olmo3", OLMO3, olmo3_keys),
    Architecture("Gemma3", "gemma3_text", GEMMA3, gemma3_keys),
    Architecture("GptOss", "gpt_oss", GPT_OSS, gpt_oss_keys),
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
