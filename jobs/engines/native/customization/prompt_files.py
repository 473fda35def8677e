"""Trained virtual tokens as a directory for PEFT, which needs their embeddings only, and not the encoder's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from jobs.engines.native.customization.peft_directory import read_peft, write_peft
from jobs.schema import PromptTuning, Run

EMBEDDINGS = "prompt_embeddings"


def write_prompt(run: Run, export: Path, embeddings: Tensor) -> None:
    """Write the embeddings of virtual tokens (tokens, hidden) into an export."""
    assert run.job.prompt_tuning is not None
    config = peft_config(run, run.job.prompt_tuning)
    write_peft(export, {EMBEDDINGS: embeddings.contiguous()}, config)


def read_prompt(export: Path) -> Tensor:
    """Return the embeddings of virtual tokens in an export."""
    return read_peft(export)[EMBEDDINGS]


def peft_config(run: Run, chosen: PromptTuning) -> dict[str, Any]:
    """Return adapter_config.json of PEFT's PromptTuningConfig, or of its PromptEncoderConfig (P-tuning)."""
    model = run.model
    common = {
        "base_model_name_or_path": run.job.init_from,
        "num_virtual_tokens": chosen.virtual_tokens,
        "token_dim": model.hidden_size,
        "num_transformer_submodules": 1,
        "num_attention_heads": model.heads,
        "num_layers": model.layers,
    }
    if chosen.encoder is None:
        return {"peft_type": "PROMPT_TUNING", "prompt_tuning_init": "RANDOM", **common}
    return {
        "peft_type": "P_TUNING",
        "encoder_reparameterization_type": chosen.encoder.name.upper(),
        "encoder_hidden_size": chosen.encoder_hidden_size or model.hidden_size,
        **common,
    }
