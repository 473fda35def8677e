"""All layouts of a composed point that the rules allow, each with the overrides to type.

One composition serves them all: a layout is the composed run with other values of a few keys. A key that the user set
keeps its value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import conf
from jobs.errors import ConfigError
from jobs.files import read_yaml
from jobs.layout import data_degree, linked_ranks, pipeline_stages_per_rank
from jobs.parallelism import SET_AXES, TP, Schedule, Sharding, StageSplit, Strategy
from jobs.plan.compose import Point, compose
from jobs.plan.keys import key_of
from jobs.plan.legality import OF_ANY_LAYOUT, broken, layout_is_illegal, problems_of_layout
from jobs.plan.nearest import Values, applied, cuts, parts, typed, value_of
from jobs.plan.rules.rule import divisors
from jobs.schema import ActivationCheckpointing, Run

GROUP = "parallelism"
STRATEGY, SHARDING, NAME = f"{GROUP}.strategy", f"{GROUP}.sharding", f"{GROUP}.name"
SPLIT, LAYERS = f"{GROUP}.stage_split", f"{GROUP}.stage_layers"
SCHEDULE, STAGES = f"{GROUP}.schedule", f"{GROUP}.stages_per_rank"
MOST_VIRTUAL = 10
MICRO_BATCH, RECOMPUTATION = "job.micro_batch_size", "engine.activation_checkpointing"
METHODS = (
    *((strategy, None) for strategy in Strategy if strategy not in {Strategy.fsdp, Strategy.single}),
    *((Strategy.fsdp, sharding) for sharding in Sharding),
)
"""Ways to keep data-parallel replicas equal; `single` is ddp of one replica."""
START = "ddp"
"""Choice that the search starts from: it sets nothing but its method."""


@dataclass(frozen=True)
class Layout:
    """A legal run, and what a user types behind the common overrides of its space."""

    run: Run
    choice: tuple[str, ...]
    """Overrides of its point, method and degrees."""
    values: Values
    """Other values of the layout, by key."""

    @property
    def overrides(self) -> str:
        """Return the overrides to type."""
        return " ".join([*self.choice, *([typed(self.values)] if self.values else [])])

    @property
    def besides_stages(self) -> Values:
        """Return the values that are not of the virtual stages."""
        return tuple(value for value in self.values if value[0] not in {SCHEDULE, STAGES})


@dataclass(frozen=True)
class Layouts:
    """The composed points whose layouts are searched."""

    points: Sequence[Point]
    common: Sequence[str]
    """Overrides that all points share."""
    given: frozenset[str]
    """Keys and groups that the user set."""

    def layouts(self) -> Iterator[Layout]:
        """Yield the legal layouts of all points, whatever their memory."""
        start = f"{GROUP}={START}"
        for point in self.points:
            own = [override for override in point.overrides if override not in self.common and override != start]
            for layout in legal(point.run, self.given):
                yield replace(layout, choice=(*own, *layout.choice))

    def with_other_stages(self, layout: Layout) -> Iterator[Layout]:
        """Yield a legal layout of a pipeline with each other number of virtual stages a rank."""
        for stages in stages_of_equal_length(layout.run, self.given):
            virtual = interleaved(stages)
            run = applied(layout.run, virtual)
            if stages != pipeline_stages_per_rank(layout.run) and not problems_of_layout(run):
                yield Layout(run, layout.choice, (*virtual, *layout.besides_stages))


def read_layouts(overrides: list[str]) -> Layouts:
    """Compose the points of some overrides, whose lists are tried one by one; legal or not, as layouts change.

    Raises ConfigError for a run that trains nothing.
    """
    given = frozenset(map(key_of, overrides))
    start = [] if GROUP in given else [f"{GROUP}={START}"]
    points = compose([*overrides, *start], multirun=True, judge=lambda _run: [], to_submit=False)
    if not all(point.run.job.train for point in points):
        raise ConfigError(
            "job.train=false: layouts are ranked by the speed of training. Set job=pretrain or finetune_full."
        )
    shared = [each for each in points[0].overrides if all(each in point.overrides for point in points)]
    return Layouts(points, [each for each in shared if each not in start], given)


def legal(run: Run, given: frozenset[str]) -> Iterator[Layout]:
    """Yield the legal layouts of a run, which differ in keys that are not given."""
    if any(broken(OF_ANY_LAYOUT, run)):
        return
    for degrees, method in itertools.product(degrees_of(run, given), methods(run, given)):
        name = run.parallelism.name if GROUP in given else choice_of(method, degrees)
        made: Values = (*degrees.items(), *method.items(), (NAME, name))
        placed = applied(run, made)
        overrides = [] if GROUP in given else [f"{GROUP}={name}", *typed_degrees(run, name, degrees, given)]
        for virtual in virtual_stages(placed, given):
            grid = applied(placed, virtual)
            split = split_of(grid, given)
            grid = applied(grid, split)
            if layout_is_illegal(grid):
                continue
            for values in batches(grid, given):
                layout = applied(grid, values)
                if not problems_of_layout(layout):
                    mode = (RECOMPUTATION, run.engine.activation_checkpointing)
                    changed = tuple(value for value in (*virtual, *split, *values) if value != mode)
                    yield Layout(layout, tuple(overrides), changed)


def degrees_of(run: Run, given: frozenset[str]) -> list[dict[str, int]]:
    """Return the products of degrees that divide the ranks, and parts of the model; TP groups stay on the link."""
    own = {axis.key: value_of(run, axis.key) or 1 for axis in SET_AXES}
    if GROUP in given:
        return [own]
    products = (
        {**cut, **part}
        for cut, dp in cuts(run.ranks)
        if linked_ranks(run) % cut[TP.key] == 0
        for part in parts(run, dp)
    )
    return [degrees for degrees in products if all(degrees[key] == own[key] for key in given & degrees.keys())]


def virtual_stages(run: Run, given: frozenset[str]) -> Iterator[Values]:
    """Yield the schedule as it is, and with many virtual stages a rank: these divide the pipeline's bubble.

    More than MOST_VIRTUAL gain little, and each sends its activations. `with_other_stages` has the other numbers: all
    of them at once would double the time of a search.
    """
    yield ()
    if stages := stages_of_equal_length(run, given):
        yield interleaved(max((each for each in stages if each <= MOST_VIRTUAL), default=stages[0]))


def stages_of_equal_length(run: Run, given: frozenset[str]) -> list[int]:
    """Return the numbers of virtual stages a rank that make stages of equal length; empty where none is free.

    Where PP does not divide the layers, the embedding and the head count as one each: Llama 3.1 405B has 126 layers for
    this reason.
    """
    p, layers = run.parallelism, run.model.layers
    if p.pipeline == 1 or given & {GROUP, SCHEDULE, STAGES}:
        return []
    equal = next((count // p.pipeline for count in (layers, layers + 2) if count % p.pipeline == 0), 1)
    return [stages for stages in divisors(equal) if 1 < stages <= layers // p.pipeline]


def interleaved(stages: int) -> Values:
    """Return the values of a pipeline with this number of virtual stages a rank."""
    return (SCHEDULE, Schedule.Interleaved1F1B), (STAGES, stages)


def split_of(run: Run, given: frozenset[str]) -> Values:
    """Return the division of layers that the pipeline stages of a run need, if they do not divide its layers."""
    p = run.parallelism
    if given & {GROUP, SPLIT, LAYERS} or p.stage_layers is not None:
        return ()
    stages = p.pipeline * pipeline_stages_per_rank(run)
    return ((SPLIT, StageSplit.balanced),) if run.model.layers % stages else ()


def methods(run: Run, given: frozenset[str]) -> list[dict[str, Any]]:
    """Return METHODS as values by key; only the one that a user or an experiment set, if any."""
    own = {STRATEGY: run.parallelism.strategy, SHARDING: run.parallelism.sharding}
    if given & {GROUP, *own} or tuple(own.values()) != (Strategy.ddp, None):
        return [own]
    return [dict(zip(own, method, strict=True)) for method in METHODS]


def batches(run: Run, given: frozenset[str]) -> Iterator[Values]:
    """Yield the sizes of micro-batches that divide the batch of a rank, with each mode of recomputation."""
    sizes = divisors(max(1, run.global_batch_size // data_degree(run)))
    axes: dict[str, Sequence[Any]] = {MICRO_BATCH: sizes, RECOMPUTATION: list(ActivationCheckpointing)}
    free = {key: values for key, values in axes.items() if key not in given}
    for values in itertools.product(*free.values()):
        yield tuple(zip(free, values, strict=True))


# --- the overrides to type ------------------------------------------------------------------------------------


@cache
def choices() -> Mapping[str, dict[str, Any]]:
    """Return the files of the group by name."""
    return {file.stem: read_yaml(file) for file in sorted(Path(conf.__path__[0]).glob(f"{GROUP}/*.yaml"))}


def choice_of(method: Mapping[str, Any], degrees: Mapping[str, int]) -> str:
    """Return the choice of the group with this method that leaves the fewest degrees to set, of the same axes."""
    names = [getattr(value, "name", None) for value in method.values()]
    same = {name: file for name, file in choices().items() if [file["strategy"], file.get("sharding")] == names}

    def far(name: str) -> tuple[int, int]:
        pairs = [(file_degree(name, key), value) for key, value in degrees.items()]
        return sum(a != b for a, b in pairs), sum((a > 1) != (b > 1) for a, b in pairs)

    return min(same, key=far, default=START)


def file_degree(name: str, key: str) -> int:
    """Return a degree of a choice of the group."""
    degree: int = choices()[name].get(key.rpartition(".")[2], 1)
    return degree


def typed_degrees(run: Run, name: str, degrees: Mapping[str, int], given: frozenset[str]) -> Iterator[str]:
    """Yield the overrides of the degrees that a choice does not make; `run` is composed with START."""
    for key, value in degrees.items():
        if key not in given and (value != file_degree(name, key) or value_of(run, key) != 1):
            yield f"{key}={value}"
