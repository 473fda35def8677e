"""The engine of slurmscale: LitGPT's model under torch's own parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jobs.engines.engine import Engine
from jobs.parallelism import Sharding, Strategy
from jobs.schema import Precision, Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States
    from jobs.plan.rules.rule import Rule
    from jobs.work.work import Entry

FULLY_SHARDED = (("parallelism.strategy", Strategy.fsdp), ("parallelism.sharding", Sharding.FULL_SHARD))


class Native(Engine):
    """engine=native."""

    package, extra = "litgpt", "train"
    least_torch = (2, 11)
    """The first with attention for packed rows."""

    def not_read(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    def layout_rules(self) -> Iterable[Rule]:
        """Return its rules."""
        from jobs.engines.native.rules import RULES

        return RULES

    def states(self, run: Run) -> States:
        """Return the states in `engine.parameters`."""
        from jobs.plan.predict.states import native

        return native(run)

    def bytes_per_parameter(self, run: Run) -> int:
        """Return the size of a weight and AdamW's two moments."""
        return 3 * (2 if run.engine.parameters is Precision.bfloat16 else 4)

    def shardings(self, run: Run) -> list[tuple[tuple[str, Any], ...]]:
        """Return FSDP, which a pipeline does without."""
        return [(), FULLY_SHARDED] if run.parallelism.pipeline == 1 else [()]

    def entry(self, run: Run) -> Entry:
        """Return the loop."""
        from jobs.runtime.imports import import_litgpt_alone

        # Only here: the other engines start as their own programs do, and ours is measured against LitGPT's start.
        import_litgpt_alone()
        from jobs.work.train.loop import train

        return train


ENGINE = Native()
