"""GenAI-Perf and its successor AIPerf: a table in a box, a CSV file, or a JSON document, with a row for each quantity.

AIPerf also writes a line of JSON for each request, with that request's values. Their "inter token latency" is one
value per request: the time per output token. A box in a terminal, or in the 80 columns assumed for the log of a job,
breaks long names: further rows contain the rest of the name.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Line, LineFormat, Record, Text
from analysis.untrusted import as_number, lookup, printed_number
from jobs.metrics import Metric

# File next to AIPerf's profile that lists its phases and, for each, the files with its results.
MANIFEST = "phase_manifest.json"
TITLES = ("GenAI-Perf | ", "AIPerf | ")
HEADER = "Metric,avg,"
STATISTICS = {"avg": "mean", "p50": "median"} | {each: each for each in ("min", "max", "p90", "p95", "p99")}
TIMES = {
    "time to first token": a.TIME_TO_FIRST_TOKEN,
    "inter token latency": a.TIME_PER_OUTPUT_TOKEN,
    "request latency": a.REQUEST_LATENCY,
}
MEANS = {
    "request throughput": a.REQUESTS_PER_S,
    "request goodput": a.GOOD_REQUESTS_PER_S,
    "goodput": a.GOOD_REQUESTS_PER_S,
    "input token throughput": a.INPUT_TOKENS_PER_S,
    "output token throughput": a.OUTPUT_TOKENS_PER_S,
    "total token throughput": a.SERVED_TOKENS_PER_S,
    "benchmark duration": a.DURATION,
    "request count": a.REQUESTS_COMPLETED,
    "error request count": a.REQUESTS_FAILED,
    "input sequence length": a.INPUT_LENGTH,
    "output sequence length": a.OUTPUT_LENGTH,
}
NAME = re.compile(r"([A-Za-z](?:[A-Za-z ]{0,60}[A-Za-z])?) {0,9}(?:\(([^)]*)\))?")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a summary for each table."""
    first: Line | None = None
    columns: list[str] = []
    values: dict[Metric, float] = {}
    for line, name, cells in rows(lines):
        if any(title in line.text for title in TITLES) or line.text.lstrip("\ufeff").startswith(HEADER):
            yield from summary(first, values)
            first, values = line, {}
        if name.lstrip("\ufeff") in {"Statistic", "Metric"}:
            columns = ["avg" if each == "Value" else each for each in cells]
        elif found := NAME.fullmatch(name):
            reported = {
                column: printed_number(cell.replace(",", "")) for column, cell in zip(columns, cells, strict=False)
            }
            values |= quantity(found[1].lower(), found[2], reported)
    yield from summary(first, values)


def rows(lines: Iterable[Line]) -> Iterator[tuple[Line, str, list[str]]]:
    """Return name and cells of each row; the rows of a broken name are joined."""
    row: tuple[Line, str, list[str]] | None = None
    for line in lines:
        name, *cells = cells_of(line.text)
        if row is not None and "│" in line.text and name and not any(cells):
            row = row[0], f"{row[1]} {name}", row[2]
            continue
        if row is not None:
            yield row
        row = line, name, cells
    if row is not None:
        yield row


def cells_of(text: str) -> list[str]:
    """Return the cells of a row of a box or of a CSV file."""
    if "│" in text or "┃" in text:
        return [each.strip() for each in re.split("[│┃]", text)[1:-1]] or [""]
    try:
        return next(csv.reader([text]), [""])
    except csv.Error:
        return [""]


def quantity(name: str, unit: str | None, reported: Mapping[str, float | None]) -> dict[Metric, float]:
    """Return the statistics of one quantity; 0 was not measured."""
    if name in TIMES and unit in {"ms", None}:
        metrics = {column: TIMES[name][statistic] for column, statistic in STATISTICS.items()}
        return {metrics[column]: value * 1e-3 for column, value in reported.items() if column in metrics and value}
    mean = reported.get("avg")
    return {MEANS[name]: mean} if name in MEANS and mean else {}


