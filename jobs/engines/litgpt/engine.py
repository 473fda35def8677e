"""LitGPT's own scripts, the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobs.engines.engine import Engine
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.schema import Run

if TYPE_CHECKING:
    from jobs.data import Dataset
    from jobs.plan.predict.activations import Tokens
    from jobs.plan.predict.states import States


UNFUSED_NORM_BYTES = 12
"""Bytes of a number that its RMSNorm keeps besides its input: in float32 the input, its square and the result."""


class LitGPT(Engine):
    """engine=litgpt."""

    entry_point = "jobs.engines.litgpt.train:train"
    rules = "jobs.engines.litgpt.rules"
    package, extra = "litgpt", "train"
    sets_allocator = allocates_gradients_first = False

    @property
    def not_read(self) -> Mapping[str, str]:
        """Return also the gate of losses: its scripts make all steps in one call."""
        return {**super().not_read, "job.loss_band.reference": "null"}

    def states(self, run: Run) -> States:
        """Return the states of LitGPT's scripts, all in `engine.parameters`."""
        from jobs.plan.predict.activations import WIDTHS
        from jobs.plan.predict.states import States, parameters_held

        held, width = parameters_held(run), WIDTHS[run.engine.parameters]
        trained = held.trained(run)
        moments = round(optimizer_of(run).moments(run) * trained)
        return States(weights=width * held.total, gradients=width * trained, optimizer=width * moments)

    def sharding_like_zero(self, run: Run) -> str:
        """Return LitGPT's sharding."""
        from jobs.engines.litgpt.rules import sharding_of

        return sharding_of(run)

    def layer_bytes(self, run: Run, x: Tokens) -> int:
        """Return those of the formula, and what LitGPT's RMSNorm keeps besides its input."""
        return super().layer_bytes(run, x) + 2 * UNFUSED_NORM_BYTES * x.count * run.model.hidden_size

    def described_call(self, run: Run) -> str:
        """Return the call of LitGPT's script."""
        from jobs.engines.litgpt.arguments import described

        return described(run)

    def refuse_samples(self, run: Run, dataset: Dataset) -> None:
        """Raise DataError for samples that LitGPT, which tokenizes instructions itself, would read otherwise."""
        from jobs.engines.litgpt.samples import refuse_bare_tokenizer, refuse_unended

        refuse_unended(dataset)
        refuse_bare_tokenizer(run, dataset)


ENGINE = LitGPT()
