"""The highest concurrency whose latencies stay within limits, by doubling, halving and bisection over short loads."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from analysis.parsers import log_metrics as a
from jobs.explore.propose.bracket import next_value
from jobs.failure_causes import FailureCause, KnownCauseError
from jobs.metrics import Metric
from jobs.schema import Run
from jobs.settings.serving import Search

LATENCIES = {
    "time_to_first_token_s": a.TIME_TO_FIRST_TOKEN,
    "time_per_output_token_s": a.TIME_PER_OUTPUT_TOKEN,
    "request_latency_s": a.REQUEST_LATENCY,
}
"""Metrics of each limit, by statistic."""
Values = Mapping[Metric, float]


def limits_of(run: Run) -> dict[Metric, float]:
    """Return the limit of each metric that a load has to keep, in s."""
    assert run.serving is not None
    s = run.serving
    given = {field.name: getattr(s.limits, field.name) for field in fields(s.limits)}
    statistic = s.search.percentile.name
    return {LATENCIES[name][statistic]: limit_s for name, limit_s in given.items() if limit_s is not None}


def within_limits(run: Run, values: Values) -> bool:
    """Return True if a load has no failed request and keeps all limits. Raise KnownCauseError if it lacks one."""
    limits = limits_of(run)
    missing = [metric.name for metric in limits if metric not in values]
    if missing:
        raise KnownCauseError(
            FailureCause.code,
            f"the load generator reports no {missing[0]}, which serving.limits limits. Set that limit to null, or "
            "another serving.search.percentile.",
        )
    failed = values.get(a.REQUESTS_FAILED, 0.0) + values.get(a.ERROR_RESPONSES, 0.0)
    return not failed and all(values[metric] <= limit_s for metric, limit_s in limits.items())


def highest(keeps: Callable[[int], bool], first: int, most: int, resolution: float) -> tuple[int, int | None]:
    """Return the highest load that keeps the limits, 0 if none does, and the lowest that does not, None if all do.

    Their distance is 1, or at most `resolution` of the lower one.
    """
    low = 0
    high: int | None = None
    while (at := next_value(low, high, first, most=most, within=resolution)) is not None:
        low, high = (at, high) if keeps(at) else (low, at)
    return low, high


@dataclass
class Searched:
    """The loads of a search, and its answer."""

    run: Run
    measure: Callable[[int, int], Values]
    """Measure a load of this concurrency, the n-th one from 1, and return its values."""
    loads: dict[int, list[Values]] = field(default_factory=dict)
    """Values of the loads by concurrency."""

    @property
    def settings(self) -> Search:
        """Return the settings of the search."""
        assert self.run.serving is not None
        return self.run.serving.search

    def kept(self, concurrency: int) -> int:
        """Return the number of loads of a concurrency that kept the limits."""
        return sum(within_limits(self.run, values) for values in self.loads.get(concurrency, ()))

    def load(self, concurrency: int) -> None:
        """Measure one more load of a concurrency."""
        found = self.loads.setdefault(concurrency, [])
        found.append(self.measure(concurrency, len(found) + 1))

    def keeps(self, concurrency: int) -> bool:
        """Measure loads until it is certain whether most repeats keep the limits; return True if they do."""
        most = self.settings.repeats // 2 + 1
        while self.kept(concurrency) < most:
            if len(self.loads.get(concurrency, ())) - self.kept(concurrency) > self.settings.repeats - most:
                return False
            self.load(concurrency)
        return True

    def answer(self) -> tuple[int, str]:
        """Return the highest concurrency within the limits, 0 if none is, and the answer as a sentence."""
        assert self.run.serving is not None
        s = self.settings
        assert s.most_concurrency is not None
        low, high = highest(self.keeps, self.run.serving.concurrency, s.most_concurrency, s.resolution)
        # `keeps` stops when the majority is certain; the two loads of the answer are measured in full.
        for edge in filter(None, (low, high)):
            while len(self.loads[edge]) < s.repeats:
                self.load(edge)
        return low, self.words(low, high)

    def words(self, low: int, high: int | None) -> str:
        """Return the answer of a search with the latencies on which it rests, or what to set if it has none."""
        if high is None:
            return (
                f"{self.at(low)}; it is the ceiling, so the highest concurrency is {low} or more. Set "
                f"serving.search.most_concurrency={2 * low} or more"
            )
        if not low:
            return (
                f"no concurrency keeps the limits: {self.at(high)}. Set a higher limit, a lower serving.output_tokens, "
                "or more GPUs per replica (parallelism.tensor)"
            )
        return f"{self.at(low)}; {self.at(high)}"

    def at(self, concurrency: int) -> str:
        """Return how many loads of a concurrency kept the limits, and their latencies: median, least and most."""
        loads = self.loads[concurrency]
        parts = []
        for metric, limit_s in limits_of(self.run).items():
            values = [values[metric] for values in loads]
            spread = f"{statistics.median(values):.3g} s ({min(values):.3g} to {max(values):.3g})"
            parts.append(f"{metric.name.removesuffix('_s')} {spread}, limit {limit_s:g} s")
        return f"concurrency {concurrency} kept {self.kept(concurrency)} of {len(loads)}: {', '.join(parts)}"
