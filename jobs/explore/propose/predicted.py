"""Order of layouts by expected time, the chance of not fitting included, and those that none beats in everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from jobs.explore.layouts import Layout
from jobs.plan.predict.memory import Prediction, memory
from jobs.plan.predict.speed import Speed, expected_s, speed
from jobs.plan.rules.memory import chance_to_fit

DIGITS = 6
"""Decimals of seconds in which equal layouts agree."""


@dataclass(frozen=True)
class Candidate:
    """A legal layout with its predictions."""

    layout: Layout
    memory: Prediction
    speed: Speed
    chance: float
    """Probability that it fits its GPU; 0: `plan` refuses it."""

    @property
    def expected_s(self) -> float:
        """Return the expected seconds of a token of all GPUs."""
        return self.expected_gpu_s / self.layout.run.ranks

    @property
    def expected_gpu_s(self) -> float:
        """Return the expected GPU-seconds of a token."""
        return expected_s(1 / self.speed.tokens_per_s_per_gpu.point, self.chance)

    @property
    def objectives(self) -> tuple[float, float, float]:
        """Return time, cost and memory, of which less is better."""
        return self.expected_s, self.expected_gpu_s, self.memory.device.point


def candidates(layouts: Iterable[Layout]) -> Iterator[Candidate]:
    """Yield the layouts whose speed can be predicted, each grid once: FSDP of one rank, for instance, is DDP."""
    seen = set()
    for layout in layouts:
        held = memory(layout.run)
        chance = chance_to_fit(layout.run, held)
        found = speed(layout.run) if chance else None
        if found is None:
            continue
        run, p = layout.run, layout.run.parallelism
        numbers = (run.job.micro_batch_size, round(held.device.point), round(found.step_time_s.point, DIGITS))
        same = (run.engine.kind, run.nodes, p.tensor, p.pipeline, p.context, *numbers)
        if same not in seen:
            seen.add(same)
            yield Candidate(layout, held, found, chance)


def ranked(found: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that `plan` does not refuse, by expected time."""
    return sorted((each for each in found if each.chance), key=attrgetter("objectives"))


def pareto(order: Sequence[Candidate]) -> list[Candidate]:
    """Return those of ranked candidates that no other equals or beats in time, cost and memory at once."""
    kept: list[Candidate] = []
    for each in order:
        if not any(all(a <= b for a, b in zip(x.objectives, each.objectives, strict=True)) for x in kept):
            kept.append(each)
    return kept
