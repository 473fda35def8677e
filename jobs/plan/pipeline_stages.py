"""The layers of each pipeline stage, by arithmetic."""

from __future__ import annotations

import itertools

from jobs.layout import pipeline_stages_of, pipeline_stages_per_rank
from jobs.parallelism import StageSplit
from jobs.plan.cost import embedding_parameters, layer_parameters, norm_parameters
from jobs.plan.predict.once import once
from jobs.schema import ActivationCheckpointing, Model, Run


@once
def pipeline_stage_layers(run: Run) -> list[range]:
    """Return the layers of each pipeline stage, first to last, of a run that jobs.plan.legality has passed."""
    counts = layer_counts(run)
    ends = itertools.accumulate(counts)
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


@once
def checkpointed_layers(run: Run) -> frozenset[int]:
    """Return the layers whose activations are computed again: the first ones of each pipeline stage.

    The last ones are the first of the backward pass. What these keep is gone when memory is needed to compute others
    again, so that the peak is the same with the last one left out. Megatron calls it recompute_method=block.
    """
    if run.engine.activation_checkpointing is ActivationCheckpointing.none:
        return frozenset()
    return frozenset(layer for stage in pipeline_stage_layers(run) for layer in stage[: run.engine.checkpointed_layers])


def held_layers(run: Run) -> tuple[tuple[int, ...], ...]:
    """Return the layers of each pipeline rank, which may hold several stages."""
    stages = pipeline_stage_layers(run)
    places = range(run.parallelism.pipeline)
    return tuple(
        tuple(layer for stage in pipeline_stages_of(run, place) for layer in stages[stage]) for place in places
    )


def layer_counts(run: Run) -> list[int]:
    """Return the number of layers of each stage, as set or by parallelism.stage_split."""
    p, layers = run.parallelism, run.model.layers
    stages = p.pipeline * pipeline_stages_per_rank(run)
    if p.stage_layers is not None:
        return list(p.stage_layers)
    if p.stage_split is StageSplit.balanced:
        return balanced(run.model, stages)
    return [layers // stages] * stages


def balanced(model: Model, stages: int) -> list[int]:
    """Give layers one by one to the stage with the fewest weights, embedding and head included; at least one each.

    Weights are proportional to memory and, except for the embedding's lookup, to arithmetic. For this reason Llama 3
    had one layer less on its first and last stage (https://arxiv.org/abs/2407.21783, section 3.3.2).
    """
    of_layers, embedding = layer_parameters(model), embedding_parameters(model)
    weights = [0] * stages
    weights[0] += embedding
    weights[-1] += embedding + norm_parameters(model)
    counts = [1] * stages
    # Each stage starts with one layer: an empty stage is illegal, however heavy its embedding is.
    weights = [weight + (of_layers[-1] if stage else of_layers[0]) for stage, weight in enumerate(weights)]
    for _ in range(model.layers - stages):
        lightest = min(range(stages), key=weights.__getitem__)
        # Lighter layers, if there are any, are the first ones of the first stage.
        weights[lightest] += of_layers[-1] if lightest else of_layers[counts[0]]
        counts[lightest] += 1
    return counts
