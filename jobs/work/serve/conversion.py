"""Convert a LitGPT directory to Hugging Face's layout, for servers that read no other.

`python -m jobs.work.serve.conversion LITGPT_DIRECTORY NEW_DIRECTORY`, a process of its own: it needs torch and LitGPT.
The weights of Llama's, Mixtral's and Qwen 3's architecture are renamed by LitGPT's own functions.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from litgpt.config import Config
from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama, copy_weights_qwen_3
from safetensors.torch import save_file

from jobs.data.tokenizer import GENERATION_CONFIG, read_json, special_tokens, tokenizer_files
from jobs.errors import ConfigError
from jobs.files import opened, read_yaml
from jobs.output import own_program
from jobs.work.serve.weights import LITGPT_CONFIG, LITGPT_WEIGHTS


def convert(source: Path, target: Path) -> None:
    """Convert a LitGPT directory; the target appears when it is complete.

    Raise ConfigError for an architecture other than Llama's, Mixtral's and Qwen 3's.
    """
    # LitGPT's reader would wait for a FIFO, and expand aliases without a limit.
    read_yaml(source / LITGPT_CONFIG)
    config = Config.from_file(source / LITGPT_CONFIG)
    described = config_json(config, source)
    # The file stays mapped, so that its weights are in memory once.
    opened(source / LITGPT_WEIGHTS).close()
    loaded = torch.load(source / LITGPT_WEIGHTS, map_location="cpu", mmap=True, weights_only=True)
    weights: dict[str, torch.Tensor] = {}
    renamed = copy_weights_qwen_3 if config.norm_qk else copy_weights_llama
    renamed(config, weights, loaded.get("model", loaded))
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


def config_json(config: Any, source: Path) -> dict[str, Any]:
    """Return Hugging Face's description of a LitGPT configuration, whose fields LitGPT sets by name."""
    experts = config.mlp_class_name == "LLaMAMoE"
    others = [
        f"{name}={getattr(config, name)}"
        for name, own in (
            ("norm_class_name", {"RMSNorm"}),
            ("mlp_class_name", {"LLaMAMLP", "LLaMAMoE"}),
            ("parallel_residual", {False}),
            ("bias", {False}),
            ("attn_bias", {False}),
            ("norm_qk", {False, True}),
            # Mixtral's experts have the width of a dense layer.
            ("moe_intermediate_size", {None} if experts and not config.norm_qk else {config.moe_intermediate_size}),
            ("norm_qk_type", {"default"}),
            ("rotary_percentage", {1.0}),
        )
        if getattr(config, name) not in own
    ]
    if others:
        raise ConfigError(
            f"{source} is not of Llama's, Mixtral's or Qwen 3's architecture ({', '.join(others)}), and is not "
            "converted. Set job.init_from to the model in Hugging Face's layout."
        )
    architecture, kind = {
        (False, False): ("Llama", "llama"),
        (False, True): ("Qwen3", "qwen3"),
        (True, False): ("Mixtral", "mixtral"),
        (True, True): ("Qwen3Moe", "qwen3_moe"),
    }[experts, config.norm_qk]
    found = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": kind,
        "hidden_act": "silu",
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
    }
    if experts:
        found["num_experts_per_tok"] = config.n_expert_per_token
        # LitGPT's router normalizes the weights of the chosen experts, as Mixtral's does.
        found |= (
            {
                "num_experts": config.n_expert,
                "moe_intermediate_size": config.moe_intermediate_size or config.intermediate_size,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            }
            if config.norm_qk
            else {"num_local_experts": config.n_expert}
        )
    if config.rope_adjustments:
        given = dict(config.rope_adjustments)
        length = given.pop("original_max_seq_len")
        found["rope_scaling"] = {"rope_type": "llama3", **given, "original_max_position_embeddings": length}
    return found


if __name__ == "__main__":
    with own_program():
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
