"""The plan table, which `plan` and `submit` print: one row per run, with a sum and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.console import plain
from jobs.engines.engine import engine_of
from jobs.fitted_table import FittedTable
from jobs.layout import accumulation, has_gpus, layout_of
from jobs.parallelism import AXES, SHARD_PARTS, TABLE_AXES
from jobs.plan.cost import checkpoint_bytes, gpu_hours_limit, parameters_of, priced, trained_parameters
from jobs.plan.legality import warnings
from jobs.plan.predict.memory import memory, source_of
from jobs.plan.predict.queue import QueueWait, queue_wait
from jobs.plan.predict.speed import speed
from jobs.plan.rules import sbatch_variables
from jobs.plan.rules.memory import Verdict, gigabytes, in_words, verdict
from jobs.plan.rules.predicted_time import allowed_starts, starts
from jobs.plan.rules.values import precision_notes
from jobs.plan.time_limit import STOP_S, duration, stop_before_limit_s
from jobs.schema import INSTRUCTIONS, Batching, Run, Transport
from jobs.work.work import work_of

if TYPE_CHECKING:
    from jobs.runtime.steps import Samples  # which imports NumPy

PRICE = "price <="
MOST_FITTING = 20
"""Runs of a plan that has a line on memory for each that fits."""


def plan_table(runs: list[Run]) -> FittedTable:
    """Return a table with one row per run."""
    table = FittedTable()
    table.whole("name")
    layouts = [layout_of(run) for run in runs]
    used = {axis for layout in layouts for axis in AXES if layout.degree(axis) > 1}
    axes = [axis for axis in TABLE_AXES if not axis.rare or axis in used]
    # Their ranks are some of the dp.
    parts = [axis for axis in SHARD_PARTS if axis in used]
    frozen = any(not run.job.trains_all_weights for run in runs)
    own = [work_of(run).columns(run) for run in runs]
    grid = any(work_of(run).has_grid(run) for run in runs)
    known = any(map(parameters_of, runs))
    money = any(priced(run, gpu_hours_limit(run)) is not None for run in runs)
    columns, trains = dict.fromkeys(name for each in own for name in each), any(map(has_batch, runs))
    for column in (
        "nodes",
        "ranks",
        *((" x ".join(["dp", *(axis.name for axis in axes)]),) if grid else ()),
        *(axis.name for axis in parts),
        *columns,
        *(("MBS x acc = GBS",) if trains else ()),
        *(("parameters",) if known else ()),
        *(("trained",) if frozen else ()),
        *(("GB/rank >=",) if known else ()),
        "time limit",
        "GPU-hours <=",
        *((PRICE,) if money else ()),
    ):
        table.number(column)
    for run, layout, values in zip(runs, layouts, own, strict=True):
        hours = gpu_hours_limit(run)
        degrees = (layout.dp, *map(layout.degree, axes))
        table.add_row(
            plain(run.name or ""),
            nodes_in_words(run),
            str(run.ranks),
            *((" x ".join(map(str, degrees)),) if grid else ()),
            *(str(layout.degree(axis)) for axis in parts),
            *(values.get(column, "-") for column in columns),
            *((batch(run),) if trains else ()),
            *((f"{parameters_of(run):,}",) if known else ()),
            *((f"{trained_parameters(run):,}",) if frozen else ()),
            *((f"{work_of(run).rank_bytes(run) / 1e9:,.3g}",) if known else ()),
            duration(run.wall_time_min),
            "- (CPU)" if hours is None else f"{hours:,.1f}",
            *((price_in_words(run, hours),) if money else ()),
        )
    return table


def nodes_in_words(run: Run) -> str:
    """Return the nodes of the ranks, and those that the job keeps as spares: `4 + 1`."""
    return f"{run.nodes} + {run.launcher.spare_nodes}" if run.launcher.spare_nodes else str(run.nodes)


def price_in_words(run: Run, gpu_hours: float | None) -> str:
    """Return the price of GPU-hours with its currency."""
    price = priced(run, gpu_hours)
    return "-" if price is None else f"{money_in_words(price)} {plain(run.cluster.currency)}"


def money_in_words(price: float) -> str:
    """Return an amount of money: in hundredths below a thousand."""
    return f"{price:,.2f}" if price < 1000 else f"{price:,.0f}"


def has_batch(run: Run) -> bool:
    """Return whether the run has a global batch: of sequences or of images."""
    return work_of(run).has_batch


def batch(run: Run) -> str:
    """Return the batches of a run that trains."""
    if not has_batch(run):
        return "-"
    return f"{run.job.micro_batch_size} x {accumulation(run)} = {run.global_batch_size}{batching(run)}"


def batching(run: Run) -> str:
    """Return how samples become micro-batches, where that is not the default."""
    return "" if run.job.batching is Batching.padded else f", {run.job.batching.name}"


def plan_notes(runs: list[Run], samples: Sequence[Samples | None] = ()) -> list[str]:
    """Return the sum of the table, and every warning once with its runs."""
    hours = [gpu_hours_limit(run) for run in runs]
    known = [value for value in hours if value is not None]
    total = f", at most {sum(known):,.1f} GPU-hours" if known else ""
    prices = [priced(run, value) for run, value in zip(runs, hours, strict=True)]
    currencies = {run.cluster.currency for run, price in zip(runs, prices, strict=True) if price is not None}
    if len(currencies) == 1 and None not in prices:
        total += f" and {money_in_words(sum(filter(None, prices)))} {plain(*currencies)} without energy"
    notes = [f"{len(runs)} run{'s' if len(runs) != 1 else ''}{total}", *sbatch_variables.notes(runs)]
    found: dict[tuple[str, str], list[str]] = {}
    for run, read in zip(runs, samples or [None] * len(runs), strict=True):
        stops = [("stop", sentence) for sentence in (*stop_notes(run), *restart_notes(run, read))]
        stops += [("spares", sentence) for sentence in spare_notes(run)]
        stops += [("copies", sentence) for sentence in copy_notes(run)]
        stops += [("queue", sentence) for sentence in queue_notes(run)]
        networks = [("network", sentence) for sentence in network_notes(run)]
        networks += [("precision", sentence) for sentence in precision_notes(run)]
        memories = [("memory", sentence) for sentence in memory_notes(run, read)] if len(runs) <= MOST_FITTING else []
        losses = list(engine_of(run).notes(run)) if work_of(run).is_predicted else []
        losses += [("speed", sentence) for sentence in length_notes(run) if read is None]
        own = work_of(run).notes(run)
        warned = [("warning", sentence) for sentence in warnings(run, read)]
        for note in [*memories, *stops, *networks, *losses, *own, *warned]:
            found.setdefault(note, []).append(run.name or "")
    for (kind, sentence), names in found.items():
        where = names[0] if len(names) == 1 else f"{len(names)} runs"
        notes.append(f"{kind} ({where}): {sentence}")
    return notes


def memory_notes(run: Run, samples: Samples | None) -> list[str]:
    """Return the predicted memory of a run on GPUs; one that is tight has a warning instead."""
    like = work_of(run).predicted_as(run)
    if not has_gpus(run) or like is None:
        return []
    predicted = memory(like, samples)
    match verdict(like, predicted):
        case Verdict.tight if like is run:
            return []
        case None:
            return [in_words(like, predicted)]
        case known:
            return [in_words(like, predicted, f"{known.value}, ")]


def memory_table(runs: list[Run]) -> FittedTable | None:
    """Return the terms of the predicted memory of each run, with intervals and sources; None if no run has one."""
    found = [like for each in runs if (like := work_of(each).predicted_as(each)) is not None]
    if not found:
        return None
    table = FittedTable()
    table.whole("name")
    table.whole("term")
    for column in ("GB", "90 %"):
        table.number(column)
    table.text("source")
    for run in found:
        predicted = memory(run)
        rows = {**predicted.terms, "GPU memory": predicted.device}
        for term, size in rows.items():
            limits = f"{gigabytes(size.low)} to {gigabytes(size.high)}"
            source = source_of(run, term) if term in predicted.terms else predicted.basis
            name = plain(run.name or "") if term == predicted.largest else ""
            table.add_row(name, term, gigabytes(size.point), limits, source)
    return table


def stop_notes(run: Run) -> list[str]:
    """Return when the run is asked to stop, where that is earlier than for a small checkpoint."""
    stop_s, size_gb = stop_before_limit_s(run), checkpoint_bytes(run) / 1e9
    if stop_s <= STOP_S:
        return []
    return [f"{stop_s} s before the time limit, to write a checkpoint of {size_gb:,.0f} GB"]


def restart_notes(run: Run, samples: Samples | None) -> list[str]:
    """Return how often a run is predicted to continue at its time limit, where restarts suffice for it."""
    found = speed(run, samples)
    if found is None or found.hours is None or not 1 < (count := starts(run, found.hours.point)) <= allowed_starts(run):
        return []
    word = found.basis.partition(":")[0]
    return [f"{word}: predicted to need {count} starts of wall_time_min={run.wall_time_min}, each from a checkpoint"]


def queue_notes(run: Run) -> list[str]:
    """Return how long a run may wait in the queue, by the waits of earlier jobs."""
    found = queue_wait(run)
    if not isinstance(found, QueueWait):
        return [] if found is None else [found]
    least, most = found.sizes
    of = f"{found.count} jobs on {least if least == most else f'{least} to {most}'} node{'s' * (most > 1)}"
    few = f"the longest waited {in_time(found.longest_s)}"
    tail = few if found.most_s is None else f"nine of ten at most {in_time(found.most_s)}"
    return [f"of {of}, half waited at most {in_time(found.median_s)}, {tail}"]


def in_time(seconds: float) -> str:
    """Return a time in the unit that a person would use."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s"


