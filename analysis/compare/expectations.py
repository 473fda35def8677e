"""Outcomes of the results that were expected before the runs (jobs.expectation): kept, not kept or not decided.

An expectation is kept if the interval of the measured value lies on the expected side of the number, and not kept if it
lies on the other side. The value is the geometric mean over pairs of an attempt, or over repeats of a run; its interval
is that of the attempt's own verdict, or Student's t of the logarithms.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from analysis.compare.campaign import NO_CHANGE, Entry, part_of
from analysis.compare.contest_rules import Rules
from analysis.compare.proxy import Proxy
from analysis.formatting import plural, significant
from analysis.intervals import CONFIDENCE, FEWEST_FOR_MEAN, paired_interval
from analysis.run import RunResult
from analysis.sequential import sequential_intervals
from jobs.errors import ConfigError
from jobs.expectation import SPEED, Expectation, parsed

DIGITS = 4


class State(Enum):
    """The outcome of an expectation; the value is printed."""

    kept = "kept"
    not_kept = "not kept"
    not_decided = "not decided"


@dataclass(frozen=True)
class Expected:
    """An expectation with the values that were measured."""

    of: str
    """The attempt or run."""
    expectation: Expectation
    state: State
    values: Sequence[float] = ()
    """In the unit of the metric, or as multiples of the baseline."""
    interval: tuple[float, float] | None = None
    because: str = ""
    """The reason that further runs cannot decide it; empty if they can."""

    @property
    def words(self) -> str:
        """Return its outcome as a sentence."""
        found = f"Expected of {self.of} before its first run: {self.expectation.text}. {self.state.value.capitalize()}"
        if self.because:
            return f"{found}: {self.because}."
        if not self.values:
            return f"{found}: nothing was measured."
        value = significant(statistics.geometric_mean(self.values), DIGITS)
        n = plural(len(self.values), "pair" if self.expectation.of_baseline else "run")
        if self.interval is None:
            return f"{found}: {value} over {n}; an interval takes {FEWEST_FOR_MEAN}."
        low, high = (significant(end, DIGITS) for end in self.interval)
        return f"{found}: {value} ({low} to {high}) over {n}."


def of_entry(entry: Entry, rules: Rules) -> Expected | None:
    """Return the outcome of the expectation of an attempt; None without one."""
    expectation = recorded((part_of(entry.trial.first) or {}).get("expect"))
    if expectation is None:
        return None
    if entry.reasons:
        because = f"the attempt does not count ({entry.reasons[0]})"
        return Expected(entry.trial.name, expectation, State.not_decided, because=because)
    if entry.trial.proxy is not None:
        return of_proxy(entry, entry.trial.proxy, expectation)
    pairs = entry.trial.pairs(rules)
    tried = [value_of(expectation, run, rules) for _, run in pairs]
    beside = [value_of(expectation, run, rules) if expectation.of_baseline else 1.0 for run, _ in pairs]
    values = [own / other for own, other in zip(tried, beside, strict=True) if own and other]
    if entry.trial.sequence is None:
        interval = interval_of(values, entry.confidence)
    else:
        looks = sequential_intervals(values, 1 - entry.confidence)
        interval = looks[-1] if looks else constant(values)
    return Expected(entry.trial.name, expectation, state_of(expectation, interval), values, interval)


def of_proxy(entry: Entry, proxy: Proxy, expectation: Expectation) -> Expected:
    """Return the outcome of the expectation of short runs: they decide speed alone, and only if their bias is known."""
    if expectation.metric != SPEED:
        because = f"runs by proxy {proxy.name} decide only {SPEED}"
        return Expected(entry.trial.name, expectation, State.not_decided, because=because)
    if entry.bias is None:
        because = f"by proxy {proxy.name}; {proxy.words}"
        return Expected(entry.trial.name, expectation, State.not_decided, because=because)
    values = [ratio / entry.bias.middle for ratio in entry.ratios]
    return Expected(entry.trial.name, expectation, state_of(expectation, entry.interval), values, entry.interval)


def of_runs(runs: Iterable[RunResult]) -> list[Expected]:
    """Return the outcomes of the expectations of runs that were submitted alone, by point."""
    points: dict[object, list[RunResult]] = defaultdict(list)
    for run in runs:
        if part_of(run) is None and recorded(run.provenance.get("expect")) is not None:
            settings = {key: str(value) for key, value in run.settings.items() if not key.startswith(NO_CHANGE)}
            points[run.provenance["expect"], frozenset(settings.items())].append(run)
    found = []
    for own in points.values():
        expectation = recorded(own[0].provenance["expect"])
        assert expectation is not None
        values = [value for run in own if run.used and (value := value_of(expectation, run, None))]
        interval = interval_of(values, CONFIDENCE)
        found.append(Expected(own[0].name, expectation, state_of(expectation, interval), values, interval))
    return found


def recorded(text: object) -> Expectation | None:
    """Return the expectation of a record; None if there is none that this version reads."""
    try:
        return parsed(text) if isinstance(text, str) else None
    except ConfigError:
        return None


def value_of(expectation: Expectation, run: RunResult, rules: Rules | None) -> float | None:
    """Return the expected metric of a run; None if it was not measured, or is not above 0 and has no logarithm."""
    if expectation.metric == SPEED:
        return rules.speed(run) if rules else None
    value = next((value for metric, value in run.values.items() if metric.name == expectation.metric), None)
    return value if value and value > 0 else None


def interval_of(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Return the interval of the geometric mean of values; None with too few."""
    return paired_interval(values, confidence) or constant(values)


def constant(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the value of enough equal ones, such as bytes, as an interval; None for others."""
    return (values[0], values[0]) if len(values) >= FEWEST_FOR_MEAN and len(set(values)) == 1 else None


def state_of(expectation: Expectation, interval: tuple[float, float] | None) -> State:
    """Return what an interval shows."""
    if interval is None:
        return State.not_decided
    low, high = interval
    above, below = low >= expectation.number, high <= expectation.number
    if expectation.at_least:
        return State.kept if above else State.not_kept if high < expectation.number else State.not_decided
    return State.kept if below else State.not_kept if low > expectation.number else State.not_decided
