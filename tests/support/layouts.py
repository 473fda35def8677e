"""Every legal product of parallelisms up to eight ranks, enumerated from conf/ and the schema's choices.

Nothing is listed by hand: parallelism files, degrees, data axes, shardings and schedules come from the vocabulary,
each product is asked of the legality rules, and what they do not refuse must train. A parallelism file, a schedule or
a sharding that is added is in the matrix by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from jobs.layout import data_degree, layout_of
from jobs.parallelism import DP_SHARD, Schedule, Sharding, StageSplit, Strategy
from jobs.plan.legality import problems
from jobs.plan.pipeline_stages import pipeline_stage_layers
from jobs.schema import Run
from tests.support.composing import options

MOST_RANKS = 8
GLOBAL_BATCH = 24
# The tiny model as it is, on short sequences.
TINY = (
    "model=tiny",
    "data=random",
    f"data.max_samples={2 * GLOBAL_BATCH}",
    "job.sequence_length=8",
    "job.learning_rate=5e-3",
    "job.warmup_steps=2",
    "job.steps=5",
    "job.unmeasured_steps=1",
    f"scaling.global_batch_size={GLOBAL_BATCH}",
)
Case = dict[str, object]
"""Overrides by key."""


def named() -> Iterator[Case]:
    """Every parallelism file on every number of ranks, on one node and on two."""
    for name, nodes, ranks_per_node in product(options("parallelism"), (1, 2), range(1, MOST_RANKS + 1)):
        if nodes * ranks_per_node <= MOST_RANKS:
            yield {"parallelism": name, "nodes": nodes, "ranks_per_node": ranks_per_node}


def sharded() -> Iterator[Case]:
    """Every product of degrees under every sharding."""
    numbers = range(1, MOST_RANKS + 1)
    for pipeline, replicate, shard, tensor in product(numbers, repeat=4):
        ranks = pipeline * replicate * shard * tensor
        for sharding in Sharding if ranks <= MOST_RANKS else ():
            yield {
                "parallelism": "fsdp_full",
                "parallelism.sharding": sharding,
                "parallelism.pipeline": pipeline,
                "parallelism.data_replicate": replicate,
                "parallelism.data_shard": shard,
                "parallelism.tensor": tensor,
                "ranks_per_node": ranks,
            }


def scheduled() -> Iterator[Case]:
    """Every schedule and split of stages, alone and with TP and sharding around it."""
    for schedule, pipeline, tensor, shard, split in product(
        Schedule, range(2, MOST_RANKS + 1), (1, 2), (1, 2), StageSplit
    ):
        if (ranks := pipeline * tensor * shard) <= MOST_RANKS:
            yield {
                "parallelism": "pp_fsdp" if shard > 1 else "pp",
                "parallelism.schedule": schedule,
                "parallelism.stage_split": split,
                "parallelism.pipeline": pipeline,
                "parallelism.tensor": tensor,
                "ranks_per_node": ranks,
            }


@dataclass(frozen=True)
class Product:
    """A legal product of parallelisms."""

    overrides: list[str]
    ranks: int
    techniques: object
    """The axes of more than one rank, and the schedule: what other code than another product's runs."""


@cache
def matrix() -> dict[str, Product]:
    """Return every legal product by its name; a layout that other words name too is there once."""
    bases = {name: unchecked(*TINY, f"parallelism={name}", "job.micro_batch_size=1") for name in options("parallelism")}
    found: dict[object, Product] = {}
    for case in (*named(), *sharded(), *scheduled()):
        run = applied(bases[str(case["parallelism"])], case)
        if not problems(run):
            overrides = [f"{key}={getattr(value, 'name', value)}" for key, value in case.items()]
            overrides.append(f"job.micro_batch_size={run.job.micro_batch_size}")
            found.setdefault(arithmetic(run), Product(overrides, run.ranks, techniques(run)))
    return {name_of(product.overrides): product for product in found.values()}


def quick() -> set[str]:
    """Return the name of one product for each set of techniques, of as few ranks as it takes."""
    most_first = sorted(matrix().items(), key=lambda item: -item[1].ranks)
    return set({each.techniques: name for name, each in most_first}.values())


def unchecked(*overrides: str) -> Run:
    """A composed run that nobody has checked yet: most parallelism files want more ranks than one."""
    with initialize_config_module("conf", version_base="1.3"):
        config = OmegaConf.merge(OmegaConf.structured(Run), compose("config", list(overrides)))
    run = OmegaConf.to_object(config)
    assert isinstance(run, Run)
    return run


def applied(base: Run, case: Case) -> Run:
    """The run with a case's values, and micro-batches for its pipeline."""
    values = {key: value for key, value in case.items() if key != "parallelism"}
    own: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
    degrees: dict[str, Any] = {key.split(".")[1]: value for key, value in values.items() if "." in key}
    run = replace(base, **own, parallelism=replace(base.parallelism, **degrees))
    return replace(run, job=replace(run.job, micro_batch_size=micro_batch_size(run)))


def micro_batch_size(run: Run) -> int:
    """The largest that gives every pipeline rank a micro-batch; up to four ranks, one that accumulates anyway.

    A micro-batch more costs eight ranks on two cores seconds.
    """
    of_rank = GLOBAL_BATCH // max(1, data_degree(run))
    return max(1, of_rank // max(2 if run.ranks <= 4 else 1, run.parallelism.pipeline))


def arithmetic(run: Run) -> object:
    """Return the settings that determine the operations and their order; nodes and names do not."""
    p, layout = run.parallelism, layout_of(run)
    freed = p.sharding in (Sharding.FULL_SHARD, Sharding.HYBRID_SHARD) and layout.degree(DP_SHARD) > 1
    pipeline = (p.schedule, *pipeline_stage_layers(run)) if p.pipeline > 1 else None
    return layout.shape, p.strategy if math.prod(layout.shape) > 1 else Strategy.single, freed, pipeline


def techniques(run: Run) -> object:
    """Return the axes of more than one rank, and the schedule of a pipeline."""
    pipelined = run.parallelism.pipeline > 1
    return tuple(degree > 1 for degree in layout_of(run).shape), run.parallelism.schedule if pipelined else None


def name_of(overrides: list[str]) -> str:
    """A test's name: every value that is not one."""
    pairs = (override.rsplit(".", 1)[-1].split("=") for override in overrides)
    return "-".join(f"{key}={value}" for key, value in pairs if value != "1")
