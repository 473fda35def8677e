"""Benchmarks that are not training: their headlines and tables; collectives, storage, serving.

One section a format, one row per file and measurement; the columns are numbers in the units of the page.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from analysis.compare.core import clauses
from analysis.formatting import ABSENT, binary_size, decimal_size, plural, short, shown, title, unit, within_sentence
from analysis.logs.measurements import (
    COLLECTIVES,
    SERVING,
    SUBJECTS,
    Measurement,
    Series,
    names_below,
)
from analysis.parsers import log_metrics as a
from analysis.parsers.base import Text
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from jobs.metrics import Metric

MOST_SENTENCES = 4
MOST_TESTS = 6
LONGEST_NAME, LONGEST_LEAD = 60, 90
INVALID = {"invalid", "fail"}

# --- headlines -------------------------------------------------------------------------------------------------


def benchmark_headlines(digest: Digest) -> list[str]:
    """Return a sentence for each test of a program: of each subject the first MOST_SENTENCES and the number left."""
    names = names_below(digest.series)
    sentences = []
    for subject in SUBJECTS:
        sentence = SENTENCES.get(subject.name, tests_of_files)
        of_subject = list(sentence([each for each in digest.series if each.subject is subject], names))
        more = len(of_subject) - MOST_SENTENCES
        sentences += of_subject[:MOST_SENTENCES]
        sentences += [f"{subject.name}: {plural(more, 'further benchmark')} in the tables below."] if more > 0 else []
    return sentences


def collectives(found: Sequence[Series], names: Mapping[Path, str]) -> Iterator[str]:
    """Yield, of each collective of a file, its peak bandwidth and its time for the smallest message."""
    tests: dict[tuple[Path, str], list[Series]] = defaultdict(list)
    for each in found:
        tests[each.place, each.measurements[0].benchmark].append(each)
    for (place, benchmark), members in tests.items():
        best = max(members, key=lambda each: each.best[1])
        sizes = [size for each in members for m in each.measurements if (size := m.at(a.MESSAGE_SIZE)) is not None]
        rows = [m for each in members for m in each.measurements if m.at(a.MESSAGE_SIZE) == min(sizes, default=None)]
        times_s = [m.values[a.COLLECTIVE_TIME] for m in rows if a.COLLECTIVE_TIME in m.values]
        wrong = sum(m.values.get(a.WRONG_VALUES, 0) for each in members for m in each.measurements)
        at = best.best[0] if best.axis else max(sizes, default=None)
        sentence = f"{lead(best, benchmark, names[place])}{value(a.BUS_BANDWIDTH, best.best[1])} bus bandwidth"
        sentence += f" with {binary_size(at)} messages" if at is not None else ""
        sentence += f", the peak of {plural(len(set(sizes)), 'size')}" if len(set(sizes)) > 1 else ""
        if times_s and len(set(sizes)) > 1:
            sentence += f"; {value(a.COLLECTIVE_TIME, min(times_s))} with the smallest, {binary_size(min(sizes))}"
        yield sentence + (f". DOUBTFUL: {wrong:,.0f} wrong values in the results." if wrong else ".")


def serving(found: Sequence[Series], names: Mapping[Path, str]) -> Iterator[str]:
    """Yield, of each served model, its highest rate and the latencies there."""
    for each in found:
        at, rate = each.best
        row = each.points[at]
        load = axis_words(each.axis or row[0].axis, at if each.axis else None, row[0])
        latencies = [
            f"{within_sentence(metric)} {value(metric, middle)}"
            for metric in SERVING.latencies
            if (middle := each.median(metric, at)) is not None
        ]
        failed = sum(m.values.get(a.REQUESTS_FAILED, 0) for m in each.measurements)
        named = lead(each, row[0].texts.get(Text.model, row[0].benchmark), names[each.place])
        sentence = f"{named}{value(each.merit, rate)}{load}" + (f", {each.lengths}" if each.lengths else "")
        sentence += f", the most of {plural(len(each.points), 'load')}" if len(each.points) > 1 else ""
        sentence += f"; {', '.join(latencies)}" if latencies else ""
        yield sentence + (f". DOUBTFUL: {plural(int(failed), 'request')} failed." if failed else ".")


def tests_of_files(found: Sequence[Series], names: Mapping[Path, str]) -> Iterator[str]:
    """Yield, for each file, the best value of every test."""
    files: dict[tuple[Path, str], list[Series]] = defaultdict(list)
    for each in found:
        files[each.place, each.measurements[0].form].append(each)
    for (place, form), members in files.items():
        tests = [
            f"{'' if each.name == form else f'{short(each.name, LONGEST_NAME)} '}{value(each.merit, each.best[1])}"
            + (axis_words(each.axis, each.best[0], each.measurements[0]) if each.axis else "")
            for each in sorted(members, key=lambda each: each.subject.merits.index(each.merit))
        ]
        bad = sum(m.texts.get(Text.state, "").lower() in INVALID for each in members for m in each.measurements)
        doubt = f" DOUBTFUL: {plural(bad, 'result')} marked invalid by {form}." if bad else ""
        yield f"{lead(members[0], form, names[place])}{clauses(tests, MOST_TESTS)}.{doubt}"


SENTENCES = {COLLECTIVES.name: collectives, SERVING.name: serving}


def lead(series: Series, test: str, place: str) -> str:
    """Return the first words of a sentence: hardware, else subject; then program, test and file."""
    first = series.measurements[0]
    program = first.form.partition(" (")[0]  # the file's name shows that it is JSON
    words = [first.hardware or series.subject.name, program, test if test != first.form else ""]
    return f"{short(', '.join(filter(None, words)), LONGEST_LEAD)} ({short(place, LONGEST_NAME)}): "


def value(metric: Metric, number: float) -> str:
    """Return a value with its unit as text, a share or a score with its name."""
    if metric.unit == "B/s":
        return f"{decimal_size(number)}/s"
    # A rate's name is its unit; a share or a score needs its name.
    words = [unit(metric)] if metric.unit not in {"1", "1/s"} else [unit(metric), within_sentence(metric)]
    return " ".join(filter(None, (shown(metric, number), *words)))


def axis_words(axis: Metric | None, at: float | None, measurement: Measurement) -> str:
    """Return the size or load of a measurement: ` at concurrency 32`; empty if it is not stated."""
    at = measurement.at(axis) if axis and at is None else at
    if axis is None or at is None:
        return ""
    words = {
        a.CONCURRENCY: f"at concurrency {at:,.6g}",
        a.OFFERED_REQUESTS_PER_S: f"at {at:,.6g} offered requests/s",
        a.RANKS: f"on {plural(int(at), 'rank')}",
        a.TRANSFER_SIZE: f"with {binary_size(at)} transfers",
        a.MESSAGE_SIZE: f"with {binary_size(at)} messages",
        a.THREADS: f"with {plural(int(at), 'thread')}",
        a.PROBLEM_SIZE: f"with a system of {at:,.0f} rows",
    }
    return f" {words[axis]}"


# --- tables ----------------------------------------------------------------------------------------------------


def measurement_sections(digest: Digest) -> list[Section]:
    """Return a section for each format with measurements other than training steps."""
    forms: dict[str, list[Measurement]] = defaultdict(list)
    for each in digest.measurements:
        forms[each.form].append(each)
    return [section(form, rows) for form, rows in sorted(forms.items())]


def section(form: str, rows: Sequence[Measurement]) -> Section:
    """Return the table of one format; its columns are the metrics of any row."""
    metrics: dict[Metric, None] = {}
    for row in rows:
        metrics |= dict.fromkeys(row.values)
    above = os.path.commonpath([row.path.parent for row in rows])
    cells = [
        [
            os.path.relpath(row.path, above),
            *(shown(metric, row.values.get(metric)) for metric in metrics),
            ", ".join(filter(None, (row.texts.get(Text.benchmark), row.details))) or ABSENT,
        ]
        for row in rows
    ]
    note = f"As reported by {form}, one row per measurement; the table of metrics defines the columns. "
    note += "measurements.csv next to this page has every value in full precision and SI units."
    return Section(form, note, ("File", *map(title, metrics), "Details"), cells)
