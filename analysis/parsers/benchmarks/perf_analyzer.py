"""Triton's perf_analyzer, as NVIDIA's recipes run it against vLLM: a block for each concurrency, times in us.

After a block the recipes print token metrics, with percentiles under their own heading. Option -f writes a CSV file
with a row for each concurrency or rate, also in us.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Names, Record, numbers
from analysis.untrusted import printed_number
from jobs.metrics import Metric

FIRST = "Request concurrency: "
FIRST_HEADING = "Time to First Token (TTFT):"
NUMBERS = {
    "Request concurrency": a.CONCURRENCY,
    "Request count": a.REQUESTS_COMPLETED,
    "Throughput": a.REQUESTS_PER_S,
    "Input Tokens/sec": a.INPUT_TOKENS_PER_S,
    "Output Tokens/sec": a.OUTPUT_TOKENS_PER_S,
    "Avg Input Seq Length": a.INPUT_LENGTH,
    "Avg Output Seq Length": a.OUTPUT_LENGTH,
}
NUMBER = re.compile(rf"\s*({'|'.join(NUMBERS)}): +([\d.]{{1,20}})(?: (?:infer/sec|tokens))?\s*$")
LATENCY = re.compile(r"\s*(Avg|p50|p90|p95|p99) latency: (\d{1,20}) usec\b")
HEADINGS = {FIRST_HEADING: a.TIME_TO_FIRST_TOKEN, "Inter-Token Latency (ITL):": a.INTER_TOKEN_LATENCY}
TIME = re.compile(r"\s*(Avg|P50|P90|P95|P99): +([\d.]{1,20}) ms\s*$")
STATISTICS = {"avg": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}

REPORT = re.compile(r"(?:Concurrency|Request Rate),Inferences/Second,")
COLUMNS: Names = {
    "Concurrency": (a.CONCURRENCY, 1),
    "Request Rate": (a.OFFERED_REQUESTS_PER_S, 1),
    "Inferences/Second": (a.REQUESTS_PER_S, 1),
    "Avg latency": (a.REQUEST_LATENCY["mean"], 1e-6),
    "p50 latency": (a.REQUEST_LATENCY["median"], 1e-6),
    "p90 latency": (a.REQUEST_LATENCY["p90"], 1e-6),
    "p95 latency": (a.REQUEST_LATENCY["p95"], 1e-6),
    "p99 latency": (a.REQUEST_LATENCY["p99"], 1e-6),
}


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a summary for each concurrency, at the line that names it."""
    first: Line | None = None
    values: dict[Metric, float] = {}
    times: dict[str, Metric] = {}
    for line in lines:
        if FIRST in line.text:
            yield from summary(first, values)
            first, values = line, {}
        times = HEADINGS.get(line.text.strip(), times)
        values |= row_values(line.text, times)
    yield from summary(first, values)


def row_values(text: str, times: dict[str, Metric]) -> dict[Metric, float]:
    """Return the number of a line under the last heading (`times`); 0 was not measured."""
    if found := NUMBER.match(text):
        metric, unit = NUMBERS[found[1]], 1.0
    elif found := LATENCY.match(text):
        metric, unit = a.REQUEST_LATENCY[STATISTICS[found[1].lower()]], 1e-6
    elif times and (found := TIME.match(text)):
        metric, unit = times[STATISTICS[found[1].lower()]], 1e-3
    else:
        return {}
    value = printed_number(found[2])
    return {metric: value * unit} if value else {}


def summary(first: Line | None, values: dict[Metric, float]) -> Iterator[Record]:
    """Return the summary of one concurrency; none if nothing was measured."""
    if first is not None and values.keys() - {a.CONCURRENCY}:
        yield Record(Kind.summary, first.number, values, {}, first.rank, first.host)


def parse_report(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a summary for each row of the CSV file."""
    columns: list[str] = []
    for line in lines:
        if is_report(line.text):
            columns = line.text.split(",")
        elif columns:
            yield from summary(line, numbers(zip(columns, line.text.split(","), strict=False), COLUMNS))


def is_report(header: str) -> bool:
    """Return True if a line is the header of the CSV file."""
    return REPORT.match(header) is not None


FORMAT = LineFormat(
    "perf_analyzer",
    "https://github.com/triton-inference-server/perf_analyzer/blob/r25.01/src/inference_profiler.cc",
    parse,
    markers=("Input Tokens/sec:", "Output Tokens/sec:", "Avg Input Seq Length:", "Avg Output Seq Length:"),
    section_start=(FIRST, FIRST_HEADING),
    section_end=("Inferences/Second vs. Client", "=" * 60),
)
REPORT_FORMAT = LineFormat(
    "perf_analyzer (CSV)",
    "https://github.com/triton-inference-server/perf_analyzer/blob/r25.01/src/report_writer.cc",
    parse_report,
    is_header=is_report,
)
