"""Counters of a server, in Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats/).

The names are vLLM's without its prefix `vllm:`; SGLang has the same names of tokens behind `sglang:`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from jobs import metrics as m
from jobs.metrics import Metric

LINE = re.compile(r"(?:\w+:)?(?P<name>\w+)(?:\{(?P<labels>.*)\})?[ \t]+(?P<value>[\d.eE+-]+)(?:[ \t]+\d+)?")
NAMES = {
    "prompt_tokens_total": m.SERVER_INPUT_TOKENS,
    "generation_tokens_total": m.SERVER_OUTPUT_TOKENS,
    "request_success_total": m.SERVER_REQUESTS,
    "num_preemptions_total": m.SERVER_PREEMPTIONS,
}
TRUNCATED = re.compile(r'finished_reason="length"')


def counters(text: str) -> dict[Metric, float]:
    """Return the counters that have a metric, each summed over its labels."""
    found: dict[Metric, float] = {}
    for line in text.splitlines():
        match = LINE.fullmatch(line.strip())
        if match is None or match["name"] not in NAMES:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        metric = NAMES[match["name"]]
        found[metric] = found.get(metric, 0.0) + value
        if metric is m.SERVER_REQUESTS:
            cut = value if TRUNCATED.search(match["labels"] or "") else 0.0
            found[m.REQUESTS_TRUNCATED] = found.get(m.REQUESTS_TRUNCATED, 0.0) + cut
    return found


def growth(before: Mapping[Metric, float], after: Mapping[Metric, float]) -> dict[Metric, float]:
    """Return the increase of each counter; one that appears later began at 0."""
    return {metric: value - before.get(metric, 0.0) for metric, value in after.items()}
