"""Read the values of a run that serves: the load generator's result, and the counters of the replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from analysis.load.run_files import UnusableError
from analysis.metrics.serving import cost_of_tokens, read_served
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Line, Record
from analysis.parsers.benchmarks import apache_bench, vllm_bench
from analysis.run import RunResult, last_event
from analysis.untrusted import as_number, lookup, number
from jobs import metrics as m
from jobs.files import UnsuitableFileError, read_json, read_text, reason
from jobs.metrics import Metric
from jobs.rundir import RunDir
from jobs.serving.settings import LoadGenerator

SERVED = "served requests and trained nothing (job=serve); its results are in the section Serving"


def served_run(run: RunResult) -> RunResult:
    """Return a run with its latest load. Raise UnusableError if the result is missing or has no completed request."""
    directory, served = RunDir(run.path), last_event(run.events, "served")
    found = client_values(directory, run.config)
    found |= {metric: value for metric in m.SERVING_METRICS if (value := number(served, metric)) is not None}
    counted, by_server = found.get(a.OUTPUT_TOKENS), found.get(m.SERVER_OUTPUT_TOKENS)
    if counted and by_server is not None:
        found[m.OUTPUT_TOKENS_GAP] = by_server / counted - 1
    load = read_served(directory, served)
    found |= load.values | cost_of_tokens(run, found.get(a.OUTPUT_TOKENS_PER_S))
    return replace(run, state="served", reason=SERVED, values=found, served=load)


def client_values(run: RunDir, config: Mapping[str, Any]) -> dict[Metric, float]:
    """Return the values that the load generator reports."""
    by_ab = lookup(config, "serving.client") == LoadGenerator.ab.name
    file = run.load_log if by_ab else run.load_result
    try:
        document = None if by_ab else read_json(file)
        records = list(apache_records(read_text(file)) if by_ab else vllm_records(document))
    except (OSError, UnsuitableFileError, ValueError) as error:
        raise UnusableError("unmeasured", f"serving/{file.name} cannot be read: {reason(error)}") from error
    values = dict(records[-1].values) if records else {}
    if not (values.get(a.REQUESTS_COMPLETED) and values.get(a.REQUESTS_PER_S)):
        raise UnusableError("unmeasured", f"serving/{file.name} contains no completed request")
    # Without limits the benchmark writes null, with limits that no request kept 0.
    if isinstance(document, dict) and as_number(document.get("request_goodput")) == 0:
        values[a.GOOD_REQUESTS_PER_S] = 0.0
    return values


def apache_records(text: str) -> Iterator[Record]:
    """Yield the summaries of ApacheBench's output."""
    return apache_bench.parse(Line(number, line) for number, line in enumerate(text.splitlines(), start=1))


def vllm_records(document: Any) -> Iterator[Record]:
    """Yield the summary of vLLM's benchmark; nothing for another document."""
    return vllm_bench.parse_document(document) if vllm_bench.recognises(document) else iter(())
