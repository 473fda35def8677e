"""Import torchmetrics without transformers and SciPy, which a rank does not use.

LitGPT imports Lightning, which imports torchmetrics, which imports both if lightning_utilities reports them installed.
Without this module a run of two steps on a CPU takes 8.5 s of CPU time instead of 5.3 s (three runs each, in turns;
8.3 to 8.8 s, 5.2 to 5.9 s).
"""

from __future__ import annotations

import importlib
from typing import Any

LEFT_OUT = ("transformers", "scipy")


def import_torchmetrics_alone() -> None:
    """Import torchmetrics as if the packages of LEFT_OUT were not installed."""
    asked: Any = importlib.import_module("lightning_utilities.core.imports")
    available, cache = asked.package_available, asked.RequirementCache

    class OfOthers(asked.RequirementCache):  # type: ignore[misc]
        """A requirement such as "scipy>=1.8"; False for packages of LEFT_OUT."""

        def __bool__(self) -> bool:
            return not str(self.requirement).startswith(LEFT_OUT) and super().__bool__()

    asked.package_available = lambda package: package not in LEFT_OUT and available(package)
    asked.RequirementCache = OfOthers
    try:
        importlib.import_module("torchmetrics")
    finally:
        asked.package_available, asked.RequirementCache = available, cache
