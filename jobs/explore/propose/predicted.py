"""Order of layouts by expected time, the chance of not fitting included, and those that none beats in everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from jobs.explore.layouts import Layout
from jobs.layout import degree_of
from jobs.parallelism import SET_AXES
from jobs.plan.predict.memory import Prediction, memory
from jobs.plan.predict.speed import Speed, expected_s, speed
from jobs.plan.rules.memory import chance_to_fit

DIGITS = 6
"""Decimals of seconds in which equal layouts agree."""


@dataclass(frozen=True)
class RankedLayout:
    """A legal layout with its predictions."""

    layout: Layout
    memory: Prediction
    speed: Speed
    chance: float
    """Probability that it fits its GPU."""

    @property
    def expected_s(self) -> float:
        """Return the expected seconds of a token of all GPUs."""
        return self.expected_gpu_s / self.layout.run.ranks

    @property
    def expected_gpu_s(self) -> float:
        """Return the expected GPU-seconds of a token."""
        return expected_s(self.speed.point_s / self.speed.tokens, self.chance)

    @cached_property
    def objectives(self) -> tuple[float, float, float]:
        """Return time, cost and memory, of which less is better."""
        return self.expected_s, self.expected_gpu_s, self.memory.device.point


def ranked(layouts: Iterable[Layout]) -> list[RankedLayout]:
    """Return by expected time the layouts that may fit and whose speed can be predicted.

    Each grid is listed once: FSDP of one rank, for instance, is DDP.
    """
    found: dict[tuple[Any, ...], RankedLayout] = {}
    for layout in layouts:
        run = layout.run
        held = memory(run)
        chance = chance_to_fit(run, held)
        predicted = speed(run) if chance else None
        if predicted is not None:
            numbers = (round(held.device.point), round(predicted.point_s, DIGITS))
            degrees = (degree_of(run, axis) for axis in SET_AXES)
            grid = (run.engine.kind, run.nodes, *degrees, run.job.micro_batch_size)
            found.setdefault((*grid, *numbers), RankedLayout(layout, held, predicted, chance))
    return sorted(found.values(), key=attrgetter("objectives"))


def pareto(order: Sequence[RankedLayout]) -> list[RankedLayout]:
    """Return those of ranked candidates that no other equals or beats in time, cost and memory at once."""
    kept: list[RankedLayout] = []
    for each in order:
        if not any(all(a <= b for a, b in zip(x.objectives, each.objectives, strict=True)) for x in kept):
            kept.append(each)
    return kept
