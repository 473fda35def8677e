"""The answer in one sentence a task: how far the best line scales, and which point is fastest.

A task is what throughputs may be compared over: the same model, data and sequence length. The line that is told is
that of the fastest point, or the one with the most ranks where that has no other rank count; doubtful points
(analysis.report.caveats) are never told.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from analysis.formatting import per_second, plural, shown
from analysis.intervals import Spread
from analysis.run import RunResult, hardware
from analysis.scaling.groups import Group, Point, by_task
from jobs import metrics as m


def answers(groups: Sequence[Group], runs: Collection[RunResult]) -> list[str]:
    """One sentence for each task of the report, or one that says why there is none."""
    if not groups:
        return [no_answer(runs)]
    tasks = by_task(groups).values()
    return [answer(members, prefix(members, name_task=len(tasks) > 1)) for members in tasks]


def no_answer(runs: Collection[RunResult]) -> str:
    """Why no question is answered."""
    if not runs:
        return "No scaling result: that takes trainings. What was measured is below."
    if any(run.used for run in runs):
        return "No scaling result: no log tells how many ranks there were; the warnings say what to write."
    if len(runs) > 1:
        return f"No result: none of {plural(len(runs), 'run')} can be used; each is listed below with the reason."
    return "No result: the run cannot be used; the reason is below."


def prefix(groups: Sequence[Group], *, name_task: bool) -> str:
    """The first words of a sentence on a task: the hardware, then the task where there are several."""
    first = groups[0].runs[0]
    task = [str(name)] if (name := first.setting("data.name")) else [groups[0].model]
    task += [f"sequence length {length:,}"] if (length := first.setting("job.sequence_length")) else []
    return hardware(run for group in groups for run in group.runs) + (f", {', '.join(task)}: " if name_task else ": ")


def fastest(groups: Sequence[Group]) -> tuple[Group, Point] | None:
    """The point with the most tokens per second, with its line; None when no point may be told."""
    points = [(group, point) for group in groups for point in group.points if not point.doubtful]
    return max(points, key=lambda item: item[1].throughput.median, default=None)


def told_line(groups: Sequence[Group]) -> Group | None:
    """The line whose scaling is told; None when none of them scales, or no point may be told."""
    best = fastest(groups)
    if best and farthest(best[0]):
        return best[0]
    return max((line for line in groups if farthest(line)), key=lambda line: line.points[-1].ranks, default=None)


def answer(groups: Sequence[Group], start: str) -> str:
    """The sentence of one task."""
    best = fastest(groups)
    if best is None:
        return f"{start}no point of {groups[0].model} is named fastest, because the losses of its runs disagree."
    group, point = best
    points = [each for line in groups for each in line.points if not each.doubtful]
    rate = f"{shown(point.rate, point.throughput.median)} {per_second(point.rate)}"
    spread = repeats(point.throughput) + overlap(point, points)
    line = told_line(groups)
    if line is None:
        why = (
            "the losses that a reference needs are not believed"
            if any(each.reference for each in groups)
            else "no line has points of different rank counts"
        )
        return (
            f"{start}{group.described} reaches {rate} on {point.place} ({spread}), the fastest of "
            f"{plural(len(points), 'point')}; {why}, so there is no speedup and no efficiency."
        )
    return (
        f"{start}{reach(line)}; fastest of {plural(len(points), 'point')}: {group.label} on {point.place}, {rate} "
        f"({spread})."
    )


def farthest(group: Group) -> Point | None:
    """The point with the most ranks that may be told; None when it or the reference is doubtful or absent."""
    if group.reference is None or group.reference.doubtful:
        return None
    told = [point for point in group.points if not point.doubtful and point.ranks > group.reference.ranks]
    return told[-1] if told else None


def reach(group: Group) -> str:
    """How far a line scales, with reference, mode, repeats and spread."""
    reference, point = group.reference, farthest(group)
    assert reference is not None
    assert point is not None
    efficiency, speedup = group.efficiency(point), group.speedup(point)
    assert efficiency is not None
    percent = f"{shown(m.EFFICIENCY, efficiency.median)} % efficiency"
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
        f"from {reference.ranks:,} to {plural(point.ranks, 'rank')}, {group.described} {gain}{work}, "
        f"reference {reference.place}, {n}, {spread})"
    )


def overlap(fastest: Point, points: Sequence[Point]) -> str:
    """How many points are as fast as the fastest, or have a repeat that is: it is then not fastest beyond doubt."""
    best, others = fastest.throughput, [point.throughput for point in points if point is not fastest]
    equal = sum(other.median == best.median for other in others)
    within = sum(other.median < best.median and other.high >= best.low for other in others)
    reached = "a spread that {} reached into" if best.n > 1 else "which a repeat of {} reached"
    return (f", as fast as {plural(equal, 'other point')}" if equal else "") + (
        f", {reached.format(plural(within, 'other point'))}" if within else ""
    )


def repeats(spread: Spread) -> str:
    """The number of repeats and their spread: `n = 2, 5,200 to 5,400`."""
    if spread.n == 1:
        return "n = 1, no spread"
    # Rates have the same digits, whatever they count.
    return f"n = {spread.n}, {shown(m.TOKENS_PER_S, spread.low)} to {shown(m.TOKENS_PER_S, spread.high)}"
