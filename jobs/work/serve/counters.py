"""Counters and gauges of a server, in Prometheus' text format.

https://prometheus.io/docs/instrumenting/exposition_formats/. The names are vLLM's without its prefix `vllm:`, also
those of its engine before version 1; SGLang has the same counters of tokens behind `sglang:`, and other gauges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from jobs import metrics as m
from jobs.metrics import Metric

LINE = re.compile(r"(?:\w+:)?(?P<name>\w+)(?:\{(?P<labels>.*)\})?[ \t]+(?P<value>[\d.eE+-]+)(?:[ \t]+\d+)?")
COUNTERS = {
    "prompt_tokens_total": m.SERVER_INPUT_TOKENS,
    "generation_tokens_total": m.SERVER_OUTPUT_TOKENS,
    "request_success_total": m.SERVER_REQUESTS,
    "num_preemptions_total": m.SERVER_PREEMPTIONS,
}
GAUGES = {
    "num_requests_running": m.REQUESTS_RUNNING,
    "num_running_reqs": m.REQUESTS_RUNNING,
    "num_requests_waiting": m.REQUESTS_WAITING,
    "num_queue_reqs": m.REQUESTS_WAITING,
    "kv_cache_usage_perc": m.KV_CACHE_USE,
    "gpu_cache_usage_perc": m.KV_CACHE_USE,
    "token_usage": m.KV_CACHE_USE,
}
TRUNCATED = re.compile(r'finished_reason="length"')


def counters(text: str) -> dict[Metric, float]:
    """Return the counters that have a metric, each summed over its labels."""
    found: dict[Metric, float] = {}
    for metric, labels, value in values(text, COUNTERS):
        found[metric] = found.get(metric, 0.0) + value
        if metric is m.SERVER_REQUESTS:
            cut = value if TRUNCATED.search(labels) else 0.0
            found[m.REQUESTS_TRUNCATED] = found.get(m.REQUESTS_TRUNCATED, 0.0) + cut
    return found


def gauges(text: str) -> dict[Metric, float]:
    """Return the gauges that have a metric: requests summed over the labels, of the KV caches the fullest."""
    found: dict[Metric, float] = {}
    for metric, _, value in values(text, GAUGES):
        before = found.get(metric, 0.0)
        found[metric] = max(before, value) if metric is m.KV_CACHE_USE else before + value
    return found


def values(text: str, names: Mapping[str, Metric]) -> Iterator[tuple[Metric, str, float]]:
    """Yield metric, labels and value of each line with one of the names."""
    for line in text.splitlines():
        match = LINE.fullmatch(line.strip())
        if match is None or match["name"] not in names:
            continue
        with suppress(ValueError):
            value = float(match["value"])
            if math.isfinite(value):
                yield names[match["name"]], match["labels"] or "", value


def growth(before: Mapping[Metric, float], after: Mapping[Metric, float]) -> dict[Metric, float]:
    """Return the increase of each counter; one that appears later began at 0."""
    return {metric: value - before.get(metric, 0.0) for metric, value in after.items()}
