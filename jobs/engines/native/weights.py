"""First weights, independent of the layout: each full tensor by its LitGPT name, random or from a checkpoint.

A tensor is drawn from a generator seeded by (seed, name), or read from disk, when it is requested. Every rank gets the
same full tensor and keeps its shard: one rank and a thousand start from equal weights, no rank holds more than one
full tensor next to its shards, and nothing is sent, except with engine.weights=node, which saves reads.
All engines share this module; it does not need LitGPT.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from jobs.engines.litgpt.hub_weights import HubDirectory
from jobs.errors import CheckpointError
from jobs.layout import Layout, layout_of
from jobs.parallelism import AXES
from jobs.runtime.checkpoints.pickles import MALFORMED, load_weights
from jobs.schema import Precision, Run, WeightsReader

# Standard deviation of LitGPT's GPT._init_weights, and of GPT-2: https://github.com/openai/gpt-2.
INITIAL_STD = 0.02
TYPES = {
    Precision.float32: torch.float32,
    Precision.bfloat16: torch.bfloat16,
    Precision.float16: torch.float16,
}
"""torch's dtypes of `job.precision` and `engine.parameters`."""

Values = Callable[[str, Sequence[int], torch.dtype, torch.device], Tensor]
"""(LitGPT parameter name, shape, dtype, device) -> full tensor."""


def random_value(
    name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device, seed: int, *, norm: bool
) -> Tensor:
    """Return an initial weight: N(0, 0.02) for a matrix, 1 for a norm, 0 for a bias; dtypes differ by rounding only."""
    full = torch.empty(*shape, dtype=torch.float32, device=device)
    if name.endswith("bias"):
        return full.zero_().to(dtype)
    if norm:
        return full.fill_(1.0).to(dtype)
    return full.normal_(0.0, INITIAL_STD, generator=generator_of(name, seed, device)).to(dtype)


def generator_of(name: str, seed: int, device: torch.device) -> torch.Generator:
    """Return the generator of a parameter's first value."""
    # The name is in the low 32 bits: each parameter has its own numbers, whatever was drawn before it.
    return torch.Generator(device).manual_seed(seed << 32 | zlib.crc32(name.encode()))


def is_norm(name: str) -> bool:
    """Return whether a LitGPT parameter belongs to a normalisation layer (norm_1, post_mlp_norm, ln_f)."""
    module = name.split(".")[-2]
    return "norm" in module or module.startswith("ln_")


def values_of(init_from: str | None, seed: int, *, unit_offset: bool = False) -> Values:
    """Return the source of first weights: a LitGPT or Hugging Face directory, or the seed.

    A norm multiplies by 1 at first; with unit_offset its weight is 0, and not 1, for that.
    """
    if init_from:
        return open_checkpoint(Path(init_from))

    def value(name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        norm = is_norm(name)
        found = random_value(name, shape, dtype, device, seed, norm=norm)
        return found.zero_() if norm and unit_offset else found

    return value


def first_weights(run: Run) -> Values:
    """Return the source of a run's first weights; with engine.weights=node all ranks of a node must request alike."""
    if run.engine.weights is WeightsReader.node and run.job.init_from:
        return read_by_first(Path(run.job.init_from), node_group(layout_of(run), dist.get_rank()))
    return values_of(run.job.init_from, run.job.seed, unit_offset=run.model.norm_unit_offset)


def node_group(layout: Layout, rank: int) -> dist.ProcessGroup:
    """Return the process group of the ranks on a rank's node that hold the same layers and experts."""

    def held(rank: int) -> tuple[int, ...]:
        return tuple(layout.place(rank, axis) for axis in AXES if axis.has_own_weights)

    node = rank // layout.ranks_per_node
    here = range(node * layout.ranks_per_node, (node + 1) * layout.ranks_per_node)
    same = [each for each in here if held(each) == held(rank)]
    # Local synchronization: only members create it, so that a thousand nodes do not wait for each other.
    group: dist.ProcessGroup = dist.new_group(same, use_local_synchronization=True)
    return group


def read_by_first(directory: Path, group: dist.ProcessGroup) -> Values:
    """Return weights of a LitGPT or Hugging Face directory that the first rank of a group reads and broadcasts.

    All ranks of the group must request the same weights in the same order. Each holds one full tensor at a time.
    """
    read = open_checkpoint(directory) if dist.get_rank(group) == 0 else None

    def value(name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        if read is None:
            full = torch.empty(*shape, dtype=dtype, device=device)
        else:
            full = read(name, shape, dtype, device).contiguous()
        dist.broadcast(full, group=group, group_src=0)
        return full

    return value


def open_checkpoint(directory: Path) -> Values:
    """Return weights of a LitGPT or Hugging Face directory, read from disk on request (memory-mapped).

    Raise CheckpointError if a file is missing, unreadable or of another model.
    """
    path = directory / "lit_model.pth"
    if not path.exists() and any(directory.glob("*.safetensors")):
        return HubDirectory(directory).read
    try:
        state = load_weights(path)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"job.init_from={directory} has neither lit_model.pth nor *.safetensors. Set it to a Hugging Face "
            "directory (hf download) or a LitGPT checkpoint directory (the export/ of a run)."
        ) from error
    except (OSError, RuntimeError, *MALFORMED) as error:
        raise CheckpointError(f"{path} cannot be read as a LitGPT checkpoint: {error}") from error
    inner = state.get("model")
    state = inner if isinstance(inner, dict) else state

    def value(name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        if not isinstance(state.get(name), Tensor):
            raise CheckpointError(f"{path} has no weight {name}: it belongs to another model. Set model= to match.")
        if tuple(state[name].shape) != tuple(shape):
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(state[name].shape)}, the model wants {tuple(shape)}. "
                "Set model= to match."
            )
        return torch.as_tensor(state[name]).to(device, dtype)

    return value
