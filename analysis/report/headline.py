"""The headline, one sentence a task: how far the best line scales, and which point is fastest.

Throughputs are compared within a task: the same model, data and sequence length. The headline is about the line of the
fastest point, or about the one with the most ranks if that line has no other rank count. Doubtful points (see
analysis.report.caveats) are never named.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from analysis.formatting import listed, per_second, plural, shown, significant
from analysis.intervals import Spread
from analysis.metrics.shared_nodes import side_by_side
from analysis.parsers import log_metrics as a
from analysis.report.doubts import short_doubt
from analysis.run import RunResult, hardware
from analysis.scaling.groups import Group, Point, by_task
from analysis.scaling.mlperf import systems_of
from jobs import metrics as m

MOST_SCORES = 8


def headlines(groups: Sequence[Group], runs: Collection[RunResult]) -> list[str]:
    """Return one sentence for each task of the report, or one with the reason that there is none."""
    scored = scores(runs)
    if not groups:
        return scored or [no_headline(runs)]
    tasks, beside = by_task(groups).values(), side_by_side(runs)
    return scored + [headline(members, prefix(members, name_task=len(tasks) > 1), beside) for members in tasks]


def scores(runs: Collection[RunResult]) -> list[str]:
    """Return a sentence for each line of MLPerf systems with a score."""
    sentences = []
    for line in systems_of(runs):
        scored = [(system, system.score_s / 60) for system in line if system.score_s is not None]
        if not scored:
            continue
        at = [
            f"score {significant(minutes, a.TIME_TO_TRAIN.digits)} min"
            + (f" on {plural(system.ranks, 'rank')}" if system.ranks else "")
            + f" ({plural(len(system.reached), 'result')})"
            for system, minutes in scored
        ]
        sentences.append(f"{scored[0][0].described}: {listed(at, MOST_SCORES)}.")
    return sentences


def no_headline(runs: Collection[RunResult]) -> str:
    """Return the reason that there is no result."""
    if not runs:
        return "No scaling result: there is no training run. Other measurements are below."
    used = [run for run in runs if run.used]
    without = [run for run in used if run.ranks is None]
    if without:
        which = "no log contains" if len(without) == len(used) else f"{len(without)} of {len(used)} logs do not contain"
        return f"No scaling result: {which} the number of ranks; see the warnings for what to add."
    if used:
        return f"No scaling result: {plural(len(used), 'run')} without a throughput; their times to train are below."
    if len(runs) > 1:
        return f"No result: none of {plural(len(runs), 'run')} can be used; each is listed below with the reason."
    return "No result: the run cannot be used; the reason is below."


def prefix(groups: Sequence[Group], *, name_task: bool) -> str:
    """Return the first words of a sentence: the hardware, then the task if there are several."""
    first = groups[0].runs[0]
    task = [str(name)] if (name := first.setting("data.name")) else [groups[0].model]
    task += [f"sequence length {length:,}"] if (length := first.setting("job.sequence_length")) else []
    return hardware(run for group in groups for run in group.runs) + (f", {', '.join(task)}: " if name_task else ": ")


def fastest(groups: Sequence[Group]) -> tuple[Group, Point] | None:
    """Return the point with the highest throughput and its line; None if all points are doubtful."""
    points = [(group, point) for group in groups for point in group.points if not point.doubtful]
    return max(points, key=lambda item: item[1].throughput.median, default=None)


def headline_line(groups: Sequence[Group]) -> Group | None:
    """Return the line of the headline; None if none has two rank counts, or all points are doubtful."""
    best = fastest(groups)
    if best and farthest(best[0]):
        return best[0]
    return max((line for line in groups if farthest(line)), key=lambda line: line.points[-1].ranks, default=None)


def headline(groups: Sequence[Group], start: str, beside: Mapping[Path, RunResult]) -> str:
    """Return the sentence of one task; `beside` are runs that shared their machine with another run."""
    best = fastest(groups)
    if best is None:
        return f"{start}no point of {groups[0].model} is named fastest, because the losses of its runs disagree."
    group, point = best
    points = [each for line in groups for each in line.points if not each.doubtful]
    rate = f"{shown(point.rate, point.throughput.median)} {per_second(point.rate)}"
    spread = repeats(point.throughput) + overlap(point, points)
    line = headline_line(groups)
    if line is None:
        why = (
            "the losses that a reference needs are not believed"
            if any(each.reference for each in groups)
            else "none of its lines has points of different rank counts"
        )
        return (
            f"{start}{group.described} reaches {rate} on {point.place} ({spread}), the fastest of "
            f"{plural(len(points), 'point')}; {why}, so there is no speedup and no efficiency."
        )
    return (
        f"{start}{reach(line, beside)}; fastest of {plural(len(points), 'point')}: {group.label} on {point.place}, "
        f"{rate} ({spread})."
    )


def farthest(group: Group) -> Point | None:
    """Return the believed point with the most ranks; None if it or the reference is doubtful or absent."""
    if group.reference is None or group.reference.doubtful:
        return None
    believed = [point for point in group.points if not point.doubtful and point.ranks > group.reference.ranks]
    return believed[-1] if believed else None


def reach(group: Group, beside: Mapping[Path, RunResult]) -> str:
    """Return how far a line scales, with its doubts, reference, mode, repeats and spread."""
    reference, point = group.reference, farthest(group)
    assert reference is not None
    assert point is not None
    efficiency, speedup = group.efficiency(point), group.speedup(point)
    assert efficiency is not None
    percent = f"{shown(m.EFFICIENCY, efficiency.median)} % efficiency"
    doubt = short_doubt(group, point, beside)
    gain = f"speeds up {shown(m.SPEEDUP, speedup.median)} times ({percent}; " if speedup else f"keeps {percent} ("
    counts = (reference.throughput.n, efficiency.n)
    n = f"n = {counts[1]} each" if len(set(counts)) == 1 else f"n = {counts[0]} and {counts[1]}"
    spread = "no spread"
    if efficiency.n > 1:
        spread = f"spread {shown(m.EFFICIENCY, efficiency.low)} to {shown(m.EFFICIENCY, efficiency.high)} %"
    own = group.efficiency(reference)
    if own is not None and own.n > 1:
        spread += f", the reference's own {shown(m.EFFICIENCY, own.low)} to {shown(m.EFFICIENCY, own.high)} %"
    work = "throughput only, not the same work at each point" if group.unequal_work else f"{group.mode} scaling"
    return (
        f"from {reference.ranks:,} to {plural(point.ranks, 'rank')}, {group.described} {gain}{doubt}{work}, "
        f"reference {reference.place}, {n}, {spread})"
    )


def overlap(fastest: Point, points: Sequence[Point]) -> str:
    """Return how many points are as fast as the fastest, or have a repeat that is; empty if none."""
    best, others = fastest.throughput, [point.throughput for point in points if point is not fastest]
    equal = sum(other.median == best.median for other in others)
    within = sum(other.median < best.median and other.high >= best.low for other in others)
    reached = "a spread that {} reached into" if best.n > 1 else "which a repeat of {} reached"
    return (f", as fast as {plural(equal, 'other point')}" if equal else "") + (
        f", {reached.format(plural(within, 'other point'))}" if within else ""
    )


def repeats(spread: Spread) -> str:
    """Return the number of repeats and their spread: `n = 2, 5,200 to 5,400`."""
    if spread.n == 1:
        return "n = 1, no spread"
    # Rates have the same digits, whatever they count.
    return f"n = {spread.n}, {shown(m.TOKENS_PER_S, spread.low)} to {shown(m.TOKENS_PER_S, spread.high)}"
