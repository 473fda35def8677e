"""Memory of the output head and the loss of engine=native: kept until backward, and at its largest moment.

The moments follow jobs.engines.native.loss line by line; tests/jobs/plan/test_activations.py compares them with the
engine's.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.engines.native.loss_chunk import loss_chunk
from jobs.plan.predict.activations import Tokens, has_wide_weights, in_autocast, layer_input, norm
from jobs.schema import Run


@dataclass(frozen=True)
class LossMemory:
    """Bytes of the loss of one micro-batch besides the layers' activations."""

    kept: int
    """From its forward to its backward pass."""
    forward: int
    """The most in the forward pass, what is kept included."""
    backward: int
    """The most in the backward pass, what is kept included."""


def loss_memory(run: Run, x: Tokens) -> LossMemory:
    """Return the memory of norm, head and loss on the rank that holds them."""
    chunk = loss_chunk(run)
    return whole(run, x) if chunk is None else chunked(run, x, min(chunk, x.count))


def whole(run: Run, x: Tokens) -> LossMemory:
    """Return the memory of the loss from all logits: 12 bytes per logit in backward, 16 if TP divides them.

    Forward has the logits in the type of the arithmetic and in float32, and their log-softmax. The log-softmax in
    float32 is kept; backward adds its gradient and that of the logits, both in float32. torch's loss_parallel has one
    more temporary.
    """
    p = run.parallelism
    divided = p.tensor > 1 and p.loss_parallel
    logits = 4 * x.count * run.model.vocab_size // (p.tensor if divided else 1)
    # A frozen head keeps no input.
    states = x.count * run.model.hidden_size * x.width if run.job.trains_all_weights else 0
    # Capped logits are made from a result that is kept too.
    caps = logits * x.width // 4 if run.model.logits_softcap is not None else 0
    kept = norm(run, x) + states + logits + caps
    narrow = logits * x.width // 4 if x.width < 4 else 0
    return LossMemory(kept, kept + narrow + logits, kept + (3 if divided else 2) * logits)


def chunked(run: Run, x: Tokens, chunk: int) -> LossMemory:
    """Return the memory of the loss in chunks of labels, which computes its gradients in forward.

    Kept are the gradients of hidden states and head, of a frozen head none. While they are summed, the head's is in
    float32. A chunk has its logits next to their log-softmax, both in float32, and later the logits' gradient, in 16
    bits with a part of the head's.
    """
    hidden, vocabulary = run.model.hidden_size, run.model.vocab_size // run.parallelism.tensor
    states = x.count * hidden * x.width
    head = vocabulary * hidden if run.job.trains_all_weights else 0
    kept = norm(run, x) + states + head * x.width
    # Sequence parallelism gathers the normed states.
    inputs = layer_input(run, x) + (states if x.between < x.count else 0)
    casts = head * x.width if in_autocast(run) and has_wide_weights(run) else 0
    of_softmax = chunk * (8 * vocabulary + hidden * x.width)
    of_gradients = chunk * (vocabulary + hidden) * x.width + (head * x.width if x.width < 4 else 0)
    summed = norm(run, x) + inputs + casts + states + 4 * head + max(of_softmax, of_gradients)
    return LossMemory(kept, summed, kept)
