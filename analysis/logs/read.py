"""Many log files at once: one whose content an earlier report has read is not parsed again.

A file is read to its end all the same, for its key is a digest of its content. What is kept gives back what parsing
would give, number by number, or is not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from analysis.cache import Shelf, cache_directory, digest
from analysis.failures.signatures import Weight
from analysis.failures.verdict import Verdict
from analysis.logs.file import LogFile, is_binary, read_log_file
from analysis.parsers import metrics as a
from analysis.parsers.base import Kind, LocalRank, RankLabel, Record, Text
from analysis.progress import with_progress
from jobs import metrics as m
from jobs.failures import FailureCause
from jobs.metrics import Metric

# A larger value takes as long to read as its log.
MOST_KEPT_BYTES = 32 << 20
NAMED = [*vars(m).values(), *vars(a).values()]
METRICS: Mapping[str, Metric] = {
    each.name: each
    for found in NAMED
    for each in (found.values() if isinstance(found, dict) else [found])
    if isinstance(each, Metric)
}


def read_logs(paths: Sequence[Path], *, use_cache: bool) -> dict[Path, LogFile]:
    """What each of these files says, in their order. Raises OSError where one cannot be read."""
    folder = cache_directory() if use_cache else None
    if folder is None:
        return {path: read_log_file(path) for path in with_progress(paths, len(paths), "Reading logs")}
    shelves = {directory: Shelf.of(directory, folder) for directory in {path.parent for path in paths}}
    found = {path: read_one(path, shelves[path.parent]) for path in with_progress(paths, len(paths), "Reading logs")}
    for shelf in shelves.values():
        shelf.save()
    return found


def read_one(path: Path, shelf: Shelf) -> LogFile:
    """What a file says, by its shelf where that has it, else by parsing it, which the shelf then keeps."""
    if is_binary(path):
        # Perhaps of many gigabytes, of which the first page says enough.
        return LogFile(path)
    before = path.stat()
    with path.open("rb") as file:
        key = digest(b"log", hashlib.file_digest(file, "sha256").digest())
    if (value := shelf.get(path.name, key)) is not None:
        return decoded(path, value)
    log = read_log_file(path)
    after = path.stat()
    # Of a log that is still written to, what was parsed is not what was digested.
    if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
        with suppress(TypeError):
            # Text that is no Unicode, and integers of more than 64 bits.
            value = encoded(log)
            text = orjson.dumps(value)
            if len(text) <= MOST_KEPT_BYTES and same(decoded(path, orjson.loads(text)), log):
                shelf.put(path.name, key, value)
    return log


def same(one: LogFile, other: LogFile) -> bool:
    """Whether two results are equal."""
    verdicts = [log.verdict and vars(log.verdict) for log in (one, other)]
    return verdicts[0] == verdicts[1] and all(
        getattr(one, part) == getattr(other, part) for part in ("formats", "settings", "texts", "records")
    )


def encoded(log: LogFile) -> dict[str, Any]:
    """A log without its path, as what JSON can hold."""
    return {
        "formats": log.formats,
        "settings": [[metric.name, value] for metric, value in log.settings.items()],
        "texts": [[text.name, value] for text, value in log.texts.items()],
        "records": [
            [form, kind.name, [row(record, names) for record in records], list(names)]
            for (form, kind), records in log.records.items()
            for names in [dict[tuple[str, ...], int]()]
        ],
        "verdict": None if log.verdict is None else verdict_row(log.verdict),
    }


def row(record: Record, names: dict[tuple[str, ...], int]) -> list[Any]:
    """A record; the names of its metrics, which most records of a kind share, by their place in `names`."""
    told = tuple(metric.name for metric in record.values)
    texts = [[text.name, value] for text, value in record.texts.items()]
    place = names.setdefault(told, len(names))
    return [record.line, place, list(record.values.values()), texts, whose(record.rank), record.host]


def verdict_row(verdict: Verdict) -> list[Any]:
    """Why a run ended."""
    weight = verdict.weight and verdict.weight.name
    return [verdict.cause.name, verdict.line, verdict.proof, verdict.rank, verdict.host, weight, verdict.file]


def whose(rank: RankLabel) -> int | list[int] | None:
    """Return a rank as JSON keeps it: a local rank is its number in a list."""
    return [rank.number] if isinstance(rank, LocalRank) else rank


def whose_of(rank: int | list[int] | None) -> RankLabel:
    """The same as it was."""
    return LocalRank(*rank) if isinstance(rank, list) else rank


def decoded(path: Path, value: Mapping[str, Any]) -> LogFile:
    """The log that was encoded, of a file at this path."""
    records = {}
    for form, kind, rows, names in value["records"]:
        metrics = [[METRICS[name] for name in told] for told in names]
        records[form, Kind[kind]] = [
            Record(
                Kind[kind],
                line,
                dict(zip(metrics[place], values, strict=True)),
                {Text[name]: text for name, text in texts},
                whose_of(rank),
                host,
            )
            for line, place, values, texts, rank, host in rows
        ]
    return LogFile(
        path,
        tuple(value["formats"]),
        {METRICS[name]: number for name, number in value["settings"]},
        {Text[name]: text for name, text in value["texts"]},
        records,
        None if value["verdict"] is None else verdict_of(value["verdict"]),
    )


def verdict_of(row: Sequence[Any]) -> Verdict:
    """The verdict of a row."""
    cause, line, proof, rank, host, weight, file = row
    return Verdict(FailureCause[cause], line, proof, rank, host, weight and Weight[weight], file)
