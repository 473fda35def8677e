"""`slurmscale plan --search`: rank all legal layouts of a model over a range of nodes by prediction."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobs.answers import EstimateAnswer, LayoutAnswer, SearchAnswer
from jobs.console import console, shell_line
from jobs.errors import ConfigError
from jobs.explore.layouts import Layout, Layouts, read_layouts
from jobs.explore.propose.predicted import RankedLayout, pareto, ranked
from jobs.fitted_table import FittedTable
from jobs.layout import accumulation, data_degree
from jobs.plan.compose import Point
from jobs.plan.fitting import MOST_NODES, doublings
from jobs.plan.legality import problems_but_memory
from jobs.plan.predict.interval import Interval
from jobs.plan.predicted_table import shown, with_interval
from jobs.plan.rules.memory import gigabytes
from jobs.plan.rules.rule import divisors
from jobs.schema import Run

FASTEST, MOST_PARETO = 10, 15
"""Rows of the tables."""
REFINED = 50
"""First layouts that are also tried with every other number of virtual stages."""
HEADINGS = ("nodes", "dp x cp x tp x pp", "MBS x acc", "fits", "memory (GB)", "step (s)", "tokens/s per GPU", "hours",
            "GPU-hours")  # fmt: skip


HOUR_S = 3600


def search(overrides: list[str], picture: Path | None) -> SearchAnswer:
    """Return the fastest layouts and the Pareto set of time, cost and memory; draw all of them if `picture` is a path.

    Raises ConfigError as `in_order` does.
    """
    space = read_layouts(overrides)
    # Thousands of runs with their predictions have millions of objects and no garbage: collecting took a quarter of the
    # time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        layouts, order = in_order(space)
    finally:
        if collecting:
            gc.enable()
    best = pareto(order)
    if picture is not None:
        from jobs.explore.picture import draw  # noqa: PLC0415 (plotly)

        draw(order, best, picture)
    return SearchAnswer(
        order[0].speed.basis,
        len(layouts),
        len(order),
        list(space.common),
        [answer_of(each) for each in with_best_stages(order)[:FASTEST]],
        [answer_of(each) for each in spread(best)],
        len(best),
        None if picture is None else str(picture),
    )


def answer_of(candidate: RankedLayout) -> LayoutAnswer:
    """Return the record of a candidate."""
    run, predicted = candidate.layout.run, candidate.speed
    p = run.parallelism
    return LayoutAnswer(
        candidate.layout.overrides.split(),
        run.nodes,
        data_degree(run),
        p.context,
        p.tensor,
        p.pipeline,
        p.expert,
        run.job.micro_batch_size,
        accumulation(run),
        candidate.chance,
        estimate(candidate.memory.device),
        estimate(predicted.step_time_s),
        estimate(predicted.tokens_per_s_per_gpu),
        None if predicted.hours is None else estimate(predicted.hours.scaled(HOUR_S)),
        None if predicted.gpu_hours is None else estimate(predicted.gpu_hours.scaled(HOUR_S)),
    )


def estimate(interval: Interval) -> EstimateAnswer:
    """Return the record of an interval."""
    return EstimateAnswer(interval.point, interval.low, interval.high)


def show(found: SearchAnswer) -> None:
    """Print the tables of a search."""
    out = console()
    source, _, basis = found.basis.partition(": ")
    some = f", {len(found.pareto)} of {found.pareto_layouts}" if found.pareto_layouts > len(found.pareto) else ""
    out.print(
        f"{source}: predicted, {found.layouts_that_may_fit:,} of {found.legal_layouts:,} legal layouts may fit; "
        f"intervals of 90 %\n{basis}\nfastest, with the chance of not fitting counted as lost time:",
        table(found.fastest),
        f"\nPareto set of time, GPU-hours and memory{some}:",
        table(found.pareto),
        f"\nto plan one: slurmscale plan {shell_line(found.common)} OVERRIDES",
        *([] if found.file is None else [found.file]),
        sep="\n",
        soft_wrap=True,
    )


def in_order(space: Layouts) -> tuple[list[Layout], list[RankedLayout]]:
    """Return the legal layouts of a space, and those that may fit by expected time.

    Raises ConfigError if no layout is legal, none is predicted to fit, or no speed can be predicted.
    """
    layouts = list(space.layouts())
    if not layouts:
        raise ConfigError(no_layout(space))
    if not (order := ranked(layouts)):
        raise ConfigError(nothing_fits(space, layouts))
    seen = {each.overrides for each in layouts}
    for each in order[:REFINED]:
        for other in space.with_other_stages(each.layout):
            if other.overrides not in seen:
                seen.add(other.overrides)
                layouts.append(other)
    # Predictions are kept with their runs: this predicts the new ones only.
    return layouts, ranked(layouts)


def with_best_stages(order: Sequence[RankedLayout]) -> list[RankedLayout]:
    """Return ranked layouts without those that differ from a better one in their virtual stages only."""
    best: dict[object, RankedLayout] = {}
    for each in order:
        best.setdefault((each.layout.choice, each.layout.besides_stages), each)
    return list(best.values())


def table(found: Sequence[LayoutAnswer]) -> FittedTable:
    """Return a table with a row per candidate, which ends with the overrides to type."""
    made = FittedTable(key=len(HEADINGS))
    for heading in HEADINGS:
        made.number(heading)
    made.whole("overrides")
    for each in found:
        made.add_row(*cells(each), " ".join(each.overrides))
    return made


def cells(layout: LayoutAnswer) -> tuple[str, ...]:
    """Return the numbers of a candidate in the order of HEADINGS."""
    size = layout.memory_bytes
    return (
        f"{layout.nodes:,}",
        " x ".join(map(str, (layout.data, layout.context, layout.tensor, layout.pipeline))),
        f"{layout.micro_batch_size} x {layout.accumulation}",
        f"{100 * layout.chance_to_fit:.0f} %",
        f"{gigabytes(size.point)} ({gigabytes(size.low)} to {gigabytes(size.high)})",
        with_interval(layout.step_time_s),
        shown(layout.tokens_per_s_per_gpu.point),
        "depends on the data" if layout.duration_s is None else with_interval(layout.duration_s, HOUR_S),
        "" if layout.gpu_s is None else shown(layout.gpu_s.point / HOUR_S),
    )


def spread(found: Sequence[RankedLayout]) -> list[RankedLayout]:
    """Return at most MOST_PARETO candidates, evenly spaced in their order, the first and the last among them."""
    last = len(found) - 1
    places = range(MOST_PARETO) if last >= MOST_PARETO else range(last + 1)
    return [found[round(place * last / max(1, len(places) - 1))] for place in places]


# --- refusals -------------------------------------------------------------------------------------------------


def no_layout(space: Layouts) -> str:
    """Return why no layout is legal: what refuses the composed run of the first point, besides its degrees."""
    run = space.points[0].run
    return (
        f"No layout of {run.model.name} on {nodes_of(space)} is legal with engine={run.engine.kind.name} and GBS "
        f"{run.global_batch_size}. The first that was tried: {' '.join(problems_but_memory(run)) or 'none'} "
        "A global batch that many GPUs can share (scaling.global_batch_size), other nodes, or fewer fixed keys have "
        "more layouts."
    )


def nothing_fits(space: Layouts, layouts: Sequence[Layout]) -> str:
    """Return why no layout can be ranked, and the fewest nodes with one that fits."""
    run = space.points[0].run
    if run.gpu.memory_gb_per_s is None or run.gpu.memory_gb is None:
        return (
            f"The rates of gpu={run.gpu.name} are not known, so no speed is predicted. Set gpu=NAME of conf/gpu, or a "
            "cluster that has one."
        )
    refused = (
        f"None of {len(layouts):,} legal layouts of {run.model.name} on {nodes_of(space)} is predicted to fit "
        f"gpu={run.gpu.name} of {run.gpu.memory_gb:g} GB."
    )
    largest = max(space.points, key=lambda point: point.run.nodes)
    tried = more_nodes(largest.run)
    for nodes in tried:
        if order := ranked(Layouts([on_nodes(largest, nodes)], space.common, space.given).layouts()):
            best = order[0]
            return (
                f"{refused} On more nodes {len(order):,} may fit, the fastest with a chance of "
                f"{100 * best.chance:.0f} %. Set {best.layout.overrides}."
            )
    also = f" Nor is one on nodes={','.join(map(str, tried))}; other counts were not tried." if tried else ""
    return f"{refused}{also} Choose a GPU with more memory, or a larger global batch, which more nodes can share."


def more_nodes(run: Run) -> list[int]:
    """Return larger counts of nodes to try: doubles, and the next ones that pipelines of whole layers divide."""
    most = run.cluster.max_nodes or MOST_NODES
    doubles = doublings(2 * run.nodes, most)
    next_multiples = ((run.nodes // stages + 1) * stages for stages in divisors(run.model.layers))
    return sorted({*doubles, *(nodes for nodes in next_multiples if nodes <= most)})


def on_nodes(point: Point, nodes: int) -> Point:
    """Return a point on another number of nodes."""
    others = [override for override in point.overrides if not override.startswith("nodes=")]
    return replace(point, run=replace(point.run, nodes=nodes), overrides=[*others, f"nodes={nodes}"])


def nodes_of(space: Layouts) -> str:
    """Return the nodes of a space as overrides."""
    return f"nodes={','.join(map(str, dict.fromkeys(point.run.nodes for point in space.points)))}"
