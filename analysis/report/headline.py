"""The headline: the scores of MLPerf systems, then how far each task scales and what its other lines gain.

Throughputs are compared within a task: the same model, data and sequence length. The sentence of a task is about the
line of its fastest point, or about the one with the most ranks if that line has no other rank count. Tasks that nothing
scales in share one sentence. Doubtful points (see analysis.report.caveats) are never named.
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
from analysis.scaling.mlperf import System, systems_of
from jobs import metrics as m
from jobs.metrics import Metric

MOST_SCORES, MOST_SOURCES, MOST_LESSONS = 8, 2, 3


def headlines(
    groups: Sequence[Group], runs: Collection[RunResult], benchmarks: Sequence[str] = (), *, measured: bool = False
) -> list[str]:
    """Return the scores, a sentence for each task that scales, and one for the others; or why there is none.

    `benchmarks` are the sentences of benchmarks that are no training, which follow; `measured`: a table has other
    measurements.
    """
    scored = [line for line in systems_of(runs) if any(system.score_s is not None for system in line)]
    sentences = [score(line) for line in scored]
    if not groups:
        missing = [] if sentences or (benchmarks and not runs) else [no_headline(runs, measured=measured)]
        return [*sentences, *missing, *benchmarks]
    # The score of a system is more than its throughput, which the ranking has.
    covered = {run.path for line in scored for system in line for run in system.results}
    every, beside = list(by_task(groups).values()), side_by_side(runs)
    tasks = [task for task in every if any(run.path not in covered for group in task for run in group.runs)]
    single = [task for task in tasks if fastest(task) and not any(group.reference for group in task)]
    together = single if len(single) > 1 else []
    sentences += [
        headline(task, prefix(task, name_task=len(every) > 1), beside) for task in tasks if task not in together
    ]
    return [*sentences, *([unscaled(together)] if together else []), *benchmarks]


def score(line: Sequence[System]) -> str:
    """Return the scores of a line of systems, of which one has a score, and how they scale."""
    known = [(system, system.score_s) for system in line if system.score_s is not None]
    at = [
        f"score {significant(score_s / 60, a.TIME_TO_TRAIN.digits)} min"
        + (f" on {plural(system.ranks, 'rank')}" if system.ranks else "")
        + f" ({plural(len(system.reached), 'result')})"
        for system, score_s in known
    ]
    (first, first_s), (last, last_s) = known[0], known[-1]
    times = ""
    if 0 < first.ranks < last.ranks:
        times = f"; {first_s / last_s:.3g} times as fast on {last.ranks / first.ranks:.3g} times the ranks"
    return f"{first.described}: {listed(at, MOST_SCORES)}{times}."


def unscaled(tasks: Sequence[Sequence[Group]]) -> str:
    """Return the sentence on several tasks without a speedup: the largest rate of a rank in each unit.

    Steps do not divide over ranks, nor compare between batches.
    """
    found: dict[Metric, list[tuple[Group, Point]]] = {}
    for task in tasks:
        if (best := fastest(task)) and best[1].rate is not a.STEPS_PER_S:
            found.setdefault(best[1].rate, []).append(best)
    largest = []
    for rate, points in found.items():
        group, point = max(points, key=lambda each: each[1].throughput_per_rank.median)
        speed = (
            f"{shown(rate, point.throughput_per_rank.median)} {per_second(rate)} by {group.described}, {point.place}"
        )
        largest.append(speed + (f" (of {len(points)} tasks)" if len(points) > 1 else ""))
    start = hardware(run for task in tasks for group in task for run in group.runs)
    most = f"Most per rank: {'; '.join(largest)}. " if largest else ""
    return (
        f"{start}: {plural(len(tasks), 'task')} without a line of different rank counts, so there is no speedup and no "
        f"efficiency. {most}Tasks differ in model, data or length, so this is no contest: the ranking lists the lines "
        "of each."
    )


def no_headline(runs: Collection[RunResult], *, measured: bool) -> str:
    """Return the reason that there is no result."""
    if not runs and measured:
        return "No scaling result: there is no training run. Other measurements are below."
    if not runs:
        return "No result: these files contain neither a training run nor a benchmark."
    used = [run for run in runs if run.used]
    without = [run for run in used if run.ranks is None]
    if without:
        which = f"{len(without)} of {plural(len(used), 'measured run')} do not contain"
        if len(without) == len(used):
            which = "no log of a measured run contains"
        return f"No scaling result: {which} the number of ranks; see the warnings for what to add."
    if used:
        return f"No scaling result: {plural(len(used), 'run')} without a throughput; their times to train are below."
    if len(runs) > 1:
        return f"No result: none of {plural(len(runs), 'run')} can be used; each is listed below with the reason."
    return "No result: the run cannot be used; the reason is below."


def prefix(groups: Sequence[Group], *, name_task: bool) -> str:
    """Return the first words of a sentence: the hardware, then task and submitter if there are several tasks."""
    named = [task_name(groups), submitted_by(groups)] if name_task else []
    return ", ".join([hardware(run for group in groups for run in group.runs), *filter(None, named)]) + ": "


def task_name(groups: Sequence[Group]) -> str:
    """Return a task as text: its data, else its model, and the sequence length."""
    first = groups[0].runs[0]
    length = first.setting("job.sequence_length")
    name = str(first.setting("data.name") or groups[0].model)
    return f"{name}, sequence length {length:,}" if length else name


def submitted_by(groups: Sequence[Group]) -> str:
    """Return the submitters of some lines, or the directories of their logs; empty for runs of ours."""
    logs = [run for group in groups for run in group.runs if run.log is not None]
    known = {str(run.setting("system.organization") or run.path.parent.name) for run in logs}
    names = sorted(name for name in known if name not in groups[0].model)
    return f"from {listed(names, MOST_SOURCES)}" if names else ""


def named_after(start: str, group: Group) -> str:
    """Return a line's name for a sentence, without the model if the sentence starts with it."""
    return label_within(start, group) or "it" if names_model(start, group) else group.described


