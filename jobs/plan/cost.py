"""Parameters of a model, checkpoint size and GPU-hours of a run, by arithmetic."""

from __future__ import annotations

from jobs.parallelism import Strategy
from jobs.schema import EngineKind, Mlp, Model, Norm, Precision, Run


def parameters(model: Model) -> int:
    """Return the weights of the model, embedding and output head included; tested against LitGPT's own count."""
    embeddings = embedding_parameters(model) * (1 if model.tie_embeddings else 2)
    return embeddings + model.layers * layer_parameters(model) + norm_parameters(model)


def embedding_parameters(model: Model) -> int:
    """Return the weights of the embedding: vocab x hidden, as in the output head."""
    return model.vocab_size * model.hidden_size


def norm_parameters(model: Model) -> int:
    """Return the weights of one normalisation: scale, and bias for LayerNorm."""
    return model.hidden_size * (2 if model.norm is Norm.LayerNorm else 1)


def layer_parameters(model: Model) -> int:
    """Return the weights of one layer.

    Query, key, value and output projections, the feed-forward (three matrices, two in GPT-NeoX, one set per expert
    plus a router), and two norms.
    """
    width, hidden = model.hidden_size, model.intermediate_size
    heads_width = model.heads * model.head_size
    qkv_width = (model.heads + 2 * model.kv_heads) * model.head_size
    attention = width * qkv_width + heads_width * width
    match model.mlp:
        case Mlp.LLaMAMLP:
            feed_forward, biases = gated_parameters(width, hidden), 2 * hidden + width
        case Mlp.GptNeoxMLP:
            feed_forward, biases = 2 * width * hidden, hidden + width
        case Mlp.LLaMAMoE:
            feed_forward = model.experts * gated_parameters(width, hidden) + width * model.experts
            biases = model.experts * (2 * hidden + width)
    attention += qkv_width if model.bias or model.attention_bias else 0
    return attention + feed_forward + 2 * norm_parameters(model) + (width + biases if model.bias else 0)


def gated_parameters(width: int, hidden: int) -> int:
    """Return the weights of a gated feed-forward, or of one expert: gate, up and down."""
    return 3 * width * hidden


def weights_bytes(run: Run) -> int:
    """Return the size of the weights in float32, as `job.init_from` and an export may contain them."""
    return 4 * parameters(run.model)


def checkpoint_bytes(run: Run) -> int:
    """Return the size of a checkpoint: the weights and AdamW's two moments; 0 if a run that stops writes none.

    NeMo in bfloat16 adds float32 copies of the weights: 2 + 3 x 4 bytes. Adapters are small beside the base weights,
    which their checkpoints do not contain.
    """
    if run.job.checkpoint_every_steps is None or run.job.lora is not None:
        return 0
    match run.engine.kind:
        case EngineKind.native:
            per_parameter = 3 * (2 if run.engine.parameters is Precision.bfloat16 else 4)
        case EngineKind.nemo:
            per_parameter = 14 if run.job.precision is Precision.bfloat16 else 12
        case EngineKind.litgpt:
            return 0
        case EngineKind.deepspeed:
            # The optimizer's float32 weights and moments; below stage 3 also the weights of the arithmetic.
            narrow = 4 if run.job.precision is Precision.float32 else 2
            per_parameter = 12 + (0 if run.parallelism.strategy is Strategy.zero3 else narrow)
    return per_parameter * parameters(run.model)


def gpu_hours_limit(run: Run) -> float | None:
    """Return the GPU-hours of a run that uses its whole time limit; None on a machine without GPUs."""
    return run.ranks * run.wall_time_min / 60 if run.cluster.gpus else None
