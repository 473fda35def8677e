"""Our architecture under LitGPT's names, for its GPT and for model_config.yaml of an export."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from jobs.schema import LatentAttention, Mlp, Model, NormPlace, RopeScaling

SWIGLU_LIMIT = 7.0
"""Limit of gate and up in experts of a GptOss: a constant of transformers' class."""


def litgpt_fields(model: Model) -> dict[str, Any]:
    """Return the keyword arguments of litgpt.config.Config; what it does not have is own_fields."""
    scaling, windows = model.rope_scaling, [int(has) for has in model.has_window]
    return {
        # LitGPT's norms multiply by 1 + weight for a model that is called so.
        "name": f"Gemma {model.name}" if model.norm_unit_offset else model.name,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_query_groups": model.kv_heads,
        "n_embd": model.hidden_size,
        "head_size": model.head_size,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "padded_vocab_size": model.vocab_size,
        "block_size": model.max_sequence_length,
        "norm_class_name": model.norm.name,
        "norm_eps": model.norm_eps,
        "norm_1": model.norm_place is not NormPlace.after,
        "norm_2": model.norm_place is not NormPlace.after,
        "post_attention_norm": model.norm_place is not NormPlace.before,
        "post_mlp_norm": model.norm_place is not NormPlace.before,
        "mlp_class_name": model.mlp.name,
        "gelu_approximate": "tanh" if model.mlp is Mlp.GemmaMLP else "none",
        "bias": model.bias,
        "attn_bias": model.attention_bias,
        "norm_qk": model.norm_qk,
        "norm_qk_type": "olmo2" if model.norm_qk_whole else "default",
        "attention_scores_scalar": model.attention_scores_scalar,
        "attention_logit_softcapping": model.attention_softcap,
        "final_logit_softcapping": model.logits_softcap,
        "sliding_window_size": model.sliding_window,
        "sliding_window_indices": windows if model.sliding_window else None,
        "lm_head_bias": False,
        "parallel_residual": model.parallel_residual,
        "rope_base": model.rope_base,
        "rotary_percentage": model.rope_fraction,
        "rope_adjustments": scaling and adjustments(scaling),
        "rope_local_base_freq": model.rope_local_base,
        "rope_indices": windows if model.rope_local_base else None,
        "scale_embeddings": model.scale_embeddings,
        "n_expert": model.experts,
        "n_expert_per_token": model.experts_per_token,
        "moe_intermediate_size": model.moe_intermediate_size,
        "n_shared_expert": model.shared_experts or None,
        "first_k_dense_replace": model.dense_layers or None,
        **own_fields(model),
    }


def own_fields(model: Model) -> dict[str, Any]:
    """Return the fields of jobs.engines.litgpt.config.OwnConfig that differ from LitGPT's arithmetic.

    LitGPT's reader refuses them by name, and so does not compute an export in another way.
    """
    given = {
        "attention_sinks": model.attention_sinks,
        "router_bias": model.bias and model.experts > 0,
        "swiglu_limit": model.swiglu_limit,
        "latent": model.latent and latent_fields(model, model.latent),
        "router": model.router and asdict(model.router) | {"scores": model.router.scores.name},
        "norm_rotated": model.norm_rotated,
        "chunked_window": model.chunked_window,
        "rope_in_windows": model.rope_in_windows,
        "query_temperature": model.query_temperature and asdict(model.query_temperature),
        "experts_every": model.experts_every if model.experts_every > 1 else None,
    }
    return {name: value for name, value in given.items() if value}


def latent_fields(model: Model, latent: LatentAttention) -> dict[str, Any]:
    """Return the sizes of latent attention, and the factor of its scores."""
    scaling, scale = model.rope_scaling, model.head_size**-0.5
    if scaling is not None:
        scale *= (0.1 * scaling.mscale_all_dim * math.log(max(1.0, scaling.factor)) + 1) ** 2
    return asdict(latent) | {"scale": scale}


def keys_beyond_litgpt(model: Model) -> list[str]:
    """Return the keys of `model` that LitGPT does not have, or computes otherwise: own_fields, and parts of experts."""
    parts = [name for name in ("shared_experts", "dense_layers") if getattr(model, name)]
    named = ["bias of a router" if name == "router_bias" else name for name in (*own_fields(model), *parts)]
    return [f"model.{name}" for name in named]


def adjustments(scaling: RopeScaling) -> dict[str, float | None]:
    """Return a scaling of rotary frequencies under LitGPT's names.

    LitGPT has no YaRN. Without `factor` it refuses the others by name, and does not take them for a linear scaling.
    """
    if scaling.is_linear:
        return {"factor": scaling.factor}
    length = scaling.original_max_sequence_length
    if scaling.is_yarn:
        return {
            "original_max_seq_len": length,
            "yarn_factor": scaling.factor,
            "beta_slow": scaling.beta_slow,
            "beta_fast": scaling.beta_fast,
            "round_limits": scaling.round_limits,
            "attention_factor": scaling.attention_factor,
            **({"mscale_all_dim": scaling.mscale_all_dim} if scaling.mscale_all_dim else {}),
        }
    return {
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_seq_len": length,
    }
