"""Our architecture under LitGPT's names, for its GPT and for model_config.yaml of an export."""

from __future__ import annotations

from typing import Any

from jobs.schema import Model


def litgpt_fields(model: Model) -> dict[str, Any]:
    """Return the keyword arguments of litgpt.config.Config."""
    scaling = model.rope_scaling
    return {
        "name": model.name,
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
        "mlp_class_name": model.mlp.name,
        "bias": model.bias,
        "attn_bias": model.attention_bias,
        "norm_qk": model.norm_qk,
        "lm_head_bias": False,
        "parallel_residual": model.parallel_residual,
        "rope_base": model.rope_base,
        "rotary_percentage": model.rope_fraction,
        "rope_adjustments": scaling
        and {
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_seq_len": scaling.original_max_sequence_length,
        },
        "n_expert": model.experts,
        "n_expert_per_token": model.experts_per_token,
        "moe_intermediate_size": model.moe_intermediate_size,
    }