def label_within(text: str, group: Group) -> str:
    """Return the label of a line, without the model if a text names it; empty if it is the model alone."""
    return group.label.removeprefix(group.model).strip() if names_model(text, group) else group.label


def names_model(text: str, group: Group) -> bool:
    """Return True if a text contains the task of a line, and the task is named by its model."""
    return task_name([group]) in text and not group.runs[0].setting("data.name")


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
        return f"{start}no point of {groups[0].model} is named fastest, because no loss of its runs is believed."
    group, point = best
    points = [each for line in groups for each in line.points if not each.doubtful]
    rate = f"{shown(point.rate, point.throughput.median)} {per_second(point.rate)}"
    spread = repeats(point.throughput) + overlap(point, points)
    line = headline_line(groups)
    if line is None:
        why = (
            "too few rank counts of its lines have a loss that is believed"
            if any(each.reference for each in groups)
            else "none of its lines has points of different rank counts"
        )
        return (
            f"{start}{named_after(start, group)} reaches {rate} on {point.place} ({spread}), the fastest of "
            f"{plural(len(points), 'point')}{ahead(point, points)}; {why}, so there is no speedup and no efficiency."
        )
    return (
        f"{start}{reach(line, named_after(start, line), beside)}{losses(groups, line, beside)}; "
        f"fastest of {plural(len(points), 'point')}: {group.label} on {point.place}, {rate} ({spread})."
    )


def ahead(point: Point, points: Sequence[Point]) -> str:
    """Return how far a point is ahead of the slowest one, if all have its ranks, nodes and unit."""
    ratio = point.throughput.median / min(each.throughput.median for each in points)
    alike = {(each.place, each.rate) for each in points} == {(point.place, point.rate)}
    return f" and {shown(m.SPEEDUP, ratio)} times the slowest" if alike and ratio > 1 else ""


