"""Parameters of a model, checkpoint size and GPU-hours of a run, by arithmetic."""

from __future__ import annotations

from jobs.engines.engine import engine_of
from jobs.plan.predict.weights import (
    adapter_weights,
    embedding_weights,
    kinds_of_layers,
    layer_weights,
    norm_weights,
    prompt_weights,
    size,
)
from jobs.schema import Model, Run
from jobs.work.work import work_of


def parameters(model: Model) -> int:
    """Return the weights of the model, embedding and output head included; tested against LitGPT's own count."""
    # Untied, embedding and head are two matrices of the same shape.
    embeddings = embedding_parameters(model) * (1 if model.tie_embeddings else 2)
    return embeddings + sum(layer_parameters(model)) + norm_parameters(model)


def parameters_of(run: Run) -> int:
    """Return the weights of the model that a run computes with."""
    return work_of(run).parameters(run)


def trained_parameters(run: Run) -> int:
    """Return the weights that a run trains: all of the model, its adapters, or virtual tokens and their encoder."""
    lora, prompt = run.job.lora, run.job.prompt_tuning
    if lora is not None:
        fused = engine_of(run).fuses_adapters
        return sum(n * size(adapter_weights(kind, lora, fused=fused)) for n, kind in kinds_of_layers(run.model))
    return parameters_of(run) if prompt is None else size(prompt_weights(run.model, prompt))


def embedding_parameters(model: Model) -> int:
    """Return the weights of the embedding: vocab x hidden, as in the output head."""
    return size(embedding_weights(model))


def norm_parameters(model: Model) -> int:
    """Return the weights of one normalization."""
    return size(norm_weights(model))


def layer_parameters(model: Model) -> list[int]:
    """Return the weights of each layer."""
    return [weights for n, kind in kinds_of_layers(model) for weights in [size(layer_weights(kind))] * n]


def parameters_met(model: Model, tokens: float = 1) -> float:
    """Return the weights that some tokens are multiplied by: of experts those that any of the tokens is sent to.

    A lookup multiplies nothing. A tied embedding counts, because it is also the head's matrix. Routing is equal: an
    expert is missed by all tokens with the probability (1 - experts per token / experts) ^ tokens.
    """
    looked_up = 0 if model.tie_embeddings else embedding_parameters(model)
    layers = model.layers - sum(model.is_dense)
    experts = layers * model.experts * gated_parameters(model.hidden_size, model.inner_size)
    missed = float((1 - model.experts_per_token / model.experts) ** tokens) if model.experts else 0.0
    return parameters(model) - looked_up - missed * experts


def gated_parameters(width: int, hidden: int) -> int:
    """Return the weights of a gated feed-forward, or of one expert: gate, up and down."""
    return 3 * width * hidden


def weights_bytes(run: Run) -> int:
    """Return the size of the weights in float32, as `job.init_from` and an export may contain them."""
    return 4 * parameters_of(run)


def checkpoint_bytes(run: Run) -> int:
    """Return the size of a checkpoint; 0 if a run that stops writes none."""
    return work_of(run).checkpoint_bytes(run)


def trained_checkpoint_bytes(run: Run) -> int:
    """Return the size of a checkpoint of a language model: the trained weights and the optimizer's state."""
    if run.job.checkpoint_every_steps is None:
        return 0
    return round(engine_of(run).bytes_per_parameter(run) * trained_parameters(run))


def priced(run: Run, gpu_hours: float | None) -> float | None:
    """Return the price of GPU-hours on the cluster of a run, without energy; None without GPUs or a price."""
    price = run.cluster.price_per_gpu_hour
    return None if price is None or gpu_hours is None else price * gpu_hours


def gpu_hours_limit(run: Run) -> float | None:
    """Return the GPU-hours of a job that uses its whole time limit, spares included; None on a machine without GPUs."""
    nodes = sum(each.nodes for each in work_of(run).components(run) if each.gpus)
    return nodes * run.ranks_per_node * run.wall_time_min / 60 if nodes else None
