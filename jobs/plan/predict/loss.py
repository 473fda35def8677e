"""Memory of the output head and the loss of engine=native: kept until backward, and at its largest moment.

The moments follow jobs.engines.native.loss line by line; tests/jobs/plan/test_activations.py compares them with the
engine's.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.layout import loss_chunk
from jobs.plan.predict.activations import Tokens, layer_input, norm
from jobs.schema import Run


@dataclass(frozen=True)
class LossMemory:
    """Bytes of the loss of one micro-batch beside the layers' activations."""

    kept: int
    """From its forward to its backward pass."""
    peak: int
    """At the moment that holds the most, what is kept included."""


def loss_memory(run: Run, x: Tokens) -> LossMemory:
    """Return the memory of norm, head and loss on the rank that holds them."""
    chunk = loss_chunk(run)
    return whole(run, x) if chunk is None else chunked(run, x, min(chunk, x.count))


def whole(run: Run, x: Tokens) -> LossMemory:
    """Return the memory of the loss from all logits: 12 bytes a logit in backward, 16 if TP divides them.

    The log-softmax in float32 is kept; backward adds its gradient and that of the logits, both in float32. torch's
    loss_parallel has one more temporary.
    """
    p = run.parallelism
    divided = p.tensor > 1 and p.loss_parallel
    logits = 4 * x.count * run.model.vocab_size // (p.tensor if divided else 1)
    inputs = x.count * run.model.hidden_size * x.width if run.job.trains_all_weights else 0
    kept = norm(run, x) + inputs + logits
    return LossMemory(kept, kept + (3 if divided else 2) * logits)


def chunked(run: Run, x: Tokens, chunk: int) -> LossMemory:
    """Return the memory of the loss in chunks of labels, which computes its gradients in forward.

    Kept are the gradients of hidden states and head; a frozen head has none. While they are summed, the head's is in
    float32, and a chunk has its log-softmax in float32, and in 16 bits its logits' gradient and its part of the head's.
    """
    hidden, vocabulary = run.model.hidden_size, run.model.vocab_size // run.parallelism.tensor
    states = x.count * hidden * x.width
    head = vocabulary * hidden if run.job.trains_all_weights else 0
    kept = norm(run, x) + states + head * x.width
    narrow = x.width < 4
    # 4 bytes of log-softmax and of the logits' gradient, with its part of the head's gradient.
    of_chunk = chunk * (vocabulary * (4 + x.width) + hidden * x.width) + (head * x.width if narrow else 0)
    # Sequence parallelism gathers the normed states.
    inputs = layer_input(run, x) + (states if x.between < x.count else 0)
    casts = states + head * x.width if x.residual > x.width else 0
    # Or logits and log-softmax of the next chunk, while both of the one before it still exist.
    before = (4 + (x.width if narrow else 0)) * vocabulary + hidden * x.width if x.count > chunk else 0
    of_next = chunk * (8 * vocabulary + hidden * x.width + before)
    moments = (of_chunk, of_next, head * x.width if narrow else 0)
    return LossMemory(kept, norm(run, x) + inputs + casts + states + 4 * head + max(moments))
