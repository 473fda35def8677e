"""Skip a test whose program is missing, with the reason; fail it where nothing may be skipped."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test; with SLURMSCALE_NO_SKIP=1, as in CI, fail it."""
    if os.environ.get("SLURMSCALE_NO_SKIP") == "1":
        pytest.fail(f"SLURMSCALE_NO_SKIP=1, but {reason}")
    pytest.skip(reason)


def need_bitsandbytes() -> None:
    """Skip the test where weights cannot be quantized."""
    if find_spec("bitsandbytes") is None:
        skip_or_fail("bitsandbytes is not installed: pip install --editable '.[qlora]'.")
