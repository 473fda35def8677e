"""Served loads: runs as points of lines over concurrency or request rate, their doubts, and the points on the frontier.

A line has the runs that differ only in their load and in what no line compares (analysis.identity). Its axis is the
request rate where that is limited, else the concurrency. Runs of one load are repeats; a search has many loads, each of
which counts as a run. A run with failed requests, or whose servers counted other tokens than the load generator, is
doubtful: it enters no median, unless all repeats are doubtful, and no frontier.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.formatting import plural
from analysis.identity import compared
from analysis.intervals import Spread
from analysis.parsers import log_metrics as a
from analysis.run import RunResult, hardware
from analysis.scaling.groups import distinct_labels
from analysis.untrusted import as_number, canonical
from jobs import metrics as m
from jobs.metrics import Metric

LARGEST_GAP = 0.01
"""Largest difference of the two counts of output tokens without a doubt."""
LOAD = {"serving.concurrency", "serving.requests_per_s", "serving.requests", "serving.warmup_requests"}
RATES = (a.OUTPUT_TOKENS_PER_S, a.REQUESTS_PER_S)
# A line is compared by the first of these that all its points have.
LATENCIES = (a.REQUEST_LATENCY["p99"], a.REQUEST_LATENCY["median"])


@dataclass(frozen=True)
class LoadPoint:
    """The repeats of one load."""

    load: float
    """Concurrency, or requests per second."""
    runs: tuple[RunResult, ...]
    """Those that count."""
    doubted: tuple[RunResult, ...]

    @property
    def doubtful(self) -> bool:
        """Return True if no repeat is believed."""
        return self.runs == self.doubted

    def spread(self, metric: Metric) -> Spread | None:
        """Return a metric over the repeats that have it."""
        values = [run.values[metric] for run in self.runs if metric in run.values]
        return Spread.of(values) if values else None

    def median(self, metric: Metric) -> float | None:
        """Return the median of a metric over the repeats that have it."""
        spread = self.spread(metric)
        return spread.median if spread else None


@dataclass(frozen=True)
class LoadLine:
    """One configuration under several loads, in their order."""

    label: str
    axis: Metric
    """CONCURRENCY or OFFERED_REQUESTS_PER_S."""
    points: tuple[LoadPoint, ...]

    @property
    def first(self) -> RunResult:
        """One of its runs."""
        return self.points[0].runs[0]

    @property
    def task(self) -> tuple[object, ...]:
        """Hardware, model and requests, which lines have in common if their points are compared."""
        keys = ("model.name", "serving.input_tokens", "serving.output_tokens", "serving.client")
        return hardware([self.first]), self.first.started.get("device_name"), *map(self.first.setting, keys)


def load_lines(runs: Iterable[RunResult]) -> list[LoadLine]:
    """Return the lines of the runs that served, by label; runs of an unknown load are in none."""
    members: dict[bytes, list[RunResult]] = defaultdict(list)
    settings: dict[bytes, dict[str, Any]] = {}
    for run in (load for each in runs if each.state == "served" for load in each.loads or [each]):
        if load_of(run) is not None:
            values = configuration(run)
            members[key := canonical(values)].append(run)
            settings[key] = values
    labels = distinct_labels([settings[key] for key in members])
    lines = [
        LoadLine(label, axis_of(own[0]), points_of(own)) for label, own in zip(labels, members.values(), strict=True)
    ]
    return sorted(lines, key=lambda line: line.label)


def configuration(run: RunResult) -> dict[str, Any]:
    """Return what the runs of a line have in common."""
    by_rate = axis_of(run) is a.OFFERED_REQUESTS_PER_S
    apart = LOAD - {"serving.concurrency"} if by_rate else LOAD
    values = {
        key: value
        for key, value in compared(run).items()
        if key not in apart | {"serving.replicas"} and not key.startswith("serving.search.")
    }
    idle = (run.ranks or 0) - replicas(run) * replica_ranks(run)
    values |= {"nodes": run.setting("nodes"), "replicas": replicas(run), "load": by_rate}
    return values | ({"idle_ranks": idle} if idle else {})


def points_of(runs: Sequence[RunResult]) -> tuple[LoadPoint, ...]:
    """Return the points of the runs of a line, by load."""
    loads: dict[float, list[RunResult]] = defaultdict(list)
    for run in runs:
        loads[load_of(run) or 0.0].append(run)
    found = []
    for load, repeats in sorted(loads.items()):
        doubted = tuple(run for run in repeats if doubts(run))
        found.append(LoadPoint(load, tuple(run for run in repeats if run not in doubted) or doubted, doubted))
    return tuple(found)


def axis_of(run: RunResult) -> Metric:
    """Return the axis of a run's load."""
    return a.CONCURRENCY if run.setting("serving.requests_per_s") is None else a.OFFERED_REQUESTS_PER_S


