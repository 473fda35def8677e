"""A measured load on the replicas of a run: their counters, and their gauges over its time.

From the `served` event and serving/replica-0.jsonl, ... (jobs.work.serve.replica). Values in files are untrusted: a
record that does not fit is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.metrics.cost import gpu_second_price
from analysis.run import RunResult
from analysis.untrusted import as_list, as_number, number
from jobs import metrics as m
from jobs.metrics import Metric
from jobs.rundir import RunDir, read_records

# A load of a week.
LONGEST_S = 604_800
Gauges = dict[Metric, list[tuple[float, float]]]
"""Time (s) and value of each sample, by metric."""


@dataclass(frozen=True)
class ReplicaLoad:
    """A replica under the load."""

    number: int
    counters: Mapping[Metric, float]
    """Increase of each counter during the load."""
    gauges: Mapping[Metric, Sequence[tuple[float, float]]]
    """Time since the first request (s) and value of each sample during the load; a metric without samples is absent."""

    def peak(self, metric: Metric) -> float | None:
        """Return the largest sample; None if there are none."""
        return max((value for _, value in self.gauges.get(metric, ())), default=None)

    def mean(self, metric: Metric) -> float | None:
        """Return the mean of the samples; None if there are none."""
        found = [value for _, value in self.gauges.get(metric, ())]
        return statistics.fmean(found) if found else None


@dataclass(frozen=True)
class ServedLoad:
    """All replicas under the load, by number."""

    replicas: Sequence[ReplicaLoad]

    def share(self, replica: ReplicaLoad) -> float | None:
        """Return the share of the requests that a replica completed; None if one of them did not count."""
        counts = [each.counters.get(m.SERVER_REQUESTS) for each in self.replicas]
        known = [count for count in counts if count is not None]
        total = sum(known)
        return replica.counters[m.SERVER_REQUESTS] / total if total and len(known) == len(counts) else None

    def together(self, metric: Metric) -> list[tuple[int, float]]:
        """Return the sum of a gauge over the replicas in each second of the load, from the first that all have.

        A second without a sample of a replica has its latest one.
        """
        by_second: dict[int, dict[int, float]] = {}
        for replica in self.replicas:
            for at_s, value in replica.gauges.get(metric, ()):
                by_second.setdefault(int(at_s), {})[replica.number] = value
        latest: dict[int, float] = {}
        found = []
        for second in sorted(by_second):
            latest |= by_second[second]
            if len(latest) == len(self.replicas):
                found.append((second, sum(latest.values())))
        return found

    @property
    def values(self) -> dict[Metric, float]:
        """Return peak and mean of each gauge that has samples."""
        found: dict[Metric, float] = {}
        for metric, (peak, mean) in m.GAUGES_OVER_LOAD.items():
            if metric is m.KV_CACHE_USE:
                seen = [value for each in self.replicas for _, value in each.gauges.get(metric, ())]
            else:
                seen = [value for _, value in self.together(metric)]
            if seen:
                found |= {peak: max(seen), mean: statistics.fmean(seen)}
        return found


def read_served(run: RunDir, served: Mapping[str, Any]) -> ServedLoad:
    """Return the load of a `served` event with the samples of its replicas."""
    replicas = {
        each["replica"]: each
        for each in as_list(served.get("replicas"))
        if isinstance(each, dict) and type(each.get("replica")) is int and each["replica"] >= 0
    }
    began, ended = as_number(served.get("load_began_s")), as_number(served.get("load_ended_s"))
    period = (began, ended) if began is not None and ended is not None and 0 <= ended - began < LONGEST_S else None
    gauges = while_busy({place: gauges_of(run, place, period) if period else {} for place in replicas})
    counters = {
        place: {metric: value for metric in m.SERVING_METRICS if (value := number(record, metric)) is not None}
        for place, record in replicas.items()
    }
    return ServedLoad([ReplicaLoad(place, counters[place], gauges[place]) for place in sorted(replicas)])


def while_busy(gauges: Mapping[int, Gauges]) -> dict[int, Gauges]:
    """Return the samples from the first to the last with a request on any replica: a load generator starts slowly.

    All of them, if the servers do not count their requests.
    """
    busy = [
        at_s
        for each in gauges.values()
        for metric in (m.REQUESTS_RUNNING, m.REQUESTS_WAITING)
        for at_s, value in each.get(metric, ())
        if value > 0
    ]
    if not busy:
        return dict(gauges)
    first, last = min(busy), max(busy)
    return {
        place: {
            metric: kept
            for metric, samples in each.items()
            if (kept := [(at_s - first, value) for at_s, value in samples if first <= at_s <= last])
        }
        for place, each in gauges.items()
    }


def gauges_of(run: RunDir, replica: int, period: tuple[float, float]) -> Gauges:
    """Return the samples of a replica within a period, by metric."""
    found: Gauges = {}
    for at_s, record in samples(run, replica, period):
        for metric in m.SERVER_GAUGES:
            value = number(record, metric)
            if value is not None and value >= 0:
                found.setdefault(metric, []).append((at_s, value))
    return found


def samples(run: RunDir, replica: int, period: tuple[float, float]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yield time since the begin of the period and record of each sample within it; none if the file is unreadable."""
    try:
        for record in read_records(run.replica_samples(replica)):
            at_s = as_number(record.get("at_s"))
            if at_s is not None and period[0] <= at_s <= period[1]:
                yield at_s - period[0], record
    except OSError:
        return


def cost_of_tokens(run: RunResult, output_tokens_per_s: float | None) -> dict[Metric, float]:
    """Return rate and cost of output tokens by the ranks, nodes and price of a run, as far as they are known."""
    if not output_tokens_per_s or not run.ranks:
        return {}
    found = {
        m.OUTPUT_TOKENS_PER_S_PER_RANK: output_tokens_per_s / run.ranks,
        m.RANK_TIME_PER_OUTPUT_TOKEN: run.ranks / output_tokens_per_s,
    }
    if (gpu_price := gpu_second_price(run)) is not None:
        found[m.PRICE_PER_OUTPUT_TOKEN] = found[m.RANK_TIME_PER_OUTPUT_TOKEN] * gpu_price
    price, nodes = as_number(run.setting("cluster.service_units_per_node_hour")), as_number(run.setting("nodes"))
    if price is not None and price > 0 and nodes:
        found[m.SERVICE_UNITS_PER_OUTPUT_TOKEN] = nodes * price / (3600 * output_tokens_per_s)
    return found
