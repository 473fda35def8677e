"""Numbers of programs that a run started (job=program): wall times of steps, and what `program.metrics` declares.

A declared number is read from what the program printed or wrote. Values of our own files are untrusted, and so is
everything that a program prints: a value that is not a finite number is absent.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
import statistics
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.metrics.energy import Energy
from analysis.parsers.base import POSITIVE_UNITS
from analysis.parsers.search import NOT_TEXT, blocks
from analysis.untrusted import as_number, moment, printed_number
from jobs import metrics as m
from jobs.files import DOCUMENT_BYTES, opened, parse_json, read_bytes, read_lines, read_tail, reason
from jobs.metrics import Better, Metric
from jobs.rundir import BATCH_STARTED, RunDir
from jobs.schema import Run
from jobs.settings.program import Program, ProgramMetric, Take
from jobs.work.program import placeholders as names
from jobs.work.program.placeholders import program_of
from jobs.work.program.places import first_rank
from jobs.work.program.substitution import text_of

STARTED = BATCH_STARTED.encode()
# For the nearest line of an expression without a match.
TAIL_BYTES = 200_000
LONGEST_SHOWN = 160
THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
COLOURS = re.compile(NOT_TEXT.pattern.encode())
SYNTAX = re.compile(r"\\.|[\[\](){}^$.*+?|]")
TAKE: Mapping[Take, Callable[[Sequence[float]], float]] = {
    Take.first: lambda values: values[0],
    Take.last: lambda values: values[-1],
    Take.least: min,
    Take.most: max,
    Take.median: statistics.median,
    Take.mean: statistics.fmean,
    Take.total: math.fsum,
}


class MissingNumberError(Exception):
    """A declared number is not in the output of the program."""


def step_times(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the wall time of each step that ended well, from the latest attempt that ran it."""
    ended = (event for event in events if event["event"] == "step_ended")
    times = {str(event.get("program_step")): as_number(event.get("time_s")) for event in ended}
    return {step: time_s for step, time_s in times.items() if time_s is not None}


def times_of_steps(events: Sequence[Mapping[str, Any]]) -> dict[Metric, float]:
    """Return the wall time of all steps, that of each one of several, and the longest start of a server."""
    times_s = step_times(events)
    found = {m.PROGRAM_TIME: math.fsum(times_s.values())}
    if len(times_s) > 1:
        for step, time_s in times_s.items():
            found[m.declared(step_time_name(step), "s", f"Wall time of step {step}.", Better.low)] = time_s
    starts = (as_number(event.get("time_s")) for event in events if event["event"] == "server_ready")
    if (longest := max(filter(None, starts), default=None)) is not None:
        found[m.SERVER_STARTUP_TIME] = longest
    return found


