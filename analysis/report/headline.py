"""The headline in short lines: the best result of each task, lines that gain nothing, doubts. The table has intervals.

Throughputs are compared within a task: the same model, data and sequence length, and by one rule
(analysis.scaling.places). The result of a task is that of the line of its highest point, or of the line with the most
ranks if that one has no other rank count. Tasks without a line over ranks share one sentence. Doubtful points (see
analysis.report.caveats) are never named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from analysis.compare.attempt_labels import attempts_of
from analysis.compare.core import clauses
from analysis.compare.expectations import of_runs
from analysis.formatting import listed, per_second, plural, short, shown, significant
from analysis.intervals import Spread
from analysis.metrics.shared_nodes import side_by_side
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest, did_other_work
from analysis.report.doubts import doubt_at, doubt_of
from analysis.report.leaderboard_text import answer, expected_words
from analysis.report.points_table import MOST_SOURCES, source
from analysis.report.sections.choices import choice_headlines
from analysis.report.sections.page import HEADLINES
from analysis.run import UNKNOWN_DEVICE, RunResult, hardware
from analysis.scaling.groups import LOG_NAME, Group, Point, by_task, preference, rates
from analysis.scaling.mlperf import System
from analysis.scaling.places import EVERYTHING, comparable, differ, highest, rivals
from analysis.scaling.places import span as span_of
from jobs import metrics as m
from jobs.metrics import Metric

MOST_SCORES, MOST_LESSONS, MOST_DOUBTS = 8, 3, 3
LONGEST_REASON = 200


def headlines(digest: Digest) -> list[str]:
    """Return the sentences of campaigns, then those of trainings and of other work."""
    campaigns = list(map(answer, digest.boards))
    campaigns += [words for board in digest.boards for words in expected_words(board)]
    # The sentence of a campaign is that of its leaderboard.
    groups = [group for group in digest.groups if not attempts_of(group)]
    expected = [found.words for found in of_runs(digest.runs)]
    return campaigns + (results(digest, groups) if groups or digest.measurements or not campaigns else []) + expected


def results(digest: Digest, groups: Sequence[Group]) -> list[str]:
    """Return the scores, the result of each task of these lines, what gains nothing and the doubts; then other work.

    Without a line, return the reason that there is no result.
    """
    runs = [run for run in digest.runs if not did_other_work(run)]
    others = [sentence for own in HEADLINES for sentence in own(digest)]
    scored = [line for line in digest.systems if any(system.score_s is not None for system in line)]
    sentences = [score(line) for line in scored]
    if not groups:
        missing = [] if sentences or (others and not runs) else [no_headline(runs, measured=bool(digest.measurements))]
        return [*sentences, *missing, *others, *choice_headlines(digest)]
    # The score of a system is more than its throughput, which the table of results has.
    covered = {run.path for line in scored for system in line for run in system.results}
    every = list(by_task(groups).values())
    tasks = [task for task in every if any(run.path not in covered for group in task for run in group.runs)]
    # What scales comes first.
    tasks.sort(key=lambda task: not any(group.reference for group in task))
    single = [task for task in tasks if fastest(task) and not any(group.reference for group in task)]
    together = single if len(single) > 1 else []
    starts = [prefix(task, name_task=len(every) > 1) for task in tasks]
    return [
        *sentences,
        *(
            result(task, start, alone=len(every) == 1)
            for task, start in zip(tasks, starts, strict=True)
            if task not in together
        ),
        *([unscaled(together)] if together else []),
        *choice_headlines(digest),
        *lessons(tasks),
        # Without runs of other work: the warnings name those that shared a machine.
        *doubts(tasks, side_by_side(runs)),
        *others,
    ]


def score(line: Sequence[System]) -> str:
    """Describe the scores of a line of systems and how they scale; at least one has a score."""
    known = [(system, system.score_s) for system in line if system.score_s is not None]
    at = [
        f"{significant(score_s / 60, a.TIME_TO_TRAIN.digits)} min"
        + (f" on {plural(system.ranks, 'rank')}" if system.ranks else "")
        + f" ({plural(len(system.reached), 'result')})"
        for system, score_s in known
    ]
    (first, first_s), (last, last_s) = known[0], known[-1]
    times = ""
    if 0 < first.ranks < last.ranks:
        times = f"; {first_s / last_s:.3g} times as fast on {last.ranks / first.ranks:.3g} times the ranks"
    return f"MLPerf {first.described}: score {listed(at, MOST_SCORES)}{times}."


def unscaled(tasks: Sequence[Sequence[Group]]) -> str:
    """Return the sentence on several tasks without a speedup: the highest rate of a rank in each unit.

    Steps do not divide over ranks, nor compare between batches.
    """
    found: dict[Metric, list[tuple[Group, Point]]] = {}
    for task in tasks:
        if (best := fastest(task)) and best[1].rate is not a.STEPS_PER_S:
            found.setdefault(best[1].rate, []).append(best)
    largest = []
    for rate, points in found.items():
        group, point = max(points, key=lambda each: each[1].throughput_per_rank.median)
        speed = f"{shown(rate, point.throughput_per_rank.median)} {per_second(rate)}"
        of = f" of {len(points)}" if 1 < len(points) < len(tasks) else ""
        largest.append(f"{speed} ({group.described} on {point.place}, {runs_in_words([point])}{of})")
    start = opening(run for task in tasks for group in task for run in group.runs)
    most = f"the highest rate per rank is {'; '.join(largest)}. The" if largest else "the"
    several = any(len(task) > 1 for task in tasks)
    which, ranking = ("each line", "") if several else ("each", "ranking, ")
    return capitalized(
        f"{start}{most} {len(tasks)} workloads differ in model, data or sequence length, and {which} ran on one number "
        f"of ranks, so there is no {ranking}speedup or efficiency."
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
        return f"No scaling result: {which} the number of ranks; see the warnings for what to add.{rate_of(used)}"
    if used:
        times = "their times to train are" if len(used) > 1 else "its time to train is"
        return f"No scaling result: {plural(len(used), 'run')} without a throughput; {times} below."
    if len(runs) > 1:
        return f"No result: none of {plural(len(runs), 'run')} can be used; each is listed below with the reason."
    (run,) = runs
    return f"No result from {run.name} ({run.state}): {short(str(run.reason), LONGEST_REASON).rstrip('.')}."


def rate_of(used: Sequence[RunResult]) -> str:
    """Return a sentence on the throughput of a single run that belongs to no line; else empty."""
    run = used[0]
    rate = next(iter(rates(run)), None)
    if len(used) > 1 or rate is None or run.disbelieved:
        return ""
    return f" {run.name} reaches {shown(rate, run.values[rate])} {per_second(rate)} on all of its ranks together."


def prefix(groups: Sequence[Group], *, name_task: bool) -> str:
    """Return the first words of a sentence: the hardware, then task and submitter if there are several tasks."""
    sources = sorted({where for group in groups if (where := source(group))})
    named = [task_name(groups), f"from {listed(sources, MOST_SOURCES)}" if sources else ""] if name_task else []
    return begun(opening((run for group in groups for run in group.runs), *filter(None, named)))


def begun(text: str) -> str:
    """Return the first words of a sentence; the name of a model may begin with a small letter, and stays as it is."""
    if not text[:1].islower():
        return text
    return capitalized(text) if text.startswith(LOG_NAME) else f"Model {text}"


def capitalized(sentence: str) -> str:
    """Return a sentence with a capital first letter."""
    return sentence[:1].upper() + sentence[1:]


def opening(runs: Iterable[RunResult], *named: str) -> str:
    """Return the hardware, unless no run names it, and these names, before a colon; empty without any."""
    device = hardware(runs)
    words = [*([] if device == UNKNOWN_DEVICE else [device]), *named]
    return f"{', '.join(words)}: " if words else ""


def task_name(groups: Sequence[Group]) -> str:
    """Return a task as text: its data, else its model, and the sequence length."""
    first = groups[0].runs[0]
    length = first.setting("job.sequence_length")
    name = str(first.setting("data.name") or groups[0].named)
    return f"{name}, sequence length {length:,}" if length else name


def named_after(start: str, group: Group) -> str:
    """Return a line's name for a sentence, without the model if the sentence starts with it."""
    if names_model(start, group):
        return label_within(start, group) or "it"
    return group.described if start else begun(group.described)


