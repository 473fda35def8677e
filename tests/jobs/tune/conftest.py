"""Tests of tuning need the extra `tune`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.support.required import skip_or_fail


@pytest.fixture(autouse=True)
def _optuna_is_installed() -> None:
    if find_spec("optuna") is None:
        skip_or_fail("Optuna, the extra tune, is not installed")
