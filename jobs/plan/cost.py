"""Size of a model and price of a run, by arithmetic."""

from __future__ import annotations

from jobs.schema import Mlp, Model, Norm, Run


def parameters(model: Model) -> int:
    """Weights of the model, embedding and output head included; a test compares with LitGPT's own count.

    Per layer: query, key, value and output projections, the feed-forward (three matrices, two in GPT-NeoX, one set
    per expert plus a router), and two norms.
    """
    width, hidden = model.hidden_size, model.intermediate_size
    heads_width = model.heads * model.head_size
    qkv_width = (model.heads + 2 * model.kv_heads) * model.head_size
    attention = width * qkv_width + heads_width * width
    norm = width * (2 if model.norm is Norm.LayerNorm else 1)
    match model.mlp:
        case Mlp.LLaMAMLP:
            feed_forward, biases = 3 * width * hidden, 2 * hidden + width
        case Mlp.GptNeoxMLP:
            feed_forward, biases = 2 * width * hidden, hidden + width
        case Mlp.LLaMAMoE:
            feed_forward = model.experts * 3 * width * hidden + width * model.experts
            biases = model.experts * (2 * hidden + width)
    layer = attention + feed_forward + 2 * norm + (qkv_width + width + biases if model.bias else 0)
    embeddings = model.vocab_size * width * (1 if model.tie_embeddings else 2)
    return embeddings + model.layers * layer + norm


def gpu_hours_limit(run: Run) -> float | None:
    """GPU-hours this run costs if it uses its whole time limit; None on a machine without GPUs."""
    return run.ranks * run.wall_time_min / 60 if run.cluster.gpus else None