def load_of(run: RunResult) -> float | None:
    """Return a run's load on its axis; None if it is not known."""
    key = "concurrency" if axis_of(run) is a.CONCURRENCY else "requests_per_s"
    load = as_number(run.setting(f"serving.{key}"))
    return load if load is not None and load > 0 else None


def frontier(lines: Sequence[LoadLine]) -> set[LoadPoint]:
    """Return the points that no other one of their task beats, at once, in rate per rank and in latency."""
    tasks: dict[tuple[object, ...], list[LoadPoint]] = defaultdict(list)
    for line in lines:
        tasks[line.task] += [point for point in line.points if not point.doubtful]
    best = set()
    for points in tasks.values():
        latency = latency_of(points)
        placed = [(point, *at) for point in points if (at := place(point, latency))]
        best |= {
            point
            for point, rate, late_s in placed
            if not any(r >= rate and s <= late_s and (r, s) != (rate, late_s) for _, r, s in placed)
        }
    return best


def place(point: LoadPoint, latency: Metric | None) -> tuple[float, float] | None:
    """Return a point's rate per rank and its latency; None if one is not known."""
    rate, late_s = point.median(m.OUTPUT_TOKENS_PER_S_PER_RANK), point.median(latency) if latency else None
    return None if rate is None or late_s is None else (rate, late_s)


def latency_of(points: Iterable[LoadPoint]) -> Metric | None:
    """Return the latency by which points are compared: the first that all have; None if there is none."""
    points = list(points)
    return next((each for each in LATENCIES if all(point.median(each) is not None for point in points)), None)


def rate_of(lines: Iterable[LoadLine]) -> Metric:
    """Return the rate by which lines are compared: tokens if all points have them, else requests."""
    points = [point for line in lines for point in line.points]
    return next(rate for rate in RATES if all(point.median(rate) is not None for point in points) or rate is RATES[-1])


def concurrency_of(run: RunResult) -> int | None:
    """Return the most requests under way at once; of a search, at its answer."""
    if m.HIGHEST_CONCURRENCY in run.values:
        return max(1, int(run.values[m.HIGHEST_CONCURRENCY]))
    given = run.setting("serving.concurrency")
    return given if isinstance(given, int) else None


def order(run: RunResult) -> tuple[bool, float, str]:
    """Return the key of a run in a ranking: those without doubts first, then by rate."""
    rate = run.values.get(a.OUTPUT_TOKENS_PER_S, run.values.get(a.REQUESTS_PER_S, 0.0))
    return bool(doubts(run)), -rate, run.name


def replicas(run: RunResult) -> int:
    """Return the number of replicas of a run."""
    given = run.setting("serving.replicas")
    return given if isinstance(given, int) else (run.ranks or 0) // replica_ranks(run)


def replica_ranks(run: RunResult) -> int:
    """Return the ranks of a replica: TP x PP."""
    return math.prod(degrees(run))


def degrees(run: RunResult) -> tuple[int, int]:
    """Return TP and PP of a run."""
    given = (run.setting("parallelism.tensor"), run.setting("parallelism.pipeline"))
    tensor, pipeline = (max(1, value) if isinstance(value, int) else 1 for value in given)
    return tensor, pipeline


def doubts(run: RunResult) -> list[str]:
    """Return the reasons why the rate of a run does not count as it is."""
    values, found = run.values, []
    failed = int(values.get(a.REQUESTS_FAILED, 0) + values.get(a.ERROR_RESPONSES, 0))
    if failed:
        completed = int(values.get(a.REQUESTS_COMPLETED, 0))
        found.append(f"{plural(failed, 'request')} failed, {completed:,} completed")
    gap = values.get(m.OUTPUT_TOKENS_GAP)
    if gap is not None and abs(gap) > LARGEST_GAP:
        found.append("servers and load generator counted different numbers of output tokens")
    return found
