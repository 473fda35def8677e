"""Times of evaluations and of blocks of training in MLPerf logs, and the throughput that follows from blocks.

Not every program logs its throughput; most log when a block (or an epoch) began and ended, and the samples until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from analysis.logs.file import LogFile
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Record, Text
from jobs import metrics as m
from jobs.metrics import Metric

# By preference: an epoch may contain its evaluation and a block does not.
UNITS = ("block", "epoch")
COUNTS = {a.SAMPLES_DONE: a.SAMPLES_PER_S, a.TOKENS_DONE: m.TOKENS_PER_S}
DERIVED = "derived from the samples and times of blocks, without evaluations and the first block"


class Interval(NamedTuple):
    """A block or an evaluation, from its start to its stop."""

    start: Record
    stop: Record

    @property
    def begin_s(self) -> float:
        """The time of its start."""
        return self.start.values[a.UNIX_TIME]

    @property
    def end_s(self) -> float:
        """The time of its stop."""
        return self.stop.values[a.UNIX_TIME]


def intervals(file: LogFile, what: str) -> list[Interval]:
    """Return the intervals of one kind in order; overlapping reports of ranks count once."""
    found: list[Interval] = []
    began: Record | None = None
    for record in file.of(Kind.event):
        if a.UNIX_TIME not in record.values:
            continue
        event = record.texts.get(Text.event)
        if event == f"{what}_start" and began is None:
            began = record
        elif event == f"{what}_stop" and began is not None:
            found.append(Interval(began, record))
            began = None
    return found


def evaluating(file: LogFile) -> dict[Metric, float]:
    """Return the total time of the evaluations in an MLPerf log."""
    spent_s = [each.end_s - each.begin_s for each in intervals(file, "eval")]
    return {a.EVALUATION_TOTAL_TIME: sum(spent_s)} if spent_s else {}


def throughput_of_blocks(file: LogFile) -> dict[Metric, float]:
    """Return the throughput over all blocks but the first, without evaluations; empty if it does not follow."""
    evaluations = intervals(file, "eval")
    for unit in UNITS:
        blocks = intervals(file, unit)
        for count, rate in COUNTS.items():
            counted = list(zip(blocks, samples_of(blocks, count), strict=False))[1:]
            time_s = sum(block.end_s - block.begin_s - overlap_s(block, evaluations) for block, _ in counted)
            if time_s > 0 and (samples := sum(done for _, done in counted)) > 0:
                return {rate: samples / time_s}
    return {}


def samples_of(blocks: Sequence[Interval], count: Metric) -> list[float]:
    """Return the samples of each block; empty if one is not known."""
    ends = [block.stop.values.get(count) for block in blocks]
    starts = [block.start.values.get(count) for block in blocks]
    if any(end is None or start is None for end, start in zip(ends, starts, strict=True)):
        return []
    done = [float(end or 0) - float(start or 0) for end, start in zip(ends, starts, strict=True)]
    if all(samples == 0 for samples in done) and starts:
        # Both name the samples at the start of the block: the next block's are those at its end.
        return [float(later or 0) - float(earlier or 0) for earlier, later in pairwise(starts)]
    return done if all(samples > 0 for samples in done) else []


def overlap_s(block: Interval, evaluations: Iterable[Interval]) -> float:
    """Return the time of evaluations within a block."""
    return sum(max(0.0, min(block.end_s, each.end_s) - max(block.begin_s, each.begin_s)) for each in evaluations)
