"""The transformer: LitGPT's GPT built from our numbers, and weights that do not depend on the layout.

Weights are made parameter by parameter, each from a generator seeded by (seed, name): every rank makes the same
full tensor and keeps its shard, so one rank and a thousand start from equal weights, no rank holds more than one
full tensor beside its shards, and nothing is sent.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from litgpt.config import Config
from litgpt.model import GPT
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from jobs.errors import CheckpointError
from jobs.schema import Model

# Standard deviation of LitGPT's GPT._init_weights, and of GPT-2: https://github.com/openai/gpt-2.
INITIAL_STD = 0.02


def litgpt_config(model: Model) -> Config:
    """Our architecture numbers under LitGPT's names."""
    scaling = model.rope_scaling
    return Config(
        name=model.name,
        n_layer=model.layers,
        n_head=model.heads,
        n_query_groups=model.kv_heads,
        n_embd=model.hidden_size,
        head_size=model.head_size,
        intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size,
        padded_vocab_size=model.vocab_size,
        block_size=model.max_sequence_length,
        norm_class_name=model.norm.name,
        norm_eps=model.norm_eps,
        mlp_class_name=model.mlp.name,
        bias=model.bias,
        lm_head_bias=False,
        parallel_residual=model.parallel_residual,
        rope_base=model.rope_base,
        rotary_percentage=model.rope_fraction,
        rope_adjustments=scaling
        and {
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_seq_len": scaling.original_max_sequence_length,
        },
        n_expert=model.experts,
        n_expert_per_token=model.experts_per_token,
    )


def empty_model(model: Model, sequence_length: int) -> GPT:
    """The model without memory for its weights (meta device), its rotary table cut to the sequence length."""
    with torch.device("meta"):
        gpt = GPT(litgpt_config(model))
    gpt.max_seq_length = sequence_length
    return gpt


def fill(gpt: GPT, device: torch.device, values: Callable[[str, Tensor], Tensor]) -> None:
    """Give every parameter memory on the device and its part of `values(name, parameter)`, a full tensor."""
    gpt.to_empty(device=device)
    gpt.cos, gpt.sin = gpt.rope_cache(device=device)
    with torch.no_grad():
        for name, parameter in gpt.named_parameters():
            full = values(name, parameter)
            if isinstance(parameter, DTensor):
                # src_data_rank=None: every rank has the full tensor already, so none is broadcast.
                parameter.copy_(
                    distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
                )
            else:
                parameter.copy_(full)


def random_values(gpt: GPT, seed: int, device: torch.device) -> Callable[[str, Tensor], Tensor]:
    """Initial weights: normal for matrices, one and zero for norms and biases."""
    norms = {
        f"{prefix}.{name}"
        for prefix, module in gpt.named_modules()
        if not isinstance(module, nn.Linear | nn.Embedding)
        for name, _ in module.named_parameters(recurse=False)
    }

    def value(name: str, parameter: Tensor) -> Tensor:
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        if name.endswith("bias"):
            return full.zero_()
        if name in norms:
            return full.fill_(1.0)
        generator = torch.Generator(device).manual_seed(seed << 32 | zlib.crc32(name.encode()))
        return full.normal_(0.0, INITIAL_STD, generator=generator)

    return value


def checkpoint_values(directory: Path, device: torch.device) -> Callable[[str, Tensor], Tensor]:
    """Weights of a LitGPT checkpoint directory, read from disk as they are needed.

    Raises CheckpointError when the file is missing, unreadable or of another model.
    """
    path = directory / "lit_model.pth"
    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"job.init_from={directory} has no lit_model.pth. Give a LitGPT checkpoint directory "
            "(litgpt download, or the export/ of a run)."
        ) from error
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be read as a LitGPT checkpoint: {error}") from error
    state = state.get("model", state)

    def value(name: str, parameter: Tensor) -> Tensor:
        if name not in state:
            raise CheckpointError(f"{path} has no weight {name}: it is of another model. Choose model= to match.")
        if state[name].shape != parameter.shape:
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(state[name].shape)}, the model wants {tuple(parameter.shape)}. "
                "Choose model= to match."
            )
        return torch.as_tensor(state[name]).to(device, parameter.dtype)

    return value
