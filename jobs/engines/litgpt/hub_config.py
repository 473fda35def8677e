"""Architectures of Hugging Face's, and the config.json of a model that LitGPT describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.engines.litgpt.names import SWIGLU_LIMIT
from jobs.errors import ConfigError


@dataclass(frozen=True)
class Architecture:
    """An architecture of Hugging Face's, and how LitGPT describes it."""

    name: str
    """Begin of its class."""
    kind: str
    """Its model_type."""
    differing: Mapping[str, Any]
    """Fields of LitGPT's configuration that differ from PLAIN's; ANY: in their value; a function: by its answer."""
    keys: Callable[[Any], dict[str, Any]]
    """Keys of config.json besides common ones, from LitGPT's configuration."""


ANY = object()


def of_v2(router: Any) -> bool:
    """Return whether a router is DeepSeek-V2's; transformers does not normalize its shares."""
    if router is None or router["scores"] != "softmax" or router["normalize"]:
        return False
    return bool(router["scores_per_group"] == 1)


def of_v3(router: Any) -> bool:
    """Return whether a router is DeepSeek-V3's, whose groups compete by their two best scores."""
    if router is None or router["scores"] != "sigmoid":
        return False
    return bool(router["scores_per_group"] == (1 if router["groups"] == 1 else 2))


def of_llama4(router: Any) -> bool:
    """Return whether a router is Llama 4's: of sigmoids, without groups."""
    if router is None or router["scores"] != "sigmoid_inputs":
        return False
    return bool(router["groups"] == 1 and router["scale"] == 1 and not router["normalize"])


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
    "n_shared_expert": None,
    "first_k_dense_replace": None,
    "latent": None,
    "router": None,
    "norm_rotated": False,
    "chunked_window": False,
    "rope_in_windows": False,
    "query_temperature": None,
    "experts_every": 1,
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


def gemma2_keys(config: Any) -> dict[str, Any]:
    """Return the keys of Gemma 2's and 3's layers with and without sliding windows, and of its caps."""
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config.attention_scores_scalar or config.head_size,
        **window_keys(config),
        "attn_logit_softcapping": config.attention_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
    }


def gemma3_keys(config: Any) -> dict[str, Any]:
    """Return the keys of Gemma 3."""
    return {**gemma2_keys(config), "rope_local_base_freq": float(config.rope_local_base_freq)}


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


def llama4_keys(config: Any) -> dict[str, Any]:
    """Return the keys of Llama 4's experts, and of its layers with and without rotary embedding."""
    rotated, temperature = [int(has) for has in config.sliding_window_indices], config.query_temperature
    growth = {"attn_scale": temperature["scale"], "floor_scale": temperature["length"]} if temperature else {}
    every = config.experts_every
    return {
        **mixtral_keys(config),
        "intermediate_size": config.moe_intermediate_size,
        "intermediate_size_mlp": config.intermediate_size,
        "interleave_moe_layer_step": every,
        "moe_layers": list(range(every - 1, config.n_layer, every)),
        "no_rope_layers": rotated,
        "attention_chunk_size": config.sliding_window_size,
        "layer_types": [("full_attention", "chunked_attention")[each] for each in rotated],
        "use_qk_norm": config.norm_rotated,
        "attn_temperature_tuning": temperature is not None,
        **growth,
    }


def deepseek_keys(config: Any) -> dict[str, Any]:
    """Return the keys of latent attention and of experts that DeepSeek-V2 and V3 share."""
    latent, router = config.latent, config.router
    return {
        "hidden_act": "silu",
        # Of the rotary embedding.
        "head_dim": latent["rope_head_size"],
        "q_lora_rank": latent["q_lora_rank"],
        "kv_lora_rank": latent["kv_lora_rank"],
        "qk_rope_head_dim": latent["rope_head_size"],
        "qk_nope_head_dim": config.head_size - latent["rope_head_size"],
        "v_head_dim": latent["value_head_size"],
        "n_routed_experts": config.n_expert,
        "n_shared_experts": config.n_shared_expert,
        "num_experts_per_tok": config.n_expert_per_token,
        "moe_intermediate_size": config.moe_intermediate_size,
        "first_k_dense_replace": config.first_k_dense_replace or 0,
        "routed_scaling_factor": router["scale"],
        "norm_topk_prob": router["normalize"],
        "n_group": router["groups"],
        "topk_group": router["chosen_groups"],
    }


