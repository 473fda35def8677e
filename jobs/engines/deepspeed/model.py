"""The model under DeepSpeed: LitGPT's, split as its weights are read, in the engine of deepspeed.initialize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from jobs import metrics as m
from jobs.engines.deepspeed.configuration import configuration, stage_of
from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.model import Decoder, empty_model
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.engines.native.parallelize import wrap_layers
from jobs.engines.native.weights import TYPES, Values, first_weights
from jobs.metrics import Metric
from jobs.runtime.exchange import gather
from jobs.schema import Run


def engine_of(run: Run, device: torch.device, begins: Callable[[Metric], None]) -> Any:
    """Return DeepSpeed's engine with model and AdamW; call `begins` with the metric of each part of start-up."""
    begins(m.STARTUP_MODEL_TIME)
    config, job = configuration(run), run.job
    # On CPUs DeepSpeed would compile collectives of its own, through shared memory, for minutes: in zero.Init or below.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    gpt = empty_model(run.model, job.sequence_length)
    # The type of weights and gradients; the optimizer has float32 copies.
    gpt.to(TYPES[job.precision])
    wrap_layers(gpt, run)
    begins(m.STARTUP_WEIGHTS_TIME)
    if stage_of(run) == 3:
        load_partitioned(gpt, device, first_weights(run), config)
    else:
        load_sharded(gpt, device, first_weights(run), tensor=1, tied=False)
    begins(m.STARTUP_MODEL_TIME)
    optimizer = optimizer_of(run).build(gpt.parameters(), run, device)
    engine = deepspeed.initialize(model=gpt, optimizer=optimizer, config=config, dist_init_required=False)[0]
    # DeepSpeed makes the buffers as narrow as the weights, and rotary angles need their digits.
    gpt.cos, gpt.sin = gpt.rope_cache(device=device)
    return engine


def load_partitioned(gpt: Decoder, device: torch.device, values: Values, config: dict[str, Any]) -> None:
    """Read the weights of one module after the other and split them: no rank ever holds the whole model (stage 3).

    DeepSpeed broadcasts the first rank's weights, so that one alone reads them.
    """
    for name, module in gpt.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        module.to_empty(device=device, recurse=False)
        if dist.get_rank() == 0:
            fill(module, name, values)
        with torch.no_grad():
            deepspeed.zero.Init(module=module, config_dict_or_path=config, mem_efficient_linear=False)


@torch.no_grad()
def fill(module: nn.Module, name: str, values: Values) -> None:
    """Copy the first weights into a module's own parameters."""
    for own, parameter in module.named_parameters(recurse=False):
        parameter.copy_(values(f"{name}.{own}", parameter.shape, parameter.dtype, parameter.device))


def parameters_held(gpt: nn.Module) -> int:
    """Return the number of parameters of the rank with the most between steps; every rank calls it.

    At stage 3 a rank holds its parts, and the parameters below stage3_param_persistence_threshold whole.
    """
    return max(int(held) for held in gather(sum(part(p).numel() + p.numel() * is_split(p) for p in gpt.parameters())))


def is_split(parameter: Tensor) -> bool:
    """Return whether ZeRO splits a parameter, which it does at stage 3 only."""
    return hasattr(parameter, "ds_tensor")


def part(parameter: Any) -> Tensor:
    """Return this rank's part of a parameter."""
    held: Tensor = parameter.ds_tensor if is_split(parameter) else parameter
    return held