def farthest(group: Group) -> Point | None:
    """Return the believed point with the most ranks; None if it or the reference is doubtful or absent."""
    if group.reference is None or group.reference.doubtful:
        return None
    believed = [point for point in group.points if not point.doubtful and point.ranks > group.reference.ranks]
    return believed[-1] if believed else None


def reach(group: Group, name: str, beside: Mapping[Path, RunResult]) -> str:
    """Return how far a line of this name scales, with its doubts, reference, mode, repeats and spread."""
    reference, point = group.reference, farthest(group)
    assert reference is not None
    assert point is not None
    efficiency, speedup = group.efficiency(point), group.speedup(point)
    assert efficiency is not None
    percent = f"{shown(m.EFFICIENCY, efficiency.median)} % efficiency"
    doubt = short_doubt(group, point, beside)
    gain = f"keeps {percent} ("
    if speedup:
        times = f"{shown(m.SPEEDUP, speedup.median)} times"
        gain = f"speeds up {times} ({percent}; " if speedup.median > 1 else f"gains nothing ({times}, {percent}; "
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
        f"from {reference.ranks:,} to {plural(point.ranks, 'rank')}, {name} {gain}{doubt}{work}, "
        f"reference {reference.place}, {n}, {spread})"
    )


def losses(groups: Sequence[Group], best: Group, beside: Mapping[Path, RunResult]) -> str:
    """Return the other lines of a task that gain nothing, else the one that gains least; empty without another."""
    gains = sorted(
        (gained.median, line.label, lesson(line, beside, name=line.label))
        for line in groups
        if line is not best and (gained := gain_of(line))
    )
    if not gains:
        return ""
    none = [text for times, _, text in gains if times <= 1]
    return f"; {listed(none or [gains[0][-1]], MOST_LESSONS)}"


def gain_of(line: Group) -> Spread | None:
    """Return the throughput of a line's farthest point over that of its reference; None without one."""
    point = farthest(line)
    return point.throughput.over(line.reference.throughput.median) if point and line.reference else None


def lesson(line: Group, beside: Mapping[Path, RunResult], *, name: str) -> str:
    """Return what a line of this name gains by its ranks: `fsdp_full gains nothing from 1 to 2 ranks (0.656 times)`."""
    reference, point, gained = line.reference, farthest(line), gain_of(line)
    assert reference is not None
    assert point is not None
    assert gained is not None
    times = f"{shown(m.SPEEDUP, gained.median)} times"
    verb = "gains nothing" if gained.median <= 1 else f"gains {times}"
    notes = [times] if gained.median <= 1 else []
    notes += [f"{shown(m.SPEEDUP, gained.low)} to {shown(m.SPEEDUP, gained.high)}"] if gained.n > 1 else ["n = 1"]
    doubt = short_doubt(line, point, beside).removesuffix("; ")
    return (
        f"{name} {verb} from {reference.ranks:,} to {plural(point.ranks, 'rank')} "
        f"({', '.join(notes)}{'; ' if doubt else ''}{doubt})"
    ).strip()


def overlap(fastest: Point, points: Sequence[Point]) -> str:
    """Return how many points are as fast as the fastest, or have a repeat that is; empty if none."""
    best, others = fastest.throughput, [point.throughput for point in points if point is not fastest]
    equal = sum(other.median == best.median for other in others)
    within = sum(other.median < best.median and other.high >= best.low for other in others)
    reached = "overlapping the spread of {}" if best.n > 1 else "within the spread of {}"
    return (f", as fast as {plural(equal, 'other point')}" if equal else "") + (
        f", {reached.format(plural(within, 'other point'))}" if within else ""
    )


def repeats(spread: Spread) -> str:
    """Return the number of repeats and their spread: `n = 2, 5,200 to 5,400`."""
    if spread.n == 1:
        return "n = 1, no spread"
    # Rates have the same digits, whatever they count.
    return f"n = {spread.n}, {shown(m.TOKENS_PER_S, spread.low)} to {shown(m.TOKENS_PER_S, spread.high)}"