def deepseek_v2_keys(config: Any) -> dict[str, Any]:
    """Return the keys of DeepSeek-V2's router."""
    method = "greedy" if config.router["groups"] == 1 else "group_limited_greedy"
    return {**deepseek_keys(config), "topk_method": method, "scoring_func": "softmax"}


def deepseek_v3_keys(config: Any) -> dict[str, Any]:
    """Return the keys of DeepSeek-V3's router, and of the order of rows in its matrices."""
    router = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    return {**deepseek_keys(config), **router, "rope_interleave": True}


def window_keys(config: Any) -> dict[str, Any]:
    """Return the keys of layers with and without sliding windows."""
    kinds = ("full_attention", "sliding_attention")
    return {
        # transformers makes a mask of this size even if no layer has a window.
        "sliding_window": config.sliding_window_size or config.block_size,
        "layer_types": [kinds[has_window] for has_window in config.sliding_window_indices or [0] * config.n_layer],
    }


CAPS = ("attention_logit_softcapping", "final_logit_softcapping")
GEMMA2 = dict.fromkeys(("sliding_window_size", "attention_scores_scalar", *CAPS), ANY) | {
    "mlp_class_name": "GemmaMLP", "post_attention_norm": True, "post_mlp_norm": True, "scale_embeddings": True,
}  # fmt: skip
GEMMA3 = GEMMA2 | {"norm_qk": True, "rope_local_base_freq": ANY}
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
DEEPSEEK = EXPERTS | dict.fromkeys(("moe_intermediate_size", "n_shared_expert", "first_k_dense_replace", "latent"), ANY)
OF_LLAMA4 = ("moe_intermediate_size", "norm_rotated", "query_temperature", "experts_every")
LLAMA4 = EXPERTS | dict.fromkeys(OF_LLAMA4, ANY) | {
    "n_shared_expert": 1, "router": of_llama4, "chunked_window": True, "rope_in_windows": True,
    "sliding_window_size": ANY,
}  # fmt: skip
ARCHITECTURES = (
    Architecture("Llama", "llama", {}, no_keys),
    Architecture("Llama4", "llama4_text", LLAMA4, llama4_keys),
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
    Architecture("DeepseekV2", "deepseek_v2", DEEPSEEK | {"router": of_v2}, deepseek_v2_keys),
    Architecture("DeepseekV3", "deepseek_v3", DEEPSEEK | {"router": of_v3}, deepseek_v3_keys),
    Architecture("Gemma2", "gemma2", GEMMA2, gemma2_keys),
    Architecture("Gemma3", "gemma3_text", GEMMA3, gemma3_keys),
    Architecture("GptOss", "gpt_oss", GPT_OSS, gpt_oss_keys),
)


def nearest_architecture(config: Any) -> tuple[Architecture, list[str]]:
    """Return the architecture that is most like an OwnConfig, and the fields in which they differ."""

    def differing(architecture: Architecture) -> list[str]:
        wanted = {**PLAIN, **architecture.differing}
        return [
            f"{name}={found}" for name, value in wanted.items() if not fits(found := getattr(config, name, None), value)
        ]

    nearest = min(ARCHITECTURES, key=lambda each: len(differing(each)))
    return nearest, differing(nearest)


def fits(found: Any, wanted: Any) -> bool:
    """Return whether the value of a field is the wanted one, or one that a function accepts."""
    return bool(wanted(found)) if callable(wanted) else wanted is ANY or found == wanted


def architecture_of(config: Any, source: Path) -> Architecture:
    """Return the architecture of a LitGPT configuration; raise ConfigError if none has its arithmetic."""
    nearest, others = nearest_architecture(config)
    if others:
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
