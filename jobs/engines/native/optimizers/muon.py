"""Muon (https://kellerjordan.github.io/posts/muon): it keeps the mean of the gradients of matrices only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.engines.native.optimizers.optimizer import Groups, Optimizer
from jobs.schema import Precision, Run

if TYPE_CHECKING:
    import torch
    from torch import nn

    from jobs.plan.predict.weights import Weight

ITERATIONS = 5
"""Newton and Schulz's iterations of an update."""


class Muon(Optimizer):
    """Muon for the matrices of layers, AdamW for embedding, head, norms and biases."""

    gathers = True

    def moments(self, run: Run) -> float:
        """Return 1 for each matrix of a layer and 2 for all others, in the mean."""
        from jobs.plan.cost import parameters
        from jobs.plan.predict.weights import kinds_of_layers, layer_weights

        kinds = kinds_of_layers(run.model)
        matrices = sum(count * w.copies * w.size for count, kind in kinds for w in layer_weights(kind) if w.columns > 1)
        return 2 - matrices / parameters(run.model)

    def update_flops(self, weight: Weight) -> float:
        """Return those of the iterations on a matrix."""
        short, long = sorted((weight.rows, weight.columns))
        # x x^T and its square, and their product with x: 2 k k m + 2 k k k + 2 k k m.
        return ITERATIONS * 2.0 * short**2 * (2 * long + short) if short > 1 else 0.0

    def divided(self, groups: Groups, model: nn.Module) -> Groups:
        """Return groups with the matrices of layers in groups of their own."""
        from jobs.engines.native.model import layers

        of_layers = {id(p) for layer in layers(model) for p in layer.parameters() if p.ndim > 1}
        found = [
            {**group, "params": chosen, "orthogonal": orthogonal}
            for group in groups
            for orthogonal in (True, False)
            if (chosen := [p for p in group["params"] if (id(p) in of_layers) is orthogonal])
        ]
        # A pipeline rank may train nothing, and torch wants a group.
        return found or groups

    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer of groups that are divided."""
        import torch

        from jobs.engines.native.updates import muon

        del device
        job = run.job
        return muon.Muon(
            parameters,
            lr=job.learning_rate,
            betas=(job.beta1, job.beta2),
            weight_decay=job.weight_decay,
            # As the rest of the step. float16 cannot hold the squares of small numbers.
            arithmetic=torch.bfloat16 if job.precision is Precision.bfloat16 else torch.float32,
        )


OPTIMIZER = Muon()
