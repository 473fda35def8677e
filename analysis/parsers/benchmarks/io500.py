"""IO500: `[RESULT] ior-easy-write 2.5 GiB/s : time 301.2 seconds` for each phase, or a section for each in result.txt.

A run that breaks the rules is marked `[INVALID]`. Bandwidths are in GiB/s, even if an old version prints GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from analysis.parsers import log_metrics as a
from analysis.parsers.base import Kind, Line, LineFormat, Record, Text
from analysis.untrusted import as_number, printed_number
from jobs.metrics import Metric

GIB, KILO = float(1 << 30), 1e3
INVALID = "[INVALID]"
RESULT = re.compile(
    r"\s*\[RESULT(?:-invalid)?\s*\]\s+(\S+)\s+([\d.]+) (?:(Gi?B/s)|kIOPS) : time ([\d.]+) seconds", re.IGNORECASE
)
SCORE = re.compile(
    r"\s*\[SCOREX?(?:-invalid)?\s*\] Bandwidth ([\d.]+) Gi?B/s : IOPS ([\d.]+) kiops"
    r" : TOTAL ([\d.]+)(?: \[INVALID\])?\s*$"
)
SECTION = re.compile(r"\s*\[([\w-]+)\]\s*$")
PAIR = re.compile(r"\s*(score|t_delta|MD|BW|SCORE)\s+= ([\d.]+)(?:\s+\[INVALID\])?\s*$")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return a measurement for each phase, and the scores as a summary."""
    section: Line | None = None
    texts: dict[Text, str] = {}
    values: dict[Metric, float] = {}
    for line in lines:
        state = {Text.state: "invalid"} if INVALID in line.text or "-invalid" in line.text else {}
        if found := RESULT.match(line.text):
            name, value, is_bandwidth, time = found.groups()
            reported = measured(value, is_bandwidth=is_bandwidth is not None) | duration(time)
            yield Record(Kind.measurement, line.number, reported, {Text.benchmark: name} | state, line.rank, line.host)
        elif found := SCORE.match(line.text):
            reported = measured(found[1], is_bandwidth=True) | measured(found[2], is_bandwidth=False) | score(found[3])
            yield Record(Kind.summary, line.number, reported, state, line.rank, line.host)
        elif found := SECTION.match(line.text):
            yield from phase(section, values, texts)
            section, values, texts = line, {}, {Text.benchmark: found[1]}
        elif section is not None and (found := PAIR.match(line.text)):
            texts |= state
            values |= pair(texts[Text.benchmark], found[1], found[2])
    yield from phase(section, values, texts)


def pair(section: str, key: str, value: str) -> dict[Metric, float]:
    """Return the value in a line of result.txt."""
    if key == "t_delta":
        return duration(value)
    if key == "SCORE":
        return score(value)
    return measured(value, is_bandwidth=key == "BW" or section.startswith("ior-"))


def phase(section: Line | None, values: dict[Metric, float], texts: dict[Text, str]) -> Iterator[Record]:
    """Return the record of a section of result.txt; none for a section without results."""
    if section is not None and values.keys() - {a.DURATION}:
        kind = Kind.measurement
        if a.IO500_SCORE in values:
            kind, texts = (
                Kind.summary,
                {text: reported for text, reported in texts.items() if text is not Text.benchmark},
            )
        yield Record(kind, section.number, values, texts, section.rank, section.host)


def measured(text: str, *, is_bandwidth: bool) -> dict[Metric, float]:
    """Return a printed bandwidth or rate; 0 was not measured."""
    metric, unit = (a.IO_BANDWIDTH, GIB) if is_bandwidth else (a.IO_OPERATIONS_PER_S, KILO)
    value = as_number((printed_number(text) or 0) * unit)
    return {metric: value} if value else {}


def duration(text: str) -> dict[Metric, float]:
    """Return the duration of a phase."""
    value = printed_number(text)
    return {} if value is None else {a.DURATION: value}


def score(text: str) -> dict[Metric, float]:
    """Return the total score."""
    value = printed_number(text)
    return {a.IO500_SCORE: value} if value else {}


FORMAT = LineFormat(
    "IO500",
    "https://github.com/IO500/io500/blob/io500-isc21/src/main.c",
    parse,
    markers=("[RESULT", "[SCORE"),
    section_start=("config-hash     = ",),
    section_end=("; END ",),
)
