"""slurmscale.prom: the values of the runs as a text file for Prometheus' node exporter (--collector.textfile)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from analysis.formatting import published

if TYPE_CHECKING:
    from analysis.report.content import Report

LABELS = ("sweep", "run", "model", "engine", "nodes", "ranks")


def exposition(content: Report) -> bytes:
    """Return a gauge for each metric of the runs that are used, in SI units, and the number of runs by state."""
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for row in content.used:
        run, group, point = row.run, row.group, row.point
        labels = (
            published(run.sweep),
            published(run.name),
            published(group.model) if group else "",
            published(group.engine) if group else "",
            str(point.nodes) if point else "",
            str(point.ranks) if point else "",
        )
        for metric, value in run.values.items():
            name = f"slurmscale_{metric.name}"
            if name not in gauges:
                gauges[name] = Gauge(name, f"{metric.definition} [{metric.unit}]", LABELS, registry=registry)
            gauges[name].labels(*labels).set(value)
    states = Gauge("slurmscale_runs", "Runs of the report by state", ("state",), registry=registry)
    for state, count in Counter(run.state for run in content.digest.runs).items():
        states.labels(published(state)).set(count)
    return generate_latest(registry)
