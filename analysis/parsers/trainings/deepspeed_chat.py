"""DeepSpeed-Chat's steps 1 and 2: `Model Parameters: 1.316 B, Latency: 1.41s, ..., Samples/sec: 5.67` of rank 0.

All of these values refer to one micro-batch of one rank. TFLOPs are ignored: they are divided by the number of ranks.
Evaluations print a heading and, when they are done, `ppl: 6.25` or the accuracy of the reward.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record
from analysis.untrusted import printed_number
from jobs import metrics as m
from jobs.metrics import Metric

THROUGHPUT = re.compile(
    r"\bModel Parameters: (?:(\d{1,9}\.\d+) B|NA), Latency: (\d{1,9}\.\d+)s, TFLOPs: [\d.]+, "
    r"Samples/sec: (\d{1,9}\.\d+), Time/seq [\d.]+s, Batch Size: (\d{1,9}), "
)
# Printed with two decimals: a time of 0.00 was too short.
METRICS = ((a.PARAMETERS, 1e9), (a.MICRO_BATCH_TIME, 1), (a.SAMPLES_PER_S_PER_RANK, 1), (a.MICRO_BATCH_SIZE, 1))


HEADING = "***** Evaluating "
PERPLEXITY = re.compile(r"^ppl: (\d{1,9}\.\d+)(?:, loss: \S+)?\s*$")
ACCURACY = re.compile(r"^chosen_last_scores .* acc \(higher is better\) : (\d\.\d+)\s*$")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a record for each micro-batch and each evaluation."""
    evaluates = False
    for line in lines:
        if HEADING in line.text:
            evaluates = True
        elif evaluates and (values := evaluation(line.text)):
            evaluates = False
            yield Record(Kind.evaluation, line.number, values, {}, line.rank, line.host)
        if found := THROUGHPUT.search(line.text):
            printed = (printed_number(text or "") for text in found.groups())
            values = {metric: value * unit for (metric, unit), value in zip(METRICS, printed, strict=True) if value}
            yield Record(Kind.sample, line.number, values, {}, line.rank, line.host)


def evaluation(text: str) -> dict[Metric, float]:
    """Return the result of an evaluation; empty if the line has none."""
    for pattern, metric in ((PERPLEXITY, m.EVALUATION_PERPLEXITY), (ACCURACY, a.EVALUATION_SCORE)):
        if (found := pattern.match(text)) and (value := printed_number(found[1])) is not None:
            return {metric: value}
    return {}


FORMAT = LineFormat(
    "DeepSpeed-Chat",
    "https://github.com/microsoft/DeepSpeedExamples/blob/d3aabe3b5a9a8444ddd514ba92558a4d7614c183/applications/"
    "DeepSpeed-Chat/dschat/utils/perf.py",
    parse,
    markers=("Model Parameters: ", HEADING, "ppl: ", "chosen_last_scores "),
)
