"""A tiny model in Hugging Face's layout, written without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jobs.data.tokenizer import train_bpe
from tests.support.tiny_data import SENTENCES

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "max_position_embeddings": 32,
    "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "vocab_size": 300,
}  # fmt: skip
SHAPES = {
    "model.embed_tokens": (300, 8), "model.norm": (8,), "model.layers.0.input_layernorm": (8,),
    "model.layers.0.post_attention_layernorm": (8,), "model.layers.0.self_attn.q_proj": (8, 8),
    "model.layers.0.self_attn.k_proj": (4, 8), "model.layers.0.self_attn.v_proj": (4, 8),
    "model.layers.0.self_attn.o_proj": (8, 8), "model.layers.0.mlp.gate_proj": (12, 8),
    "model.layers.0.mlp.up_proj": (12, 8), "model.layers.0.mlp.down_proj": (8, 12),
}  # fmt: skip


def write_hub_model(where: Path) -> None:
    """Write a Llama of one layer with random weights, and a tokenizer."""
    where.mkdir()
    draw = np.random.default_rng(0)
    weights = {f"{name}.weight": draw.normal(0, 0.02, shape).astype(np.float32) for name, shape in SHAPES.items()}
    save_file(weights, where / "model.safetensors")
    (where / "config.json").write_text(json.dumps(CONFIG))
    train_bpe(SENTENCES, 300, where)
