"""LitGPT's own scripts, the baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobs.engines.engine import Engine
from jobs.schema import Run

if TYPE_CHECKING:
    from jobs.plan.predict.states import States
    from jobs.plan.rules.rule import Rule
    from jobs.work.work import Entry


class LitGPT(Engine):
    """engine=litgpt."""

    package, extra = "litgpt", "train"
    sets_allocator = False

    def layout_rules(self) -> Iterable[Rule]:
        """Return its rules."""
        from jobs.engines.litgpt.rules import RULES

        return RULES

    def states(self, run: Run) -> States:
        """Return the states in `engine.parameters`."""
        from jobs.plan.predict.states import litgpt

        return litgpt(run)

    def entry(self, run: Run) -> Entry:
        """Return the script in a rank."""
        from jobs.engines.litgpt.train import train

        return train


ENGINE = LitGPT()
