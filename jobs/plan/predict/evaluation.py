"""Memory of a run that trains nothing (jobs.workloads.evaluate) beside its weights: forward passes of one process.

tests/jobs/plan/test_activations.py compares the sum with the real model.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs.layout import loss_chunk
from jobs.plan.predict.activations import Tokens, attention, cast_weights, feed_forward, layer_input, rotary_table
from jobs.schema import Run


def evaluation_moments(run: Run, x: Tokens) -> Iterator[dict[str, float]]:
    """Yield the last layer, the loss, and the exact match of one row.

    Nothing is kept for backward, but autocast keeps its copies of all weights until the end of a forward pass.
    """
    casts = cast_weights(run, run.model.layers, head=loss_chunk(run) is None) + rotary_table(run, x)
    # Input of the layer, result of attention, their sum and its norm.
    beside = 3 * layer_input(run, x) + x.count * run.model.hidden_size * x.width
    yield {"activations": casts + beside + max(attention(run, x), feed_forward(run, x))}
    # Hidden states, and their norm.
    states = 2 * layer_input(run, x)
    yield {"activations": casts + states, "loss": loss(run, x)}
    if run.data.mask_prompt:
        # In float32: hidden states of the labels of one row, and their logits.
        labels = x.count / run.job.micro_batch_size
        yield {"activations": states, "loss": 4 * labels * (run.model.hidden_size + run.model.vocab_size)}


def loss(run: Run, x: Tokens) -> int:
    """Return the memory of the loss without gradients: logits, the same in float32, and their log-softmax.

    In chunks, the log-softmax of the chunk before still exists; head and states are cast, and there is room for the
    gradient of the states.
    """
    hidden, vocabulary = run.model.hidden_size, run.model.vocab_size
    narrow = x.width if x.width < 4 else 0
    chunk, states = loss_chunk(run), x.count * hidden * x.width
    if chunk is None:
        return x.count * vocabulary * (narrow + 8) + (states if narrow else 0)
    chunk = min(chunk, x.count)
    before = 4 if chunk < x.count else 0
    casts = states + hidden * vocabulary * x.width if narrow else 0
    return casts + states + chunk * (vocabulary * (8 + before) + hidden * x.width)
