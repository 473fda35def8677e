"""Doubts about speeds: more than ideal scaling, repeats that lie apart, runs side by side on one machine.

A doubt names what could be the cause, and what the runs recorded that speaks for it or against it.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from analysis.compare.core import clauses, relative_change
from analysis.formatting import listed, per_second, plural, shown, unit
from analysis.intervals import welch_interval
from analysis.metrics.shared_nodes import machines
from analysis.run import RunResult
from analysis.scaling.groups import WEAK, Group, Point
from jobs import metrics as m
from jobs.metrics import Metric

MOST_SENTENCES = 5
MOST_NAMED = 3
# Efficiencies are printed with three digits; what is printed as 100 % is not a doubt.
IDEAL = 1.005
# A change of memory or weights below this share does not count.
SAME = 0.05
# A repeat is an outlier if its distance from the median of its point is larger than this share of the median, and
# larger than this many times the median distance of all repeats.
REPEAT_TOLERANCE, REPEAT_DEVIATIONS, FEWEST_FOR_OUTLIERS = 0.05, 5, 4
# What makes a machine slower, as text; shares count if they are larger by MORE_LOAD, clocks if lower by this share.
DISTURBANCES = {
    m.OTHER_LOAD: "other work took",
    m.CPU_STEAL: "the host took",
    m.CPU_THROTTLED: "throttled by heat:",
    m.GPU_THROTTLED: "heat or power slowed the GPU in",
    m.CPU_CLOCK: "its processors ran at",
    m.GPU_CLOCK: "its GPU ran at",
}
MORE_LOAD = 0.05
# Two repeats are apart if they differ by more than this share, and by more than the steps within a run do.
APART = 0.1


def first_of(sentences: list[str], rest: str) -> list[str]:
    """Return the first sentences and the number of the others."""
    more = len(sentences) - MOST_SENTENCES
    return sentences[:MOST_SENTENCES] + ([f"{rest}: {more:,}."] if more > 0 else [])


# --- more than ideal -------------------------------------------------------------------------------------------


class Says(Enum):
    """The direction of the evidence for a cause; the value is printed."""

    for_it = "Speaks for"
    against = "Speaks against"
    nothing = "Not known about"


@dataclass(frozen=True)
class Evidence:
    """The records of the runs on one possible cause of a speedup beyond the ideal."""

    cause: str
    says: Says
    fact: str


def is_beyond_ideal(group: Group, point: Point) -> bool:
    """Return True if a point is more efficient than the reference of its line, in the printed digits."""
    efficiency = group.efficiency(point)
    return efficiency is not None and efficiency.median > IDEAL


def evidence(group: Group, point: Point, beside: Mapping[Path, RunResult]) -> list[Evidence]:
    """Return what speaks for and against each cause of an efficiency above 100 %."""
    reference = group.reference
    assert reference is not None
    return [
        noise(reference, point),
        *shared(reference, point, beside),
        holds_less(reference, point, "cache", m.PARAMETERS_HELD, "the weights of a rank"),
        holds_less(reference, point, "memory", m.MEMORY_PEAK, "the peak memory of a rank"),
        batch(group, reference, point),
    ]


def noise(reference: Point, point: Point) -> Evidence:
    """Return whether the repeats allow that the efficiency is 100 %."""
    within = within_run(reference)
    varies = f", and steps of the reference vary by {100 * within:.0f} % within a run" if within is not None else ""
    rates = [[run.values[each.rate] / each.ranks for run in each.runs] for each in (reference, point)]
    interval = welch_interval(rates[0], rates[1])
    if interval is None:
        n = f"n = {len(rates[0])} and {len(rates[1])} give no interval"
        return Evidence("noise", Says.for_it, n + varies)
    low, high = (shown(m.EFFICIENCY, value) for value in interval)
    words = f"the 95 % interval is {low} to {high} %"
    return Evidence("noise", Says.for_it if interval[0] <= 1 else Says.against, words + varies)


def within_run(point: Point) -> float | None:
    """Return how far steps vary within a run: 10th to 90th percentile over the median; the run that varies most."""
    known = [
        (run.values[m.STEP_TIME_P90] - run.values[m.STEP_TIME_P10]) / run.values[m.STEP_TIME_MEDIAN]
        for run in point.runs
        if {m.STEP_TIME_P10, m.STEP_TIME_P90, m.STEP_TIME_MEDIAN} <= run.values.keys()
    ]
    return max(known, default=None)


def shared(reference: Point, point: Point, beside: Mapping[Path, RunResult]) -> Iterator[Evidence]:
    """Yield that runs of either point shared their machine: with another run, or with other work."""
    if words := load_words(reference.runs, point.runs):
        yield Evidence("other work on the machine", Says.for_it, words)
        return
    sharing = [run.name for run in (*reference.runs, *point.runs) if run.path in beside]
    if sharing:
        names = listed(sharing, MOST_NAMED)
        yield Evidence("other work on the machine", Says.for_it, f"{names} ran during other runs of this report")


def load_words(slow: Collection[RunResult], fast: Collection[RunResult]) -> str:
    """Return what the machine of the slow runs suffered more than that of the fast ones; empty if nothing."""
    found = []
    for metric, words in DISTURBANCES.items():
        sides = [[run.values[metric] for run in runs if metric in run.values] for runs in (slow, fast)]
        if sides[0] and sides[1]:
            before, now = (statistics.median(side) for side in sides)
            if is_disturbed(metric, before, now):
                found.append(
                    f"{words} {shown(metric, before)} {unit(metric)}".rstrip() + f" against {shown(metric, now)}"
                )
    return ", ".join(found)


def is_disturbed(metric: Metric, slow: float, fast: float) -> bool:
    """Return whether a value of the slow side explains that it is slow."""
    if metric.unit == "Hz":
        return relative_change(slow, fast) < -MORE_LOAD
    return slow - fast > (MORE_LOAD if metric.shown_in else 0)


def holds_less(reference: Point, point: Point, cause: str, metric: Metric, words: str) -> Evidence:
    """Return whether a rank of the point holds less than one of the reference."""
    before, now = reference.spread(metric), point.spread(metric)
    if before is None or now is None or before.median <= 0:
        return Evidence(cause, Says.nothing, f"{metric.name} was not recorded at both points")
    less = relative_change(now.median, before.median) < -SAME
    values = f"{shown(metric, before.median)} to {shown(metric, now.median)} {unit(metric)}".rstrip()
    return Evidence(cause, Says.for_it if less else Says.against, f"{words} went from {values}")


def batch(group: Group, reference: Point, point: Point) -> Evidence:
    """Return whether both points did the work that the scaling mode says."""
    cause = "another batch"
    if group.unequal_work:
        return Evidence(cause, Says.for_it, group.unequal_work)
    tokens = [each.spread(m.TOKENS_PER_STEP) for each in (reference, point)]
    if tokens[0] is None or tokens[1] is None:
        return Evidence(cause, Says.nothing, f"{m.TOKENS_PER_STEP.name} was not recorded at both points")
    times = tokens[1].median / tokens[0].median
    expected = point.ranks / reference.ranks if group.mode == WEAK else 1.0
    fact = f"a step has {times:.3g} times the tokens in {group.mode} scaling"
    return Evidence(cause, Says.for_it if abs(relative_change(times, expected)) > SAME else Says.against, fact)


def doubt_of(group: Group, point: Point, beside: Mapping[Path, RunResult]) -> str:
    """Return the doubts about the scaling from the reference to a point in a few words; empty without a doubt."""
    reference = group.reference
    assert reference is not None
    if is_beyond_ideal(group, point):
        causes = [each.cause for each in evidence(group, point, beside) if each.says is Says.for_it]
        return "above the ideal 100 %, " + (f"perhaps {' or '.join(causes)}" if causes else "unexplained")
    if load := load_words(reference.runs, point.runs):
        return f"the reference had less of its machine: {load}"
    if stated := [each for run in (*reference.runs, *point.runs) for each in run.reservations]:
        return stated[0]
    if any(shared(reference, point, beside)):
        return "runs shared their machine"
    return apart(group, reference, point)


def doubt_at(group: Group, point: Point, beside: Mapping[Path, RunResult]) -> str:
    """Return the doubts about a point alone in a few words; empty without a doubt."""
    if stated := [each for run in point.runs for each in run.reservations]:
        return stated[0]
    if any(run.path in beside for run in point.runs):
        return "runs shared their machine"
    return apart(group, point)


def apart(group: Group, *points: Point) -> str:
    """Return the doubt about repeats that lie apart; empty without one."""
    return "repeats lie far apart" if any(far_apart(group, point) for point in points) else ""


def beyond_ideal(groups: Iterable[Group], beside: Mapping[Path, RunResult]) -> list[str]:
    """Report points above 100 % efficiency, each with what speaks for and against its possible causes."""
    sentences = []
    for group in groups:
        for point in group.points:
            if not is_beyond_ideal(group, point):
                continue
            efficiency = group.efficiency(point)
            assert efficiency is not None
            found = evidence(group, point, beside)
            words = [
                f"{says.value} {clauses(facts, len(facts))}."
                for says in Says
                if (facts := [f"{each.cause}: {each.fact}" for each in found if each.says is says])
            ]
            sentences.append(
                f"{group.label} on {point.place} has {shown(m.EFFICIENCY, efficiency.median)} % efficiency, more than "
                f"ideal, which ranks alone do not give. {' '.join(words)} Repeat both points, one run at a time, "
                "before you use it."
            )
    return first_of(sentences, "Further points above 100 % efficiency")


def references_loaded(groups: Iterable[Group]) -> list[str]:
    """Report lines whose reference had less of its machine than points that ideal scaling does not exclude."""
    sentences = []
    for group in groups:
        found = {
            point.place: load
            for point in group.points
            if group.reference
            and point is not group.reference
            and not is_beyond_ideal(group, point)
            and (load := load_words(group.reference.runs, point.runs))
        }
        if found and group.reference:
            sides = "; ".join(f"{load} on {place}" for place, load in found.items())
            sentences.append(
                f"{group.label}: at the reference, {group.reference.place}, {sides}. The reference is slower for that, "
                "so speedup and efficiency may be too high. Repeat the points while nothing else runs on their "
                "nodes."
            )
    return first_of(sentences, "Further lines whose reference had less of its machine")


# --- repeats ---------------------------------------------------------------------------------------------------


def repeats_apart(groups: Iterable[Group]) -> list[str]:
    """Report repeats that are much faster or slower than the others of their point, from two repeats on."""
    sentences = [
        text
        for group in groups
        for point in group.points
        for text in (outliers(group, point) or far_apart(group, point))
    ]
    return first_of(sentences, "Further repeats that are far from the others of their point")


def outliers(group: Group, point: Point) -> list[str]:
    """Return a sentence on each repeat that is far from the median of four or more."""
    middle = point.throughput.median
    apart = statistics.median(abs(run.values[point.rate] - middle) for run in point.runs)
    limit = max(REPEAT_TOLERANCE * middle, REPEAT_DEVIATIONS * apart)
    if len(point.runs) < FEWEST_FOR_OUTLIERS:
        return []
    return [
        f"{run.name} has {shown(point.rate, run.values[point.rate])} {per_second(point.rate)}, "
        f"{abs(relative_change(run.values[point.rate], middle)) * 100:.0f} % from the median of its "
        f"{len(point.runs)} repeats, {group.label} on {point.place}. It counts: check its node and log."
        for run in point.runs
        if abs(run.values[point.rate] - middle) > limit
    ]


def far_apart(group: Group, point: Point) -> list[str]:
    """Return a sentence if the repeats differ by far more than the steps of a run, else none."""
    spread, within = point.throughput, within_run(point)
    if spread.high - spread.low <= max(APART, within or 0.0) * spread.median:
        return []
    fast, slow = (pick(point.runs, key=lambda run: run.values[point.rate]) for pick in (max, min))
    steps = "" if within is None else f", while steps vary by {100 * within:.0f} % within a run"
    return [
        f"The {len(point.runs)} repeats of {group.label} on {point.place} differ by a factor of "
        f"{spread.high / spread.low:.3g}{steps}: {shown(point.rate, spread.low)} {per_second(point.rate)} in "
        f"{slow.name}, {shown(point.rate, spread.high)} in {fast.name}. {why(slow, fast)}They count: check nodes and "
        "logs, and repeat the point."
    ]


def why(slow: RunResult, fast: RunResult) -> str:
    """Return the sentence on the load of the slow run's node, if it explains the difference; else an empty one."""
    words = load_words([slow], [fast])
    return f"The node of the slow one: {words}. " if words else ""


# --- side by side ----------------------------------------------------------------------------------------------


def shared_nodes(runs: Collection[RunResult], beside: Mapping[Path, RunResult]) -> list[str]:
    """Report runs that trained at the same time on the same machine."""
    sharing = [run for run in runs if run.path in beside]
    if not sharing:
        return []
    pairs = [f"{run.name} with {beside[run.path].name}" for run in sharing]
    where = sorted({place for run in sharing for place in run.started.get("nodes") or machines(run)})
    return [
        f"{len(sharing)} of {plural(len(runs), 'run')} trained while another run of this report trained on the same "
        f"machine ({listed(pairs, MOST_NAMED)}; on {listed(where, MOST_NAMED)}). They shared its processors, memory "
        "and network: their speeds are not those of a run alone. Run them one at a time, with launcher.max_running=1."
    ]
