"""vLLM's serving benchmark: a table under `==== Serving Benchmark Result ====`, and one JSON per file or line.

SGLang, TensorRT-LLM and others print the same table with more or fewer rows. SGLang appends a line of JSON per run, as
vLLM does with --append-result, both with the times of all requests if requested. Rates are printed with two decimals:
0.05 requests per second has one digit, so the count divided by the printed duration is more precise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Line, LineFormat, Record, Text
from analysis.untrusted import as_number, printed_number
from jobs.metrics import Metric

TITLE = " Serving Benchmark Result "
ROW = re.compile(r"\s*([A-Z][^:]*?):\s+([\d.]{1,20})\s*$")
LATENCY = re.compile(r"(mean|median|max|p\d\d) (ttft|tpot|itl|e2el|e2e latency) \(ms\)")
# By the label of a row in lower case (two spellings exist), and by the key of the document.
COUNTS = {
    "successful requests": a.REQUESTS_COMPLETED,
    "completed": a.REQUESTS_COMPLETED,
    "failed requests": a.REQUESTS_FAILED,
    "failed": a.REQUESTS_FAILED,
    "num_prompts": a.REQUESTS_PLANNED,
    "total input tokens": a.INPUT_TOKENS,
    "total_input_tokens": a.INPUT_TOKENS,
    "total generated tokens": a.OUTPUT_TOKENS,
    "total_output_tokens": a.OUTPUT_TOKENS,
}
# A value of 0 means not measured.
POSITIVE = {
    "maximum request concurrency": a.CONCURRENCY,
    "max request concurrency": a.CONCURRENCY,
    "max_concurrency": a.CONCURRENCY,
    "request rate configured (rps)": a.OFFERED_REQUESTS_PER_S,
    "traffic request rate": a.OFFERED_REQUESTS_PER_S,
    "request_rate": a.OFFERED_REQUESTS_PER_S,
    "benchmark duration (s)": a.DURATION,
    "duration": a.DURATION,
    "request throughput (req/s)": a.REQUESTS_PER_S,
    "request_throughput": a.REQUESTS_PER_S,
    "request goodput (req/s)": a.GOOD_REQUESTS_PER_S,
    "request_goodput": a.GOOD_REQUESTS_PER_S,
    "input token throughput (tok/s)": a.INPUT_TOKENS_PER_S,
    "input_throughput": a.INPUT_TOKENS_PER_S,
    "output token throughput (tok/s)": a.OUTPUT_TOKENS_PER_S,
    "output_throughput": a.OUTPUT_TOKENS_PER_S,
    "peak output token throughput (tok/s)": a.PEAK_OUTPUT_TOKENS_PER_S,
    "max_output_tokens_per_s": a.PEAK_OUTPUT_TOKENS_PER_S,
    "peak concurrent requests": a.PEAK_CONCURRENCY,
    "max_concurrent_requests": a.PEAK_CONCURRENCY,
    "total token throughput (tok/s)": a.SERVED_TOKENS_PER_S,
    "total_token_throughput": a.SERVED_TOKENS_PER_S,
    "total_throughput": a.SERVED_TOKENS_PER_S,
    "user throughput (tok/s)": a.OUTPUT_TOKENS_PER_S_PER_REQUEST,
}
TIMES = {
    "ttft": a.TIME_TO_FIRST_TOKEN,
    "tpot": a.TIME_PER_OUTPUT_TOKEN,
    "itl": a.INTER_TOKEN_LATENCY,
    "e2el": a.REQUEST_LATENCY,
    "e2e latency": a.REQUEST_LATENCY,
}
ROUNDED = {
    a.REQUESTS_PER_S: (a.REQUESTS_COMPLETED,),
    a.OUTPUT_TOKENS_PER_S: (a.OUTPUT_TOKENS,),
    a.SERVED_TOKENS_PER_S: (a.INPUT_TOKENS, a.OUTPUT_TOKENS),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a summary for each table, at the line of its title."""
    title: Line | None = None
    values: dict[Metric, float] = {}
    for line in lines:
        if TITLE in line.text:
            yield from summary(title, values)
            title, values = line, {}
        elif row := ROW.match(line.text):
            values |= row_values(row[1].lower(), printed_number(row[2]))
    yield from summary(title, values)


def row_values(label: str, value: float | None) -> dict[Metric, float]:
    """Return the value of a row; none if it has no metric."""
    if value is None or value < 0:
        return {}
    if label in COUNTS:
        return {COUNTS[label]: value}
    if label in POSITIVE and (value > 0 or POSITIVE[label] in ROUNDED):
        return {POSITIVE[label]: value}
    if value > 0 and (found := LATENCY.fullmatch(label)):
        # The 50th percentile is printed next to the median, if requested.
        metric = TIMES[found[2]].get("median" if found[1] == "p50" else found[1])
        return {} if metric is None else {metric: value * 1e-3}
    return {}


def summary(title: Line | None, values: dict[Metric, float]) -> Iterator[Record]:
    """Return the summary of a table, with rates in as many digits as counts and duration give; none if empty."""
    duration = values.get(a.DURATION)
    for rate, counts in ROUNDED.items():
        # Duration and rate have two decimals: the larger one has more digits, and 0.00 is a small rate.
        if duration is not None and values.get(rate, duration) < duration and values.keys() >= set(counts):
            values[rate] = sum(values[each] for each in counts) / duration
        if not values.get(rate):
            values.pop(rate, None)
    if title is not None and values:
        yield Record(Kind.summary, title.number, values, {}, title.rank, title.host)


def recognises(document: Any) -> bool:
    """Return True if a document is a result."""
    return isinstance(document, Mapping) and {"duration", "completed", "request_throughput"} <= document.keys()


def parse_document(document: Any) -> Iterator[Record]:
    """Return the single summary of a result."""
    values: dict[Metric, float] = {}
    for key, value in document.items():
        statistic, _, rest = str(key).partition("_")
        label = f"{statistic} {rest.removesuffix('_ms')} (ms)" if str(key).endswith("_ms") else str(key)
        values |= row_values(label.replace("e2e_latency", "e2e latency"), as_number(value))
    server, errors = document.get("server_info"), document.get("errors")
    model = server.get("served_model_name") if isinstance(server, Mapping) else document.get("model_id")
    names = {Text.model: model, Text.timestamp: document.get("date")}
    if isinstance(errors, list):
        # SGLang does not count failed requests; it lists errors only with the times of all requests.
        values.setdefault(a.REQUESTS_FAILED, sum(map(bool, errors)))
    if values:
        yield Record(Kind.summary, 0, values, {text: name for text, name in names.items() if isinstance(name, str)})


UPSTREAM = "https://github.com/vllm-project/vllm/blob/v0.11.0/vllm/benchmarks/serve.py"
FORMAT = LineFormat(
    "vLLM and SGLang serving benchmark", UPSTREAM, parse, section_start=(TITLE,), section_end=("=" * 50,)
)
DOCUMENT = DocumentFormat(
    "vLLM and SGLang serving benchmark (JSON)", UPSTREAM, recognises, parse_document, in_lines='"request_throughput"'
)
