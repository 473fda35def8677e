"""FLOPs of a token by PaLM's count (arXiv:2204.02311, appendix B), for predictions and for MFU."""

from __future__ import annotations

# Forward 2, backward 2 for the gradient of the activations and 2 for that of the weights.
FLOPS_PER_WEIGHT = 6
FLOPS_PER_FROZEN_WEIGHT = 4
FORWARD_FLOPS_PER_WEIGHT = 2
# The same for an entry of attention's two products: a token has s x heads x head size of them in each layer.
FLOPS_PER_ATTENDED = 12
FORWARD_FLOPS_PER_ATTENDED = 4
