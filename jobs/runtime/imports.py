"""torchmetrics without transformers and SciPy, for which a rank has no use and whose import takes longer than torch's.

LitGPT imports Lightning, that imports torchmetrics, and that imports both where they are installed, for metrics of text
and sound. Whether they are, it asks lightning_utilities.
"""

from __future__ import annotations

import importlib
from typing import Any

LEFT_OUT = ("transformers", "scipy")


def import_torchmetrics_alone() -> None:
    """Import torchmetrics as it imports itself where the packages of LEFT_OUT are not installed."""
    asked: Any = importlib.import_module("lightning_utilities.core.imports")
    available, cache = asked.package_available, asked.RequirementCache

    class OfOthers(asked.RequirementCache):  # type: ignore[misc]
        """Whether a requirement such as "scipy>=1.8" is met; one for a package that is left out is not."""

        def __bool__(self) -> bool:
            return not str(self.requirement).startswith(LEFT_OUT) and super().__bool__()

    asked.package_available = lambda package: package not in LEFT_OUT and available(package)
    asked.RequirementCache = OfOthers
    try:
        importlib.import_module("torchmetrics")
    finally:
        asked.package_available, asked.RequirementCache = available, cache
