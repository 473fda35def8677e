"""FLOPs of a token by PaLM's count (arXiv:2204.02311, appendix B), for predictions and for MFU."""

from __future__ import annotations

# Forward 2, backward 2 for the gradient of the activations and 2 for that of the weights.
FLOPS_PER_WEIGHT = 6
FLOPS_PER_FROZEN_WEIGHT = 4
FORWARD_FLOPS_PER_WEIGHT = 2
# The same for an entry of attention's two products: a token has s x heads x head size of them in each layer.
FLOPS_PER_ATTENDED = 12
FORWARD_FLOPS_PER_ATTENDED = 4


def attended(
    sequence: float, layers: int, window: int | None, full_attention_every: int, *, chunked: bool = False
) -> float:
    """Return the sum over layers of the positions that a token counts as attending to: `sequence`, or its window.

    The count is twice the mean of a causal mask, so that it is `sequence` without a window: with a window of w < s
    positions, s w - w^2 / 2 pairs of a sequence are computed, 2 w - w^2 / s for each token. With `chunked`, n whole
    chunks of w and a rest of r positions have (n w^2 + r^2) / 2.
    """
    if window is None or window >= sequence:
        return layers * sequence
    full = layers // full_attention_every if full_attention_every else 0
    if chunked:
        whole, rest = divmod(sequence, window)
        in_windows = (whole * window**2 + rest**2) / sequence
    else:
        in_windows = 2 * window - window**2 / sequence
    return full * sequence + (layers - full) * in_windows
