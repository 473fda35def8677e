"""Skip a test whose program is missing, with the reason; fail it where nothing may be skipped."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

import pytest

from jobs.versions import is_missing


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test; with SLURMSCALE_NO_SKIP=1, as in CI, fail it."""
    if os.environ.get("SLURMSCALE_NO_SKIP") == "1":
        pytest.fail(f"SLURMSCALE_NO_SKIP=1, but {reason}")
    pytest.skip(reason)


def need_bitsandbytes() -> None:
    """Skip the test where weights cannot be quantized."""
    if find_spec("bitsandbytes") is None:
        skip_or_fail("bitsandbytes is not installed: pip install --editable '.[qlora]'.")


def python_of(package: str, module: str = "") -> str:
    """Return a Python that has a foreign trainer, or this module of it: this one, or that of a variable."""
    variable = f"SLURMSCALE_{package.upper()}_PYTHON"
    if python := os.environ.get(variable):
        return python
    if find_spec(module or package) is None:
        pytest.skip(f"{package} is not installed: set {variable} to the Python of an environment that has it.")
    return sys.executable


def need_dali() -> None:
    """Skip the test where NVIDIA DALI, 424 MB, is not installed; CI has it not."""
    if is_missing("nvidia.dali"):
        pytest.skip("NVIDIA DALI is not installed: pip install --editable '.[dali]'.")