def summary(first: Line | None, values: dict[Metric, float]) -> Iterator[Record]:
    """Return the summary of a table; none for an empty one."""
    if first is not None and values:
        yield Record(Kind.summary, first.number, values, {}, first.rank, first.host)


def is_request(document: Any) -> bool:
    """Return True if a document is a line of a profile_export.jsonl."""
    return isinstance(lookup(document, "metrics.request_latency"), Mapping)


def parse_request(document: Any) -> Iterator[Record]:
    """Return one request, if it was measured and answered."""
    warming_up = lookup(document, "metadata.benchmark_phase") not in {None, "profiling"}
    values: dict[Metric, float] = {}
    for key, reported in document["metrics"].items():
        if isinstance(reported, Mapping):
            one = {"avg": as_number(reported.get("value"))}
            values |= quantity(str(key).replace("_", " "), str(reported.get("unit")), one)
    if values and not warming_up and not document.get("error"):
        yield Record(Kind.sample, 0, values, {Text.variant: "request"})


def recognises(document: Any) -> bool:
    """Return True if a document is a profile_export_genai_perf.json or profile_export_aiperf.json."""
    return isinstance(lookup(document, "request_throughput.avg"), int | float) and "request_latency" in document


def parse_document(document: Any) -> Iterator[Record]:
    """Return the single summary of a profile."""
    values: dict[Metric, float] = {}
    for key, reported in document.items():
        if isinstance(reported, Mapping):
            statistics = {str(each): as_number(value) for each, value in reported.items()}
            values |= quantity(str(key).replace("_", " "), str(reported.get("unit", "ms")), statistics)
    config = document.get("input_config")
    if concurrency := next(filter(None, map(as_number, concurrencies(config))), None):
        values[a.CONCURRENCY] = concurrency
    model = next((each for each in models(config) if isinstance(each, str)), None)
    if values:
        yield Record(Kind.summary, 0, values, {Text.model: model} if model else {})


def concurrencies(config: Any) -> Iterator[Any]:
    """Return candidates for the concurrency: of GenAI-Perf old and new, of AIPerf 0.5 and 0.13 (not its warm-up)."""
    yield lookup(config, "concurrency")
    yield lookup(config, "perf_analyzer.stimulus.concurrency")
    yield lookup(config, "loadgen.concurrency")
    yield from (each.get("concurrency") for each in mappings(config, "phases") if each.get("kind") == "profiling")


def models(config: Any) -> Iterator[Any]:
    """Return candidates for the name of the model, likewise."""
    yield lookup(config, "formatted_model_name")
    for key in ("model_names", "endpoint.model_names"):
        names = lookup(config, key)
        yield from names if isinstance(names, list) else ()
    yield from (each.get("name") for each in mappings(config, "models.items"))


def parts(manifest: Any) -> list[str]:
    """Return the files in a manifest that are no result of their own: a warm-up, and the only profiled phase."""
    phases = list(mappings(manifest, "phases"))
    profiled = [each for each in phases if each.get("phase_kind") == "profiling"]
    apart = [each for each in phases if each.get("phase_kind") == "warmup"] + (profiled if len(profiled) == 1 else [])
    return [str(phase[key]) for phase in apart for key in ("metrics_json", "metrics_csv") if key in phase]


def mappings(config: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """Return the mappings in a list."""
    listed = lookup(config, key)
    return (each for each in listed if isinstance(each, Mapping)) if isinstance(listed, list) else iter(())


UPSTREAM = "https://github.com/triton-inference-server/perf_analyzer/tree/r25.01/genai-perf/genai_perf/export_data"
FORMAT = LineFormat(
    "GenAI-Perf and AIPerf",
    UPSTREAM,
    parse,
    section_start=TITLES,
    section_end=("└",),
    is_header=lambda header: header.startswith(HEADER),
)
DOCUMENT = DocumentFormat("GenAI-Perf and AIPerf (JSON)", UPSTREAM, recognises, parse_document)
REQUESTS = DocumentFormat(
    "AIPerf requests (JSON lines)",
    "https://github.com/ai-dynamo/aiperf/blob/f86c6c0/src/aiperf/common/models/record_models.py",
    is_request,
    parse_request,
    in_lines='"request_latency"',
)
