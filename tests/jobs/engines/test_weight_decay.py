"""Weight decay: the weights that it shrinks, and refusals of other engines."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jobs.engines.native.updates.weight_decay import decay_groups
from jobs.plan.compose import compose

EVERY = {"embedding.weight", "norm.weight", "norm.bias", "matrix.weight", "matrix.bias", "head.weight"}
DECAYED = {
    "all": EVERY,
    "matrices": {"embedding.weight", "matrix.weight", "head.weight"},
    "layers": {"matrix.weight", "head.weight"},
}


def network(*, tied: bool) -> nn.ModuleDict:
    parts = {"embedding": nn.Embedding(7, 3), "norm": nn.LayerNorm(3), "matrix": nn.Linear(3, 3)}
    found = nn.ModuleDict(parts | {"head": nn.Linear(3, 7, bias=False)})
    for parameter in found.parameters():
        nn.init.ones_(parameter)
    if tied:
        found["head"].weight = found["embedding"].weight
    return found


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("chosen", DECAYED)
def test_an_update_without_gradients_shrinks_the_chosen_weights_only(chosen: str, tied: bool) -> None:
    (point,) = compose(["launcher=dry", "job.weight_decay=0.5", f"job.weight_decay_on={chosen}"], multirun=False)
    model = network(tied=tied)
    parameters = list(model.parameters())
    groups = decay_groups([parameters[:2], parameters[2:], []], point.run.job, model)
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(map(id, parameters)), "each one once"
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.AdamW(groups, lr=0.1, weight_decay=0.5).step()
    shrunk = {name for name, value in model.named_parameters() if (value < 1).all()}
    kept = {name for name, value in model.named_parameters() if (value == 1).all()}
    assert shrunk == DECAYED[chosen] & {name for name, _ in model.named_parameters()}
    assert shrunk | kept == {name for name, _ in model.named_parameters()}