def label_within(text: str, group: Group) -> str:
    """Return the label of a line, without the model if a text names it; empty if it is the model alone."""
    return group.label.removeprefix(group.model).strip() if names_model(text, group) else group.label


def names_model(text: str, group: Group) -> bool:
    """Return True if a text contains the task of a line, and the task is named by its model."""
    return task_name([group]).lower() in text.lower() and not group.runs[0].setting("data.name")


def fastest(groups: Sequence[Group]) -> tuple[Group, Point] | None:
    """Return the point with the highest throughput in the preferred unit, and its line; None if all are doubtful."""
    found = [(group, point) for group in groups if (point := highest(group.points))]
    return min(found, key=lambda each: (preference(each[1].rate), -each[1].throughput.median), default=None)


def headline_line(groups: Sequence[Group]) -> Group | None:
    """Return the line of the headline; None if none has two rank counts, or all points are doubtful."""
    best = fastest(groups)
    if best and farthest(best[0]):
        return best[0]
    return max((line for line in groups if farthest(line)), key=lambda line: line.points[-1].ranks, default=None)


def farthest(group: Group) -> Point | None:
    """Return the believed point with the most ranks; None if it or the reference is doubtful or absent."""
    if group.reference is None or group.reference.doubtful:
        return None
    believed = [point for point in group.points if not point.doubtful and point.ranks > group.reference.ranks]
    return believed[-1] if believed else None