def spare_notes(run: Run) -> list[str]:
    """Return what spare nodes cost, and where a run goes on after one has taken the place of another."""
    if not run.launcher.spare_nodes:
        return []
    goes_on = "goes on from its last checkpoint" if checkpoint_bytes(run) else "begins again: it saves no checkpoint"
    return [
        f"the job asks for {run.job_nodes} nodes and pays for all of them; when one of its {run.nodes} fails, a spare "
        f"one takes its place in the same job, and the run {goes_on}"
    ]


def copy_notes(run: Run) -> list[str]:
    """Return the space that copies of checkpoints take on a disk of each node."""
    if run.job.checkpoint_copy_dir is None:
        return []
    size_gb, place = checkpoint_bytes(run) / run.nodes / 1e9, run.job.checkpoint_copy_dir
    return [f"each node keeps its part of the newest checkpoint in {place} too, about {size_gb:,.2g} GB"]


def network_notes(run: Run) -> list[str]:
    """Return the interface of gloo, where the cluster sets one for NCCL only, and that TCP's bandwidth is not known."""
    notes = []
    of_adapters = run.cluster.network_gb_per_s
    if run.network.transport is Transport.tcp and run.network.gb_per_s is None and of_adapters and run.nodes > 1:
        notes.append(
            f"predicted with the {of_adapters:g} GB/s of the cluster's adapters for each GPU; sockets reach less. Set "
            "network.gb_per_s to a measured value, in a sweep also as a file of network/ in your site"
        )
    nccl, gloo = (run.cluster.env.get(f"{library}_SOCKET_IFNAME") for library in ("NCCL", "GLOO"))
    if not nccl or gloo:
        return notes
    return [*notes, f"gloo, for checkpoints and ranks without GPUs, uses the interface of NCCL_SOCKET_IFNAME={nccl}"]


def length_notes(run: Run) -> list[str]:
    """Return the length of the samples that the predicted speed is of, where samples differ."""
    if run.data.source not in INSTRUCTIONS or not run.job.train or speed(run) is None:
        return []
    return [
        f"predicted for samples of job.sequence_length={run.job.sequence_length} tokens, shorter ones take less time; "
        "submit reads the data, and predicts speed and memory for its samples"
    ]
