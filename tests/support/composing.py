"""Overrides composed to points."""

from __future__ import annotations

from jobs.plan.compose import Point, compose
from tests.support.paths import ROOT

CONF = ROOT / "conf"


def one(*overrides: str) -> Point:
    """The single point of some overrides."""
    return compose(list(overrides), multirun=False)[0]


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))
