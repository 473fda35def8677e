"""Changes that make a run fit the memory of its GPUs, as overrides to paste.

Keep fewer activations, shard the states, or add nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from operator import attrgetter

from jobs.engines.engine import engine_of
from jobs.layout import data_degree
from jobs.plan.nearest import Values, applied, typed
from jobs.schema import ActivationCheckpointing, Run, ScalingMode
from jobs.work.work import work_of

MOST_NODES = 4096
"""Where the cluster sets no limit."""
SIZES = ("nodes", "scaling.global_batch_size")
"""Keys that are not part of a layout."""


def nearest_fitting(run: Run, fits: Callable[[Run], bool], count: int = 3) -> list[str]:
    """Return at most `count` sets of overrides that each make a run fit: fewest nodes first, a layout only once."""
    found: dict[Values, str] = {}
    # The first one is the run itself, which does not fit.
    (_, *lighter) = fewer_activations(run)
    layouts = (changes(near, values) for near, values in ((run, ()), *lighter[-1:]))
    for near, values in itertools.chain(lighter, *layouts):
        layout = tuple((key, value) for key, value in values if key not in SIZES)
        if layout not in found and fits(near):
            found[layout] = typed(values)
            if len(found) == count:
                break
    return list(found.values())


def fewer_activations(run: Run) -> list[tuple[Run, Values]]:
    """Return the run, then in its layout with smaller micro-batches, with recomputation, and with both."""
    size = run.job.micro_batch_size
    batches: list[Values] = [(), *((("job.micro_batch_size", size // 2**i),) for i in range(1, size.bit_length())
                                   if size % 2**i == 0)]  # fmt: skip
    modes: list[Values] = [()]
    if work_of(run).has_batch and run.engine.activation_checkpointing is not ActivationCheckpointing.full:
        modes.append((("engine.activation_checkpointing", ActivationCheckpointing.full),))
    every = [(*batch, *mode) for mode in modes for batch in batches]
    return [(applied(run, values), values) for values in every]


def changes(run: Run, before: Values = ()) -> Iterator[tuple[Run, Values]]:
    """Yield changed runs: sharded on the same ranks, with larger TP groups and longer pipelines, then on more nodes.

    `before` are the values that made the run, which begin what is yielded.
    """
    p = run.parallelism
    widths, depths = doublings(p.tensor, run.ranks_per_node), doublings(p.pipeline, run.model.layers)
    # A training without a pipeline keeps its schedule; a server has none.
    deepens = p.pipeline > 1 or not work_of(run).has_batch
    degrees = list(itertools.product(depths if deepens else [1], widths, engine_of(run).shardings(run)))
    for nodes in doublings(run.nodes, run.cluster.max_nodes or MOST_NODES):
        for pipeline, tensor, sharding in degrees:
            values = (*sharding, ("parallelism.tensor", tensor), ("parallelism.pipeline", pipeline), ("nodes", nodes))
            values += work_of(run).resized(run, nodes, tensor * pipeline)
            near = applied(run, values)
            # 0 where the degrees need more ranks than there are.
            if data_degree(near):
                near, batch = with_whole_batch(near)
                changed = ((key, value) for key, value in (*values, *batch) if value != attrgetter(key)(run))
                yield near, (*before, *changed)


def with_whole_batch(run: Run) -> tuple[Run, Values]:
    """Return the run with a global batch that fills its ranks and pipeline, at least its own, and that value."""
    unit = run.job.micro_batch_size * data_degree(run) * run.parallelism.pipeline
    if run.scaling.mode is ScalingMode.weak or run.global_batch_size % unit == 0:
        return run, ()
    batch: Values = (("scaling.global_batch_size", -(-run.global_batch_size // unit) * unit),)
    return applied(run, batch), batch


def doublings(first: int, last: int) -> Iterator[int]:
    """Yield a number and its doubles up to the last one."""
    while first <= last:
        yield first
        first *= 2
