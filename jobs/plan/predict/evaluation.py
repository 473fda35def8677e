"""Memory of a run that trains nothing (jobs.work.evaluate.evaluate) besides its weights: forward passes, one process.

tests/jobs/plan/test_activations.py compares the sum with the real model.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs.engines.native.loss_chunk import loss_chunk
from jobs.plan.predict.activations import Tokens, attention, feed_forward, layer_input, rotary_table
from jobs.plan.predict.weights import kinds_of_run, layer_weights
from jobs.schema import Run


def evaluation_moments(run: Run, x: Tokens) -> Iterator[dict[str, float]]:
    """Yield the last layer, the loss, and the exact match of one row; nothing is kept for backward."""
    hidden, vocabulary = run.model.hidden_size, run.model.vocab_size
    # Autocast copies one matrix at a time.
    kinds = [kind for _, kind in kinds_of_run(run)]
    largest = max(weight.size for kind in kinds for weight in layer_weights(kind.model))
    copied = x.width * largest if x.width < 4 else 0
    # Input of the layer, result of attention, their sum and its norm.
    beside = 3 * layer_input(run, x) + x.count * hidden * x.width + rotary_table(run, x)
    yield {"activations": beside + copied + max(attention(run, x), *(feed_forward(kind, x) for kind in kinds))}
    # Hidden states, and their norm.
    states = 2 * layer_input(run, x) + rotary_table(run, x)
    yield {"activations": states, "loss": loss(run, x)}
    if run.data.mask_prompt:
        # In float32: hidden states of the labels of one row, and their logits.
        yield {"activations": states, "loss": 4 * x.count / run.job.micro_batch_size * (hidden + vocabulary)}


def loss(run: Run, x: Tokens) -> int:
    """Return the memory of the loss without gradients: logits, the same in float32, and their log-softmax.

    In chunks, the log-softmax of the chunk before still exists, and there is room for the gradient of the states.
    Autocast copies states and head.
    """
    hidden, vocabulary = run.model.hidden_size, run.model.vocab_size
    narrow = x.width if x.width < 4 else 0
    chunk, states = loss_chunk(run), x.count * hidden * x.width
    casts = states + hidden * vocabulary * narrow if narrow else 0
    if chunk is None:
        return x.count * vocabulary * x.width + max(casts, x.count * vocabulary * (8 if narrow else 4))
    chunk = min(chunk, x.count)
    before = 4 if chunk < x.count else 0
    return casts + states + chunk * (vocabulary * (8 + before) + hidden * x.width)
