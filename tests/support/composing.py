"""Overrides composed to points."""

from __future__ import annotations

import pytest

from jobs.errors import ConfigError
from jobs.plan.compose import Point, compose
from tests.support.paths import ROOT

CONF = ROOT / "conf"


def one(*overrides: str) -> Point:
    """The single point of some overrides."""
    return compose(list(overrides), multirun=False)[0]


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def refusal(*overrides: str, multirun: bool = False) -> str:
    """Return the refusal of some overrides."""
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides), multirun=multirun)
    return str(caught.value)
