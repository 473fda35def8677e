"""Read the values of a run that serves: the load generator's result, and the counters of the replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.load.run_files import UnusableError
from analysis.parsers import apache_bench, vllm_bench
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Line, Record
from analysis.run import last_event
from analysis.untrusted import lookup, number
from jobs import metrics as m
from jobs.files import UnsuitableFileError, read_json, read_text, reason
from jobs.metrics import Metric
from jobs.rundir import RunDir
from jobs.serving.settings import LoadGenerator


def serving_values(
    run: RunDir, config: Mapping[str, Any], events: tuple[Mapping[str, Any], ...]
) -> dict[Metric, float]:
    """Return the values of the latest load. Raise UnusableError if its result is missing or has no requests."""
    found = client_values(run, str(lookup(config, "serving.client")))
    served = last_event(events, "served")
    found |= {metric: value for metric in m.SERVING_METRICS if (value := number(served, metric)) is not None}
    counted, by_server = found.get(a.OUTPUT_TOKENS), found.get(m.SERVER_OUTPUT_TOKENS)
    if counted and by_server is not None:
        found[m.OUTPUT_TOKENS_GAP] = by_server / counted - 1
    return found


def client_values(run: RunDir, client: str) -> dict[Metric, float]:
    """Return the values that the load generator reports."""
    by_ab = client == LoadGenerator.ab.name
    file = run.load_log if by_ab else run.load_result
    try:
        records = list(apache_records(read_text(file)) if by_ab else vllm_records(read_json(file)))
    except (OSError, UnsuitableFileError, ValueError) as error:
        raise UnusableError("unmeasured", f"serving/{file.name} cannot be read: {reason(error)}") from error
    values = dict(records[-1].values) if records else {}
    if not (values.get(a.REQUESTS_COMPLETED) and values.get(a.REQUESTS_PER_S)):
        raise UnusableError("unmeasured", f"serving/{file.name} contains no completed request")
    return values


def apache_records(text: str) -> Iterator[Record]:
    """Yield the summaries of ApacheBench's output."""
    return apache_bench.parse(Line(number, line) for number, line in enumerate(text.splitlines(), start=1))


def vllm_records(document: Any) -> Iterator[Record]:
    """Yield the summary of vLLM's benchmark; nothing for another document."""
    return vllm_bench.parse_document(document) if vllm_bench.recognises(document) else iter(())
