"""An exponential moving average of the weights (job.ema_decay), kept in float32 as a state of the optimizer.

    a <- d a + (1 - d) w    after every update; a is the first updated w at first

As one more state of each parameter it is sharded, saved, resharded and restored as the moments are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from jobs.engines.native.float8 import plain
from jobs.engines.native.load_sharded import local_shard

AVERAGE = "average"


def keep_average(optimizer: Optimizer, decay: float) -> None:
    """Have an optimizer keep the average of its parameters, which every step updates."""

    @torch.no_grad()
    def update(optimizer: Optimizer, _args: object, _keywords: object) -> None:
        given = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        new = [each for each in given if AVERAGE not in optimizer.state[each]]
        for each in new:
            weight = cast(Tensor, plain(each))
            optimizer.state[each][AVERAGE] = torch.empty_like(weight, dtype=torch.float32).copy_(weight)
        if known := [each for each in given if not any(each is other for other in new)]:
            weights = [local_shard(cast(Tensor, plain(each))).float() for each in known]
            torch._foreach_lerp_([local_shard(optimizer.state[each][AVERAGE]) for each in known], weights, 1 - decay)

    optimizer.register_step_post_hook(update)


def averages(weights: Mapping[str, Any], moments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the averages of weights, by their names and in their types, from the states of a checkpoint."""
    found = {name: moments.get(key_of_average(name)) for name in weights}
    return {name: value.to(weights[name].dtype) for name, value in found.items() if value is not None}


def key_of_average(name: str) -> str:
    """Return the key of a weight's average among the states of a checkpoint (jobs.engines.native.checkpoint, FLAT)."""
    return f"state.{name}.{AVERAGE}"