# --- the result ------------------------------------------------------------------------------------------------


def result(groups: Sequence[Group], start: str, *, alone: bool) -> str:
    """Return the sentence of one task, alone on the page or not: how far a line scales, and the highest point."""
    best = fastest(groups)
    if best is None:
        of = "" if names_model(start, groups[0]) else f" for {groups[0].named}"
        return capitalized(f"{start}no result{of}, because all runs are doubtful; see the warnings.")
    group, point = best
    points = comparable(point, [each for line in groups for each in line.points])
    rate = f"{shown(point.rate, point.throughput.median)} {per_second(point.rate)}"
    line = headline_line(groups)
    if line is None:
        why = (
            "too few rank counts of its lines have a loss that is believed"
            if any(each.reference for each in groups)
            else f"{'no configuration' if alone else 'none of its configurations'} ran on several numbers of ranks"
        )
        return (
            f"{start}{named_after(start, group)} reaches {rate} on {point.place} ({runs_in_words([point])})"
            f"{among(point, points)}; {why}, so there is no speedup or efficiency."
        )
    which = "it" if point is farthest(line) else f"{group.label} on {point.place}"
    return f"{start}{reach(line, named_after(start, line))}; {which} reaches {rate}{among(point, points)}."


def among(point: Point, points: Sequence[Point]) -> str:
    """Return the standing of the highest of some points of a unit: fastest only if repeats tell it from all others."""
    others = [each for each in points if each != point]
    if not others:
        return ""
    if equal := rivals(point, points):
        return f", the highest of {len(points)} points, not distinguishable from {plural(len(equal), 'other')}"
    slowest = min(others, key=lambda each: each.throughput.median)
    alike = len({each.place for each in points}) == 1
    times = shown(m.SPEEDUP, point.throughput.median / slowest.throughput.median)
    if all(each.throughput.n > 1 for each in points):
        return f", the fastest of {len(points)} points" + (f", {times} times the slowest" if alike else "")
    return (
        f", the highest of {len(points)} points"
        + (f", {times} times the lowest" if alike else "")
        + (f" ({runs_in_words(points)}, compared by their steps)")
    )


def runs_in_words(points: Sequence[Point]) -> str:
    """Return the number of runs behind points: `one run each`, `n = 3`, `n = 1 and 3`."""
    counts = [point.throughput.n for point in points]
    each = " each" if len(counts) > 1 else ""
    if len(set(counts)) > 1:
        return f"n = {' and '.join(map(str, counts))}" if len(counts) == 2 else f"n = {min(counts)} to {max(counts)}"
    return f"one run{each}" if counts[0] == 1 else f"n = {counts[0]}{each}"


def reach(group: Group, name: str) -> str:
    """Return how far a line of this name scales: gain, ranks, efficiency, mode and number of runs."""
    reference, point = group.reference, farthest(group)
    assert reference is not None
    assert point is not None
    efficiency, speedup = group.efficiency(point), group.speedup(point)
    assert efficiency is not None
    percent = f"{shown(m.EFFICIENCY, efficiency.median)} % efficiency"
    span = f"from {reference.ranks:,} to {plural(point.ranks, 'rank')}"
    work = "throughput only, not the same work at each point" if group.unequal_work else f"{group.mode} scaling"
    about = f"{work}, {runs_in_words([reference, point])}"
    if speedup is None:
        gain = shown(m.SPEEDUP, point.throughput.median / reference.throughput.median)
        return f"{name} keeps {percent} {span} ({gain} times the {per_second(point.rate)}, {about})"
    times = f"{shown(m.SPEEDUP, speedup.median)} times"
    if is_gain(group):
        return f"{name} speeds up {times} {span} ({percent}, {about})"
    if is_unmeasured(group):
        return f"{name} reaches {times} {span} ({percent}, {about}; without step times, noise cannot be ruled out)"
    return f"{name} gains nothing {span} ({times}{unlike(group)}, {percent}, {about})"


