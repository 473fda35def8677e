"""DeepSpeed's ZeRO around LitGPT's model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.engines.engine import Engine
from jobs.parallelism import Strategy
from jobs.schema import Precision, Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States
    from jobs.plan.rules.rule import Rule
    from jobs.work.work import Entry


class DeepSpeed(Engine):
    """engine=deepspeed."""

    package, extra = "deepspeed", "deepspeed"

    def layout_rules(self) -> Iterable[Rule]:
        """Return its rules."""
        from jobs.engines.deepspeed.rules import RULES

        return RULES

    def states(self, run: Run) -> States:
        """Return the states that are not offloaded."""
        from jobs.plan.predict.states import deepspeed

        return deepspeed(run)

    def bytes_per_parameter(self, run: Run) -> int:
        """Return the optimizer's float32 weights and moments; below stage 3 also the weights of the arithmetic."""
        narrow = 4 if run.job.precision is Precision.float32 else 2
        return 12 + (0 if run.parallelism.strategy is Strategy.zero3 else narrow)

    def shardings(self, run: Run) -> list[tuple[tuple[str, Any], ...]]:
        """Return ZeRO's last stage."""
        return [(), (("parallelism.strategy", Strategy.zero3),)]

    def entry(self, run: Run) -> Entry:
        """Return the loop with ZeRO's trainer."""
        from jobs.engines.deepspeed.train import train

        return train


ENGINE = DeepSpeed()
