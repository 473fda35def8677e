"""NVIDIA's NeMo: its recipe with Megatron's parallelism."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jobs.engines.engine import Engine
from jobs.schema import Precision, Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States
    from jobs.plan.rules.rule import Rule
    from jobs.work.work import Entry


class NeMo(Engine):
    """engine=nemo."""

    package, extra = "nemo", "nemo"
    fuses_adapters = True

    def layout_rules(self) -> Iterable[Rule]:
        """Return its rules."""
        from jobs.engines.nemo.rules import RULES

        return RULES

    def states(self, run: Run) -> States:
        """Return Megatron's states."""
        from jobs.plan.predict.states import nemo

        return nemo(run)

    def bytes_per_parameter(self, run: Run) -> int:
        """Return 3 x 4 bytes, and in bfloat16 2 of the weights of the arithmetic."""
        return 14 if run.job.precision is Precision.bfloat16 else 12

    def shardings(self, run: Run) -> list[tuple[tuple[str, Any], ...]]:
        """Return the distributed optimizer."""
        return [(), (("engine.distributed_optimizer", True),)]

    def entry(self, run: Run) -> Entry:
        """Return the recipe in a rank."""
        from jobs.engines.nemo.train import train

        return train


ENGINE = NeMo()
