"""The table of runs that serve: rates, latencies and failed requests, the highest rate of output tokens first."""

from __future__ import annotations

from analysis.formatting import ABSENT, plural, shown, title, unit, within_sentence
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult, hardware
from analysis.scaling.serving import concurrency_of, degrees, doubts, replicas
from analysis.untrusted import as_number
from jobs import metrics as m

NUMBERS = (
    a.REQUESTS_PER_S,
    a.OUTPUT_TOKENS_PER_S,
    a.SERVED_TOKENS_PER_S,
    a.GOOD_REQUESTS_PER_S,
    a.TIME_TO_FIRST_TOKEN["median"],
    a.TIME_TO_FIRST_TOKEN["p99"],
    a.INTER_TOKEN_LATENCY["median"],
    a.INTER_TOKEN_LATENCY["p99"],
    a.REQUEST_LATENCY["median"],
    a.REQUEST_LATENCY["p99"],
    a.REQUESTS_FAILED,
    m.REQUESTS_TRUNCATED,
    m.SERVER_PREEMPTIONS,
    m.LARGEST_REPLICA_SHARE,
    m.OUTPUT_TOKENS_GAP,
)


def serving_section(digest: Digest) -> Section | None:
    """Return a row for each run that served and has a result; None if there are none."""
    metrics = [metric for metric in NUMBERS if any(metric in run.values for run in digest.served)]
    rows = [
        [
            run.name,
            f"{replicas(run)}",
            " x ".join(map(str, degrees(run))),
            concurrency(run),
            *(shown(metric, run.values.get(metric)) for metric in metrics),
            model_and_doubts(run),
        ]
        for run in digest.served
    ]
    note = (
        "One row per run, the highest rate first; runs with failed requests stand last, whatever their rate. Rates and "
        "latencies are those of the load generator, without warm-up. "
        f"{m.OUTPUT_TOKENS_GAP.name}: {m.OUTPUT_TOKENS_GAP.definition}"
    )
    headings = ("Run", "Replicas", "TP x PP", "Concurrency", *map(title, metrics), "Model and doubts")
    return Section("Serving", note, headings, rows) if rows else None


def serving_headlines(digest: Digest) -> list[str]:
    """Return a sentence for each model that was served: the run that stands first, with its load and latencies."""
    first: dict[str, RunResult] = {}
    for run in digest.served:
        first.setdefault(str(run.setting("model.name")), run)
    return [sentence(run) for run in first.values()]


def sentence(run: RunResult) -> str:
    """Return the rate of a run, its replicas, load, latencies and doubts."""
    rate = a.OUTPUT_TOKENS_PER_S if a.OUTPUT_TOKENS_PER_S in run.values else a.REQUESTS_PER_S
    latencies = [
        f"{within_sentence(metric)} {shown(metric, run.values[metric])} {unit(metric)}"
        for metric in (a.TIME_TO_FIRST_TOKEN["median"], a.REQUEST_LATENCY["median"])
        if metric in run.values
    ]
    if a.GOOD_REQUESTS_PER_S in run.values:
        good = shown(a.GOOD_REQUESTS_PER_S, run.values[a.GOOD_REQUESTS_PER_S])
        latencies.append(f"{good} requests/s within {limits(run)}")
    if run.values.get(m.HIGHEST_CONCURRENCY):
        latencies.append(f"the highest found within its limits ({limits(run)})")
    elif m.HIGHEST_CONCURRENCY in run.values:
        latencies.append(f"no concurrency is within its limits ({limits(run)})")
    found = doubts(run)
    return (
        f"{hardware([run])}: {run.setting('model.name')} served at {shown(rate, run.values[rate])} "
        f"{within_sentence(rate)} by {plural(replicas(run), 'replica')} at concurrency "
        f"{concurrency(run)}{''.join(f'; {each}' for each in latencies)}"
        + (f". DOUBTFUL: {'; '.join(found)}." if found else ".")
    )


def limits(run: RunResult) -> str:
    """Return the limits of a good request as text."""
    names = ("time_to_first_token_s", "time_per_output_token_s", "request_latency_s")
    given = {name: run.setting(f"serving.limits.{name}") for name in names}
    words = [f"{name.removesuffix('_s').replace('_', ' ')} {at:g} s" for name, at in given.items() if as_number(at)]
    return ", ".join(words) or "limits that are not known"


def concurrency(run: RunResult) -> str:
    """Return the most requests under way at once."""
    given = concurrency_of(run)
    return ABSENT if given is None else f"{given:,}"


def model_and_doubts(run: RunResult) -> str:
    """Return hardware, model, load generator and doubts of a run."""
    found = doubts(run)
    doubtful = f". DOUBTFUL: {'; '.join(found)}" if found else ""
    within = f", good within {limits(run)}" if a.GOOD_REQUESTS_PER_S in run.values else ""
    return f"{hardware([run])}: {run.setting('model.name')}, load by {run.setting('serving.client')}{within}{doubtful}"
