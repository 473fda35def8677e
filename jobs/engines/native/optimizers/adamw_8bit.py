"""AdamW with moments in 8 bits (https://arxiv.org/abs/2110.02861): a quarter of the bytes of float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from jobs.engines.native.optimizers.adamw import AdamW
from jobs.schema import Run

if TYPE_CHECKING:
    import torch

    from jobs.plan.predict.weights import Weight

LONGEST_BLOCK = 256
PARTS = 8


@cache
def block_of(columns: int) -> int:
    """Return the numbers of a row with one scale: the longest divisor of an eighth of a row, at most 256.

    It depends on the matrix alone, and TP over 2, 4 or 8 ranks cuts between blocks: every layout reads the others'.
    """
    part = columns // PARTS if columns % PARTS == 0 else columns
    return next(length for length in range(min(LONGEST_BLOCK, part), 0, -1) if part % length == 0)


class AdamW8bit(AdamW):
    """AdamW in float32 arithmetic, with moments of matrices in 8 bits and those of norms and biases in float32."""

    def state_bytes(self, run: Run) -> float:
        """Return 1 for a number in 8 bits with its part of a scale, and 4 for others, two of each."""
        from jobs.plan.predict.weights import size

        weights = list(weights_of(run))
        total = sum(
            count * each.copies * each.size * (1 + 4 / block_of(each.columns) if each.columns > 1 else 4)
            for count, each in weights
        )
        return self.moments(run) * total / sum(count * size([each]) for count, each in weights)

    def update_bytes(self, run: Run) -> float:
        """Return those of separate kernels, as torch runs jobs.engines.native.updates.eight_bit_adamw."""
        del run
        # Decode both moments (code, index, look-up, scale: 21 each), the update in float32 (80), and encode both
        # (magnitude, largest, quotient, search, code: 33 each).
        return 190

    def build(self, parameters: Iterable[Any], run: Run, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer."""
        from jobs.engines.native.updates.eight_bit_adamw import EightBitAdamW

        del device
        job = run.job
        return EightBitAdamW(
            parameters, lr=job.learning_rate, betas=(job.beta1, job.beta2), weight_decay=job.weight_decay
        )


def weights_of(run: Run) -> Iterator[tuple[int, Weight]]:
    """Yield the weights of the run's model, each with its count."""
    from jobs.plan.predict.weights import embedding_weights, kinds_of_layers, layer_weights, norm_weights

    model = run.model
    yield from ((count, each) for count, kind in kinds_of_layers(model) for each in layer_weights(kind))
    yield from ((1 if model.tie_embeddings else 2, each) for each in embedding_weights(model))
    yield from ((1, each) for each in norm_weights(model))


OPTIMIZER = AdamW8bit()
