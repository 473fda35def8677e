"""Names of metrics: each names one metric in jobs.metrics and in the metrics of other programs' logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from analysis.parsers import log_metrics
from jobs import metrics
from jobs.metrics import Metric


def metrics_in(value: object) -> Iterator[Metric]:
    """Yield the metrics that a value holds, also those of tables and distributions."""
    if isinstance(value, Metric):
        yield value
    elif isinstance(value, dict):
        yield from metrics_in(list(value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from metrics_in(each)


def test_a_name_belongs_to_one_metric() -> None:
    named: dict[str, set[int]] = defaultdict(set)
    for module in (metrics, log_metrics):
        for metric in metrics_in(list(vars(module).values())):
            named[metric.name].add(id(metric))
    assert len(named) > 300
    assert {name for name, same in named.items() if len(same) > 1} == set()