# --- what gains nothing ----------------------------------------------------------------------------------------


def lessons(tasks: Sequence[Sequence[Group]]) -> list[str]:
    """Return one sentence on the other lines that gain nothing, else on the one that gains least; none without any."""
    gains = sorted(
        (
            (gained.median, lesson(line, name_task=len(tasks) > 1), is_gain(line))
            for line, gained in other_gains(tasks)
            if not is_unmeasured(line)
        ),
        key=lambda each: each[:2],
    )
    if nothing := [words for _, words, gain in gains if not gain]:
        return [f"Gains nothing: {clauses(nothing, MOST_LESSONS)}."]
    return [f"Gains least: {gains[0][1]}."] if gains else []


def other_gains(tasks: Sequence[Sequence[Group]]) -> Iterator[tuple[Group, Spread]]:
    """Yield the lines that have a gain and are not the line of their task's result."""
    for task in tasks:
        best = headline_line(task)
        yield from ((line, gained) for line in task if line is not best and (gained := gain_of(line)))


def gain_of(line: Group) -> Spread | None:
    """Return the throughput of a line's farthest point over that of its reference; None if there is none."""
    point = farthest(line)
    return point.throughput.over(line.reference.throughput.median) if point and line.reference else None


def is_gain(line: Group) -> bool:
    """Return True if a line's farthest point is faster than its reference, and distinguishable from it."""
    point, gained = farthest(line), gain_of(line)
    return bool(point and line.reference and gained and gained.median > 1 and differ(line.reference, point))


def is_unmeasured(line: Group) -> bool:
    """Return True if a gain above 1 can be neither confirmed nor denied: an end is one run without step times."""
    point, gained = farthest(line), gain_of(line)
    ends = [span_of(each) for each in (point, line.reference) if each]
    return bool(gained and gained.median > 1 and EVERYTHING in ends)


def unlike(line: Group) -> str:
    """Return the words for a gain above 1 that does not count, as its ends cannot be distinguished; else empty."""
    gained = gain_of(line)
    return ", not distinguishable" if gained and gained.median > 1 else ""


def lesson(line: Group, *, name_task: bool) -> str:
    """Return what a line gains by its ranks: `fsdp_full from 1 to 2 ranks (0.656 times, one run each)`."""
    reference, point, gained = line.reference, farthest(line), gain_of(line)
    assert reference is not None
    assert point is not None
    assert gained is not None
    task = task_name([line])
    name = ": ".join(filter(None, (task, label_within(task, line)))) if name_task else line.label
    note = "" if is_gain(line) else unlike(line)
    return (
        f"{name} from {reference.ranks:,} to {plural(point.ranks, 'rank')} ({shown(m.SPEEDUP, gained.median)} times"
        f"{note}, {runs_in_words([reference, point])})"
    )


# --- doubts ----------------------------------------------------------------------------------------------------


def doubts(tasks: Sequence[Sequence[Group]], beside: Mapping[Path, RunResult]) -> list[str]:
    """Return one sentence on the doubts about lines and points; none without any.

    `beside` are runs that shared their machine with another run.
    """
    found = dict.fromkeys(words for task in tasks for words in doubts_of(task, beside))
    return [f"DOUBTFUL: {clauses(list(found), MOST_DOUBTS)}. See the warnings."] if found else []


def doubts_of(task: Sequence[Group], beside: Mapping[Path, RunResult]) -> Iterator[str]:
    """Yield the doubts about a task: about each line that scales, else about its highest point; and losses."""
    best = fastest(task)
    if best is None:
        return  # its result is that doubt
    for line in task:
        point = farthest(line)
        why = doubt_of(line, point, beside) if point else ""
        if not why and line is best[0]:
            why = doubt_at(line, best[1], beside)
        if why:
            yield f"{line.label}: {why}"
        if lost := [point for point in line.points if point.doubtful]:
            places = listed([point.place for point in lost], MOST_SOURCES)
            yield f"{line.label}: the training on {places} is not believed"
