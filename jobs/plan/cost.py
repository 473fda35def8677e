"""Parameters of a model, checkpoint size and GPU-hours of a run, by arithmetic."""

from __future__ import annotations

from jobs.parallelism import Strategy
from jobs.plan.predict.weights import (
    adapter_weights,
    embedding_weights,
    layer_weights,
    norm_weights,
    prompt_weights,
    size,
)
from jobs.schema import EngineKind, Model, Precision, Run
from jobs.settings import images


def parameters(model: Model) -> int:
    """Return the weights of the model, embedding and output head included; tested against LitGPT's own count."""
    embeddings = embedding_parameters(model) * (1 if model.tie_embeddings else 2)
    return embeddings + model.layers * layer_parameters(model) + norm_parameters(model)


def parameters_of(run: Run) -> int:
    """Return the weights of the model that a run computes with."""
    return images.parameters(run.images.network, run.images.classes) if run.images else parameters(run.model)


def trained_parameters(run: Run) -> int:
    """Return the weights that a run trains: all of the model, its adapters, or virtual tokens and their encoder."""
    lora, prompt = run.job.lora, run.job.prompt_tuning
    if lora is not None:
        fused = run.engine.kind is EngineKind.nemo
        return run.model.layers * size(adapter_weights(run.model, lora, fused=fused))
    return parameters_of(run) if prompt is None else size(prompt_weights(run.model, prompt))


def embedding_parameters(model: Model) -> int:
    """Return the weights of the embedding: vocab x hidden, as in the output head."""
    return size(embedding_weights(model))


def norm_parameters(model: Model) -> int:
    """Return the weights of one normalization."""
    return size(norm_weights(model))


def layer_parameters(model: Model) -> int:
    """Return the weights of one layer."""
    return size(layer_weights(model))


def gated_parameters(width: int, hidden: int) -> int:
    """Return the weights of a gated feed-forward, or of one expert: gate, up and down."""
    return 3 * width * hidden


def weights_bytes(run: Run) -> int:
    """Return the size of the weights in float32, as `job.init_from` and an export may contain them."""
    return 4 * parameters_of(run)


def checkpoint_bytes(run: Run) -> int:
    """Return the size of a checkpoint: the trained weights and the optimizer's; 0 if a run that stops writes none.

    AdamW has two moments, SGD of images one, in float32.
    NeMo in bfloat16 adds float32 copies of the weights: 2 + 3 x 4 bytes.
    """
    if run.job.checkpoint_every_steps is None:
        return 0
    if run.images is not None:
        return 2 * 4 * parameters_of(run)
    match run.engine.kind:
        case EngineKind.native:
            per_parameter = 3 * (2 if run.engine.parameters is Precision.bfloat16 else 4)
        case EngineKind.nemo:
            per_parameter = 14 if run.job.precision is Precision.bfloat16 else 12
        case EngineKind.litgpt | EngineKind.vllm:
            return 0
        case EngineKind.deepspeed:
            # The optimizer's float32 weights and moments; below stage 3 also the weights of the arithmetic.
            narrow = 4 if run.job.precision is Precision.float32 else 2
            per_parameter = 12 + (0 if run.parallelism.strategy is Strategy.zero3 else narrow)
    return per_parameter * trained_parameters(run)


def gpu_hours_limit(run: Run) -> float | None:
    """Return the GPU-hours of a run that uses its whole time limit; None on a machine without GPUs."""
    return run.ranks * run.wall_time_min / 60 if run.cluster.gpus else None
