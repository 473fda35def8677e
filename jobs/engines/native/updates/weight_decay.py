"""The parameters that AdamW's weight decay shrinks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from jobs.schema import Job, WeightDecayOn


def decay_groups(groups: Iterable[list[nn.Parameter]], job: Job, model: nn.Module) -> list[dict[str, Any]]:
    """Return AdamW's groups: each given one, divided into parameters with and without weight decay.

    Norms and biases have one dimension. A tied output matrix is the embedding itself, and is treated as one.
    """
    if job.weight_decay_on is WeightDecayOn.all:
        return [{"params": parameters} for parameters in groups]
    kept = {id(p) for p in model.parameters() if p.ndim < 2}
    if job.weight_decay_on is WeightDecayOn.layers:
        kept |= {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    divided: list[dict[str, Any]] = []
    for parameters in groups:
        decayed = [parameter for parameter in parameters if id(parameter) not in kept]
        others = [parameter for parameter in parameters if id(parameter) in kept]
        divided += [{"params": decayed}] if decayed or not others else []
        divided += [{"params": others, "weight_decay": 0.0}] if others else []
    return divided