def computing(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the begin and the end of each step that ended well, in seconds since the epoch."""
    ended = [(moment(event), as_number(event.get("time_s"))) for event in events if event["event"] == "step_ended"]
    return [(end - time_s, end) for end, time_s in ended if end is not None and time_s is not None]


def mean_power(energy: Energy | None) -> dict[Metric, float]:
    """Return the mean power of all devices while the steps ran; empty if readings of a device or a time are missing."""
    if energy is None or not energy.complete or not energy.interval_s:
        return {}
    return {m.MEAN_POWER: energy.energy_j * len(energy.devices) / energy.covered_s}


def step_time_name(step: str) -> str:
    """Return the name of the metric of a step's wall time."""
    return f"step_{step.replace('-', '_')}_time_s"


def metric_of(name: str, declared: ProgramMetric) -> Metric:
    """Return the metric of a declaration: of this name and unit in this program, else its own."""
    return m.declared(name, declared.unit, declared.definition, declared.better)


def program_values(run: Run, directory: RunDir, power: Mapping[Metric, float]) -> dict[Metric, float]:
    """Return the declared numbers of a run. Raise MissingNumberError for the first one that it needs and lacks.

    They may be divided by one another, and by the measured power.
    """
    declared_metrics = program_of(run).metrics
    read: dict[str, float] = {}
    for name, declared in declared_metrics.items():
        try:
            read[name] = value_of(run, directory, name, declared)
        except MissingNumberError:
            if not declared.optional:
                raise
    found: dict[Metric, float] = {}
    divisors = {metric.name: value for metric, value in power.items()} | read
    for name, value in read.items():
        declared = declared_metrics[name]
        divisor = 1.0 if declared.per is None else divisors.get(declared.per, 0.0)
        if divisor:
            found[metric_of(name, declared)] = value / divisor
        elif not declared.optional:
            raise MissingNumberError(f"program.metrics.{name}: it is divided by {declared.per}, which is 0 or missing")
    return found


def value_of(run: Run, directory: RunDir, name: str, declared: ProgramMetric) -> float:
    """Return one declared number. Raise MissingNumberError if it is not there."""
    file = file_of(run, directory, declared.file, declared.step)
    key = f"program.metrics.{name}"
    try:
        values = array("d", (value for value, condition in printed_in(file, declared) if keeps(declared, condition)))
    except (OSError, ValueError) as error:
        raise MissingNumberError(f"{key}: {file} cannot be read: {reason(error)}") from error
    found = values[declared.skip :]
    if not found:
        raise MissingNumberError(f"{key}: {why_missing(file, declared, len(values))}")
    return TAKE[declared.take](found) * declared.factor


def file_of(run: Run, directory: RunDir, file: str | None, step: str | None) -> Path:
    """Return a file of a program, or the output of a step, by default of the last one."""
    program = program_of(run)
    if file is None:
        return step_log(run, directory, step or list(program.steps)[-1])
    place = names.working_directory(run, directory)
    return place / text_of(file, names.known_values(run) | {"run_directory": directory.path, "directory": place})


def step_log(run: Run, directory: RunDir, step: str) -> Path:
    """Return what the first process of a step printed."""
    return directory.program_log(step, first_rank(run, step))


def printed_in(file: Path, declared: ProgramMetric) -> Iterator[tuple[float, float | None]]:
    """Yield the numbers of a declaration in a file, in their order, each with the number of its condition."""
    other = declared.where.of if declared.where is not None else None
    pairs: Iterable[tuple[Any, Any]]
    if declared.pattern is not None:
        pairs = zip(*(matches(file, declared.pattern, group) for group in (1, other or 1)), strict=True)
    elif declared.json is not None:
        pairs = ((at(document, declared.json), at(document, other or "")) for document in documents(file))
    else:
        rows = csv.DictReader(io.StringIO(read_bytes(file, DOCUMENT_BYTES).decode(errors="replace")))
        pairs = ((row.get(declared.csv or ""), row.get(other or "")) for row in rows)
    for printed, condition in pairs:
        value = number_of(printed)
        if value is not None and (value > 0 or declared.unit not in POSITIVE_UNITS):
            yield value, number_of(condition)


def keeps(declared: ProgramMetric, condition: float | None) -> bool:
    """Return whether a value counts, by the number of its condition."""
    return declared.where is None or (condition is not None and declared.where.has(condition))


def number_of(printed: Any) -> float | None:
    """Return a number that was printed, or is one."""
    return printed_value(printed) if isinstance(printed, str) else as_number(printed)


def printed_value(text: str) -> float | None:
    """Return a printed number, with or without commas between thousands; None for another text."""
    text = text.strip()
    return printed_number(text.replace(",", "") if THOUSANDS.fullmatch(text) else text)


def matches(file: Path, pattern: str, group: int | str = 1) -> list[str]:
    """Return what the group of a regular expression matched in each line since the latest start of the program.

    A group that is named `value` goes before the first one.
    """
    compiled = re.compile(pattern.encode(), re.MULTILINE)
    chosen = "value" if group == 1 and "value" in compiled.groupindex else group
    found: list[str] = []
    for given in blocks(file):
        block = COLOURS.sub(b"", given) if b"\x1b" in given else given
        # An earlier start of the run has printed what stands before.
        begin = block.rfind(STARTED)
        if begin >= 0:
            found = []
        found += [(match[chosen] or b"").decode(errors="replace") for match in compiled.finditer(block, max(begin, 0))]
    return found


def documents(file: Path) -> Iterator[Any]:
    """Yield the JSON document of a file, or of each of its lines."""
    if file.suffix == ".jsonl":
        for line in read_lines(file):
            if line.strip():
                yield parse_json(line)
        return
    yield parse_json(read_bytes(file, DOCUMENT_BYTES))


def at(document: Any, path: str) -> Any:
    """Return the value at a path of names and numbers in a document; None if there is none."""
    for name in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(name)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document


def why_missing(file: Path, declared: ProgramMetric, count: int) -> str:
    """Return why a file has no number for a declaration, with the nearest line for a regular expression."""
    if count:
        return f"{file} has {count} values, and the first {declared.skip} are left out (skip)"
    if declared.where is not None and (missed := nearest_miss(file, declared)):
        return missed
    if declared.json is not None:
        return f"{file} has no number at {declared.json}{nearest_part(file, declared.json)}"
    if declared.csv is not None:
        with opened(file) as table:
            heading = table.readline(TAIL_BYTES).decode(errors="replace").strip()
        return f"{file} has no number in a column {declared.csv}; its first line is {heading[:LONGEST_SHOWN]!r}"
    if texts := matches(file, declared.pattern or ""):
        return f"{file} has no number where {declared.pattern} matches, but {texts[-1][:LONGEST_SHOWN]!r}"
    near = nearest_line(file, declared.pattern or "")
    return f"no line of {file} matches {declared.pattern}; " + (f"the nearest is: {near}" if near else "it is empty")


def nearest_part(file: Path, path: str) -> str:
    """Return what the last document of a file has in place of the first missing part of a path, as a clause."""
    document, names = deque(documents(file), maxlen=1).pop(), path.split(".")
    for count in range(len(names), -1, -1):
        found = at(document, ".".join(names[:count])) if count else document
        if isinstance(found, Mapping):
            parts = ", ".join(map(str, found))
        elif isinstance(found, list):
            parts = f"0 to {len(found) - 1}" if found else "nothing"
        else:
            continue
        place = ".".join(names[:count]) or "the document"
        return f"; {place} has {parts[:LONGEST_SHOWN]}"
    return ""


def nearest_miss(file: Path, declared: ProgramMetric) -> str | None:
    """Return how near a file comes to the condition of a declaration; None if it has no number of it."""
    assert declared.where is not None
    where = declared.where
    known = [condition for _, condition in printed_in(file, declared) if condition is not None]
    if not known:
        return None

    def distance(value: float) -> float:
        return min(abs(limit - value) for limit in (where.at_least, where.at_most) if limit is not None)

    nearest = min(known, key=distance)
    return f"{where.of} is never {where.in_words} in {file}: the nearest of {len(known)} is {nearest:.6g}"


def nearest_line(file: Path, pattern: str) -> str | None:
    """Return the line at the end of a file that is most similar to the text of a regular expression."""
    words = SYNTAX.sub("", pattern)
    lines = [line.strip()[:LONGEST_SHOWN] for line in read_tail(file, TAIL_BYTES).splitlines()]
    matcher = difflib.SequenceMatcher(b=words, autojunk=False)

    def similarity(line: str) -> float:
        matcher.set_seq1(line)
        return matcher.quick_ratio()

    return max(filter(None, lines), key=similarity, default=None)


def missed_gate(run: Run, directory: RunDir, values: Mapping[Metric, float]) -> str | None:
    """Return a sentence for the first requirement that a run misses; None if it keeps all."""
    program = program_of(run)
    by_name = {metric.name: value for metric, value in values.items()}
    for name, gate in program.gates.items():
        if gate.absent is not None:
            if printed := forbidden_line(run, directory, gate.absent):
                return f"it misses the gate {name}: {printed}"
            continue
        assert gate.metric is not None
        value = by_name.get(gate.metric)
        if value is None:
            return f"it misses the gate {name}: it has no {gate.metric}"
        if not gate.has(value):
            unit = program.metrics[gate.metric].unit.removeprefix("1") and f" {program.metrics[gate.metric].unit}"
            return f"it misses the gate {name}: {gate.metric} is {value:.6g}{unit}, and {gate.in_words} is required"
    return None


def forbidden_line(run: Run, directory: RunDir, pattern: str) -> str | None:
    """Return a clause for a line that no step may print; None if none has."""
    for step in program_of(run).steps:
        log = step_log(run, directory, step)
        if log.exists() and (found := matches(log, f"^.*(?:{pattern}).*$", group=0)):
            return f"{log.name} has the line {found[0].strip()[:LONGEST_SHOWN]!r}"
    return None


def rate_of(program: Program, values: Mapping[Metric, float]) -> tuple[Metric, float]:
    """Return the speed of a run: its merit, or 1 / merit if less is better; without a merit 1 / wall time."""
    merit = m.PROGRAM_TIME
    if program.merit is not None:
        merit = metric_of(program.merit, program.metrics[program.merit])
    value = values.get(merit, math.nan)
    if merit.better is Better.high:
        return merit, value
    name = "runs_per_s" if merit.unit == "s" else f"inverse_{merit.name}"
    inverse = m.declared(name, f"1/{merit.unit}", f"1 / {merit.name}: {merit.definition}", Better.high)
    return inverse, 1 / value if value > 0 else math.nan
