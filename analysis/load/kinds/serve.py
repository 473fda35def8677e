"""Read the values of a run that serves: the load generator's result, and the counters of the replicas."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.load.ended import Submissions, refuse_unfinished
from analysis.load.run_files import Contents, UnusableError
from analysis.metrics.node_use import node_use_values, read_node_use
from analysis.metrics.serving import cost_of_tokens, read_served
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Line, Record
from analysis.parsers.benchmarks import apache_bench, genai_perf, vllm_bench
from analysis.run import RunResult, last_event
from analysis.untrusted import as_number, count, lookup, number
from jobs import metrics as m
from jobs.failure_causes import latest_attempt
from jobs.files import UnsuitableFileError, read_json, read_text, reason
from jobs.metrics import Metric
from jobs.rundir import RunDir
from jobs.settings.serving import LoadGenerator

SERVED = "served requests and trained nothing (job=serve); its results are in the section Serving"


def read(run: RunResult, _contents: Contents, _submissions: Submissions) -> RunResult:
    """Return a run with its latest load, or with that of the answer of its search, and the use of its nodes.

    Raise UnusableError if it has not ended, or if the result is missing or has no completed request.
    """
    refuse_unfinished(run, last=None)
    nodes = read_node_use(RunDir(run.path))
    served = latest_load(replace(run, node_use=nodes))
    return replace(served, values={**served.values, **node_use_values(nodes)})


def latest_load(run: RunResult) -> RunResult:
    """Return a run with its latest load, or with that of the answer of its search."""
    event = last_event(run.events, "served")
    highest = number(event, m.HIGHEST_CONCURRENCY)
    if highest is None:
        return loaded(run, event, RunDir(run.path).load_result.stem)
    loads = tuple(loads_of_search(run))
    # Below the limits at no concurrency, 1 is the nearest to them.
    answer = [load for load in loads if load.setting("serving.concurrency") == max(1, highest)]
    if not answer:
        raise UnusableError("unmeasured", f"{run.path.name} has no load at the answer of its search")
    values = median_of([load.values for load in answer])
    values |= {metric: value for metric in m.SERVING_METRICS if (value := number(event, metric)) is not None}
    return replace(run, state="served", reason=SERVED, values=values, served=answer[0].served, loads=loads)


def loads_of_search(run: RunResult) -> Iterator[RunResult]:
    """Yield the loads of a search in the latest attempt, each as a run of that concurrency."""
    settings = run.config["serving"]
    for event in latest_attempt(run.events) if isinstance(settings, Mapping) else ():
        concurrency, repeat = (count(event, key) for key in ("concurrency", "load_repeat"))
        if event["event"] == "load" and concurrency and repeat:
            config = dict(run.config, serving=dict(settings, concurrency=concurrency))
            yield loaded(replace(run, config=config), event, RunDir.load_of_search(concurrency, repeat))


def median_of(values: Sequence[Mapping[Metric, float]]) -> dict[Metric, float]:
    """Return the median of each metric that all of them have."""
    shared = set(values[0]).intersection(*values[1:])
    return {metric: statistics.median(each[metric] for each in values) for metric in values[0] if metric in shared}


def loaded(run: RunResult, event: Mapping[str, Any], name: str) -> RunResult:
    """Return a run with a load: the result of this name, and the replicas' counters in its event."""
    directory = RunDir(run.path)
    found = client_values(directory, lookup(run.config, "serving.client"), name)
    found |= {metric: value for metric in m.SERVING_METRICS if (value := number(event, metric)) is not None}
    counted, by_server = found.get(a.OUTPUT_TOKENS), found.get(m.SERVER_OUTPUT_TOKENS)
    if counted and by_server is not None:
        found[m.OUTPUT_TOKENS_GAP] = by_server / counted - 1
    load = read_served(directory, event)
    found |= load.values | cost_of_tokens(run, found.get(a.OUTPUT_TOKENS_PER_S))
    return replace(run, state="served", reason=SERVED, values=found, served=load)


def client_values(run: RunDir, client: object, name: str) -> dict[Metric, float]:
    """Return the values that a load generator reports of the load of this name."""
    by_ab = client == LoadGenerator.ab.name
    file = run.serving / f"{name}{'.log' if by_ab else '.json'}"
    try:
        document = None if by_ab else read_json(file)
        records = list(apache_records(read_text(file)) if by_ab else document_records(document))
    except (OSError, UnsuitableFileError, ValueError) as error:
        raise UnusableError("unmeasured", f"serving/{file.name} cannot be read: {reason(error)}") from error
    values = dict(records[-1].values) if records else {}
    if not (values.get(a.REQUESTS_COMPLETED) and values.get(a.REQUESTS_PER_S)):
        raise UnusableError("unmeasured", f"serving/{file.name} contains no completed request")
    # Without limits the load generators write nothing here, or null; with limits that no request kept, 0.
    if 0 in {as_number(lookup(document, key)) for key in ("request_goodput", "goodput.avg")}:
        values[a.GOOD_REQUESTS_PER_S] = 0.0
    # AIPerf has the mean over the completed requests.
    for tokens, length in ((a.INPUT_TOKENS, a.INPUT_LENGTH), (a.OUTPUT_TOKENS, a.OUTPUT_LENGTH)):
        if length in values:
            values.setdefault(tokens, round(values[length] * values[a.REQUESTS_COMPLETED]))
    return values


def apache_records(text: str) -> Iterator[Record]:
    """Yield the summaries of ApacheBench's output."""
    return apache_bench.parse(Line(number, line) for number, line in enumerate(text.splitlines(), start=1))


def document_records(document: Any) -> Iterator[Record]:
    """Yield the summary of vLLM's benchmark or AIPerf; nothing for another document."""
    for form in (vllm_bench, genai_perf):
        if form.recognises(document):
            yield from form.parse_document(document)
