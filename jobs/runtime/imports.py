"""Import LitGPT and Liger without optional packages that a rank does not use.

LitGPT imports Lightning and torchmetrics, and these import transformers, SciPy, Matplotlib and bitsandbytes if
lightning_utilities reports them installed. What needs bitsandbytes (QLoRA) imports it itself. Liger imports peft to
learn whether it is there, and peft imports scikit-learn, pandas and 2,200 modules in all: 7 of 8 seconds.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

LEFT_OUT = ("transformers", "scipy", "matplotlib", "bitsandbytes")


def import_litgpt_alone() -> None:
    """Import LitGPT as if the packages of LEFT_OUT were not installed."""
    asked: Any = importlib.import_module("lightning_utilities.core.imports")
    available, cache = asked.package_available, asked.RequirementCache

    class OfOthers(asked.RequirementCache):  # type: ignore[misc]
        """A requirement such as "scipy>=1.8"; False for packages of LEFT_OUT."""

        def __bool__(self) -> bool:
            return not str(self.requirement).startswith(LEFT_OUT) and super().__bool__()

    asked.package_available = lambda package: package not in LEFT_OUT and available(package)
    asked.RequirementCache = OfOthers
    try:
        importlib.import_module("litgpt")
    finally:
        asked.package_available, asked.RequirementCache = available, cache
        asked.module_available.cache_clear()


def import_liger_alone() -> None:
    """Import Liger's kernels as if peft were not installed, unless it is imported already."""
    left_out = "peft" not in sys.modules
    if left_out:
        sys.modules["peft"] = None  # type: ignore[assignment]  # its import then raises ImportError
    try:
        importlib.import_module("liger_kernel.ops")
    finally:
        if left_out:
            del sys.modules["peft"]
