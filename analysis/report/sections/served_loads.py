"""The tables of served loads: one row per configuration and load with its repeats, per search, and per replica."""

from __future__ import annotations

from analysis.formatting import ABSENT, plural, shown, shown_spread, title
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.serving import replicas_figure
from analysis.report.figures.style import Section
from analysis.report.sections.cost import priced
from analysis.run import hardware, last_event
from analysis.scaling.serving import LoadPoint, degrees, frontier, replicas
from jobs import metrics as m

SPREADS = (a.OUTPUT_TOKENS_PER_S, a.REQUESTS_PER_S, a.GOOD_REQUESTS_PER_S, m.OUTPUT_TOKENS_PER_S_PER_RANK)
MEDIANS = (
    m.RANK_TIME_PER_OUTPUT_TOKEN,
    m.SERVICE_UNITS_PER_OUTPUT_TOKEN,
    m.PRICE_PER_OUTPUT_TOKEN,
    a.TIME_TO_FIRST_TOKEN["median"],
    a.TIME_TO_FIRST_TOKEN["p99"],
    a.INTER_TOKEN_LATENCY["median"],
    a.REQUEST_LATENCY["median"],
    a.REQUEST_LATENCY["p99"],
)
COUNTERS = (m.SERVER_REQUESTS, m.SERVER_OUTPUT_TOKENS, m.SERVER_PREEMPTIONS)


def load_section(digest: Digest) -> Section | None:
    """Return a row for each load of each configuration; None unless a configuration has several, or repeats."""
    lines = digest.load_lines
    if not any(len(line.points) > 1 or len(line.points[0].runs) > 1 for line in lines):
        return None
    points = [point for line in lines for point in line.points]
    known = [[metric for metric in metrics if any(p.spread(metric) for p in points)] for metrics in (SPREADS, MEDIANS)]
    best, runs = frontier(lines), [run for point in points for run in point.runs]
    rows = [
        [
            line.label,
            f"{point.load:,g}" + ("" if line.axis is a.CONCURRENCY else " requests/s"),
            *(shown_spread(metric, point.spread(metric)) for metric in known[0]),
            *(shown(metric, point.median(metric)) for metric in known[1]),
            repeats_in_words(point, on_frontier=point in best),
        ]
        for line in lines
        for point in line.points
    ]
    note = (
        "One row per configuration and load: the median of its repeats, with the smallest and the largest. Runs with "
        "failed requests are in no median. Pareto: no other row of equal hardware, model and requests has both more "
        "output tokens per rank and a lower latency (99th percentile). "
        + " ".join(f"{metric.name}: {metric.definition}" for metric in known[1] if metric in MEDIANS[:3])
    )
    headings = ("Configuration", "Load", *(priced(each, runs) for each in [*known[0], *known[1]]), "Repeats")
    return Section("Serving by load", note.strip(), headings, rows)


def search_section(digest: Digest) -> Section | None:
    """Return a row for each search of the highest concurrency within limits; None if there are none."""
    found = [run for run in digest.served if m.HIGHEST_CONCURRENCY in run.values]
    listed = sorted(found, key=lambda run: -run.values[m.HIGHEST_CONCURRENCY])
    rates = [metric for metric in SPREADS if any(metric in run.values for run in listed)]
    rows = [
        [
            run.name,
            f"{replicas(run)}",
            " x ".join(map(str, degrees(run))),
            shown(m.HIGHEST_CONCURRENCY, run.values[m.HIGHEST_CONCURRENCY]),
            *(shown(metric, run.values.get(metric)) for metric in rates),
            plural(len(run.loads), "load"),
            f"{hardware([run])}: {run.setting('model.name')}; {last_event(run.events, 'served').get('answer')}",
        ]
        for run in listed
    ]
    note = (
        "One row per search, the highest concurrency first; rates are medians over its loads at that concurrency. All "
        "its loads are in Serving by load. Compare rows of equal hardware, model, requests and limits. "
        f"{m.HIGHEST_CONCURRENCY.name}: {m.HIGHEST_CONCURRENCY.definition}"
    )
    numbers = map(title, [m.HIGHEST_CONCURRENCY, *rates])
    headings = ("Run", "Replicas", "TP x PP", *numbers, "Measured", "Model and answer")
    return Section("Highest concurrency within limits", note, headings, rows) if rows else None


def repeats_in_words(point: LoadPoint, *, on_frontier: bool) -> str:
    """Return the number of repeats, doubts, and whether a point is on the frontier."""
    doubted = f", {plural(len(point.doubted), 'doubtful run')}" if point.doubted else ""
    doubted += " only" if point.doubtful else ""
    return f"n = {len(point.runs)}{doubted}{'; Pareto' if on_frontier else ''}"


def replicas_section(digest: Digest) -> Section | None:
    """Return a row for each replica of each run that served; None if none counted."""
    listed = [(run, run.served) for run in digest.served if run.served]
    rows = [
        [
            run.name,
            f"{replica.number}",
            ABSENT if (share := load.share(replica)) is None else shown(m.LARGEST_REPLICA_SHARE, share),
            *(shown(metric, replica.counters.get(metric)) for metric in COUNTERS),
            *(
                f"{shown(peak, replica.peak(gauge))} / {shown(mean, replica.mean(gauge))}"
                for gauge, (peak, mean) in m.GAUGES_OVER_LOAD.items()
            ),
            plural(max((len(samples) for samples in replica.gauges.values()), default=0), "sample"),
        ]
        for run, load in listed
        for replica in load.replicas
        if replica.counters or replica.gauges
    ]
    note = (
        "One row per replica during the load, by its own counters; largest / mean of its samples, one "
        "a second from the first to the last with a request. "
        + " ".join(f"{metric.name}: {metric.definition}" for metric in m.GAUGES_OVER_LOAD)
    )
    gauges = [f"{title(metric)}, peak / mean" for metric in m.GAUGES_OVER_LOAD]
    headings = ("Run", "Replica", "Share of requests (%)", *map(title, COUNTERS), *gauges, "Sampled")
    return Section("Replicas", note, headings, rows, figure=replicas_figure(digest.served)) if rows else None
