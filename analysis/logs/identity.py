"""Identity of a run in logs: a copy, and the logs that several ranks or nodes of one job printed, are one run.

Two logs are of one run if no setting that both report differs and one of these holds:

* their step times agree, and either all losses are equal (a copy, or another rank that prints the same) or the times
  rise and fall together and clock or job are the same (another node, which prints its own loss);
* one has every line of the other's steps with the same time and loss (a rank's file next to the output of all);
* their ranks were in one communicator, whose id NCCL prints.

Repeats agree in none. File names are not considered.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from statistics import correlation

import numpy as np

from analysis.failures.sacct import job_ids
from analysis.logs.step import LogStep, Place, place_of
from analysis.logs.steps import LogRun
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Text
from analysis.run import RunResult
from jobs import metrics as m

Found = tuple[LogRun, RunResult]
Printed = tuple[Place, float, float]
TIMES = (m.STEP_TIME, a.MICRO_BATCH_TIME)
# Relative difference of step times below which two logs with the same losses contain the same steps.
SAME_TIME_TOLERANCE = 0.01
# The same for the median of two nodes, whose timers may include other waiting.
SAME_RUN_TOLERANCE = 0.1
# A log may print a loss with four digits, and a file next to it with all.
SAME_LOSS_TOLERANCE = 4e-4
FEWEST_LOSSES_OF_A_COPY = 3
# Ranks of step times of one run agree; those of repeats agree as well in fewer than one of 10,000 pairs.
SAME_ORDER, FEWEST_FOR_ORDER = 0.9, 12
SAME_CLOCK_S = 2.0


def without_copies(runs: Sequence[Found]) -> list[Found]:
    """Return the runs; of several logs of one run the slowest is used, and the others are not."""
    originals: dict[object, list[list[Found]]] = defaultdict(list)
    members: list[list[Found]] = []
    for item in runs:
        buckets = buckets_of(*item)
        likely = {id(logs): logs for bucket in buckets for logs in originals[bucket]}.values()
        own, *others = [logs for logs in likely if any(same_run(log, item) for log in logs)] or [[]]
        if not own:
            members.append(own)
        own.append(item)
        for other in others:
            # The output of all ranks, after the files of several.
            own += other
            buckets += [bucket for log in other for bucket in buckets_of(*log)]
            other.clear()
        for bucket in buckets:
            originals[bucket].append(own)
    standing: dict[int, Found] = {}
    for logs in filter(None, members):
        first, slow = logs[0], max(logs, key=mean_step_time_s)
        # The slowest rank or node; the first log if all agree to the accuracy of a copy.
        used = slow if mean_step_time_s(slow) > mean_step_time_s(first) * (1 + SAME_TIME_TOLERANCE) else first
        for run, found in logs:
            reason = f"the same steps as {used[1].name}: another rank's log of that run, or a copy"
            copy = replace(found, state="copy", reason=reason)
            standing[id(run)] = (run, found if run is used[0] else copy)
    return [standing[id(run)] for run, _ in runs]


def mean_step_time_s(item: Found) -> float:
    """Return the mean time of the steps in the rate of a log; 0 if it is not known."""
    steps_per_s = item[1].values.get(a.STEPS_PER_S)
    return 1 / steps_per_s if steps_per_s else 0.0


def buckets_of(run: LogRun, found: RunResult) -> list[object]:
    """Return hash buckets for duplicate detection: logs of one run share at least one bucket."""
    losses = found.losses.values()
    buckets: list[object] = []
    if len(losses) >= FEWEST_LOSSES_OF_A_COPY:
        # Sums of equal losses have overlapping intervals of +-SAME_LOSS_TOLERANCE. Each interval spans at most two
        # numbers of three digits, those of its ends, so the two intervals share one.
        ends = (math.fsum(losses) * (1 + apart) for apart in (-SAME_LOSS_TOLERANCE, SAME_LOSS_TOLERANCE))
        # Not a set, whose order differs between processes.
        buckets += list(dict.fromkeys((run.file.formats, len(losses), f"{end:.3g}") for end in ends))
    if len(run.steps) >= FEWEST_FOR_ORDER:
        buckets.append((run.file.formats, len(run.steps), run.steps[0].place, run.steps[-1].place))
    return [*buckets, *communicators(run), *printed_first(run)]


def same_run(one: Found, other: Found) -> bool:
    """Return True if two logs are of one run."""
    (first, found), (second, others) = one, other
    both = first.settings.keys() & second.settings.keys() - {a.LINES}
    if any(first.settings[each] != second.settings[each] for each in both):
        return False
    if not communicators(first).isdisjoint(communicators(second)):
        return True
    if contains(first, second) or contains(second, first):
        return True
    pairs = timed_pairs(first.steps, second.steps)
    if not pairs:
        return False
    if len(found.losses) >= FEWEST_LOSSES_OF_A_COPY and len(found.losses) == len(others.losses):
        same_times = all(math.isclose(a_s, b_s, rel_tol=SAME_TIME_TOLERANCE) for a_s, b_s in pairs)
        if same_times and same_losses(found, others):
            return True
    return in_step(pairs) and at_once(first, second)


def communicators(run: LogRun) -> set[str]:
    """Return the ids of communicators that a log names."""
    return {id_ for record in run.file.of(Kind.event) if (id_ := record.texts.get(Text.communicator))}


def contains(whole: LogRun, part: LogRun) -> bool:
    """Return True if two logs are of the same steps, and one has every line of the other, with equal time and loss."""
    if not printed_first(part).keys() <= printed_first(whole).keys():
        return False
    steps, every = set(printed_steps(part)), set(printed_steps(whole))
    same_places = {place for place, *_ in steps} == {place for place, *_ in every}
    return len(steps) >= FEWEST_LOSSES_OF_A_COPY and same_places and steps <= every


def printed_first(run: LogRun) -> dict[Printed, None]:
    """Return the lines of the first step, by any rank."""
    lines = printed_steps(run)
    first = next(lines, None)
    return {} if first is None else dict.fromkeys((first, *takewhile(lambda each: each[0] == first[0], lines)))


def printed_steps(run: LogRun) -> Iterator[Printed]:
    """Yield place, time and loss of every line of a step that has them, by any rank; nothing for several starts."""
    if len(run.attempts) > 1:
        return
    for count, record in enumerate(run.file.of(Kind.step)):
        time_s = next((record.values[metric] for metric in TIMES if metric in record.values), None)
        loss = record.values.get(m.LOSS)
        if time_s is not None and loss is not None:
            yield place_of(record, count), time_s, loss


def timed_pairs(one: Sequence[LogStep], other: Sequence[LogStep]) -> list[tuple[float, float]]:
    """Return the times of the steps in order, as far as both logs have them."""
    pairs = [(first.time_s, second.time_s) for first, second in zip(one, other, strict=False)]
    return [(a_s, b_s) for a_s, b_s in pairs if a_s is not None and b_s is not None]


def same_losses(one: RunResult, other: RunResult) -> bool:
    """Return True if all losses are equal to the digits that logs print."""
    pairs = zip(one.losses.values(), other.losses.values(), strict=True)
    return all(math.isclose(first, second, rel_tol=SAME_LOSS_TOLERANCE) for first, second in pairs)


def in_step(pairs: Sequence[tuple[float, float]]) -> bool:
    """Return True if the times of two logs rise and fall together, after the steps that may be warm-up."""
    later = np.array(pairs[len(pairs) // 4 :])
    if len(later) < FEWEST_FOR_ORDER:
        return False
    one, other = later.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable").T.tolist()
    first_s, second_s = np.median(later[:, 0]), np.median(later[:, 1])
    alike = math.isclose(first_s, second_s, rel_tol=SAME_RUN_TOLERANCE)
    return alike and correlation(one, other) >= SAME_ORDER


def at_once(one: LogRun, other: LogRun) -> bool:
    """Return True if two logs have the same clock at their steps; without clocks, if they have the same job."""
    clocks = [clock(run) for run in (one, other)]
    if clocks[0] and clocks[1]:
        pairs = zip(clocks[0], clocks[1], strict=False)
        return len(clocks[0]) == len(clocks[1]) and all(abs(a_s - b_s) <= SAME_CLOCK_S for a_s, b_s in pairs)
    jobs = [job_ids(run.file.path) for run in (one, other)]
    return len(jobs[0]) == 1 and jobs[0] == jobs[1]


def clock(run: LogRun) -> list[float]:
    """Return the times of day at which steps were printed, in seconds; empty if they have none that is readable."""
    texts = [record.texts[Text.timestamp] for record in run.file.of(Kind.step) if Text.timestamp in record.texts]
    try:
        return [datetime.fromisoformat(text).timestamp() for text in texts]
    except ValueError:
        return []
