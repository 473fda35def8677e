"""IOR: settings as `key : value`, then a table with a row for each write and read of each repetition; or JSON.

The table's header names the columns: 3.4 added IOPS and latency. A time that was not measured is `-`. CSV output is the
table only, with a column for the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from analysis.parsers import log_metrics as a
from analysis.parsers.base import DocumentFormat, Kind, Line, LineFormat, Record, Text
from analysis.untrusted import as_list, as_number, lookup, printed_number
from jobs.metrics import Metric

TITLE = ": MPI Coordinated Test of Parallel I/O"
HEADERS = ("access    bw(MiB/s)", "access,bw(MiB/s)")
SIZES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
OPTION = re.compile(rf"\s*([a-z][a-z ]*?)\s*[:=] (\d{{1,20}}(?:\.\d+)?)(?: ({'|'.join(SIZES)}))?\s*$")
OPTIONS = {
    "nodes": a.NODES,
    "tasks": a.RANKS,
    "clients per node": a.RANKS_PER_NODE,
    "xfersize": a.TRANSFER_SIZE,
    "blocksize": a.BLOCK_SIZE,
}
# By the header of the table, and by the key in the document.
COLUMNS: dict[str, tuple[Metric, float]] = {
    "bw(MiB/s)": (a.IO_BANDWIDTH, SIZES["MiB"]),
    "bwMiB": (a.IO_BANDWIDTH, SIZES["MiB"]),
    "IOPS": (a.IO_OPERATIONS_PER_S, 1),
    "iops": (a.IO_OPERATIONS_PER_S, 1),
    "block(KiB)": (a.BLOCK_SIZE, SIZES["KiB"]),
    "blockKiB": (a.BLOCK_SIZE, SIZES["KiB"]),
    "xfer(KiB)": (a.TRANSFER_SIZE, SIZES["KiB"]),
    "xferKiB": (a.TRANSFER_SIZE, SIZES["KiB"]),
    "total(s)": (a.DURATION, 1),
    "totalTime": (a.DURATION, 1),
    "numTasks": (a.RANKS, 1),
}
ACCESSES = {"write", "read"}
BEST = re.compile(r"\s*Max (Write|Read): +([\d.]{1,20}) MiB/sec \(([\d.]+) MB/sec\)\s*$")


def parse(lines: Iterable[Line]) -> Iterator[Record]:
    """Return the setting, a measurement for each row, and the best of each access as a summary."""
    settings: dict[Metric, float] = {}
    software: dict[Text, str] = {}
    columns: list[str] = []
    for line in lines:
        if TITLE in line.text:
            settings, software, columns = {}, {Text.software: line.text.partition(TITLE)[0].strip()}, []
        elif any(header in line.text for header in HEADERS):
            if settings and not columns:
                yield Record(Kind.setting, line.number, settings, software, line.rank, line.host)
            columns = cells_of(line.text)
        elif found := BEST.match(line.text):
            if mib_per_s := printed_number(found[2]):
                values = {a.IO_BANDWIDTH: mib_per_s * SIZES["MiB"]}
                yield Record(
                    Kind.summary, line.number, values, {Text.benchmark: f"most, {found[1].lower()}"}, line.rank
                )
        elif columns:
            cells = cells_of(line.text)
            if values := row(columns, cells):
                texts = {Text.benchmark: cells[0]}
                yield Record(Kind.measurement, line.number, values, texts, line.rank, line.host)
        elif (found := OPTION.match(line.text)) and found[1] in OPTIONS:
            settings[OPTIONS[found[1]]] = float(found[2]) * SIZES.get(found[3], 1)


def cells_of(text: str) -> list[str]:
    """Return the cells between blanks or commas."""
    return text.replace(",", " ").split()


def row(columns: list[str], cells: list[str]) -> dict[Metric, float]:
    """Return the numbers of a write or a read; none if a line is torn or not a row."""
    if len(cells) != len(columns) or cells[0] not in ACCESSES:
        return {}
    return measured(dict(zip(columns, map(printed_number, cells), strict=True)))


def measured(reported: Mapping[str, float | None]) -> dict[Metric, float]:
    """Return the numbers of a row by metric; a time below 0 was not measured."""
    values = {}
    for column, value in reported.items():
        metric, unit = COLUMNS.get(column, (None, 1.0))
        number = as_number((value or 0) * unit)
        if metric is not None and number is not None and number > 0:
            values[metric] = number
    return values


def recognises(document: Any) -> bool:
    """Return True if a document is output of IOR with -O summaryFormat=JSON."""
    return isinstance(document, Mapping) and {"Version", "Command line", "tests"} <= document.keys()


def parse_document(document: Any) -> Iterator[Record]:
    """Return the setting of each test, and a measurement for each access of each repetition."""
    software = f"IOR-{document['Version']}"
    for test in as_list(document["tests"]):
        options = lookup(test, "Options")
        settings: dict[Metric, float] = {}
        for key, value in options.items() if isinstance(options, Mapping) else ():
            if (found := OPTION.match(f"{key} : {value}")) and found[1] in OPTIONS:
                settings[OPTIONS[found[1]]] = float(found[2]) * SIZES.get(found[3], 1)
        yield Record(Kind.setting, 0, settings, {Text.software: software})
        for result in as_list(lookup(test, "Results")):
            # Version 3 has a list for each repetition.
            for access in result if isinstance(result, list) else [result]:
                name = lookup(access, "access")
                if isinstance(name, str) and name in ACCESSES:
                    values = measured({key: as_number(value) for key, value in access.items()})
                    yield Record(Kind.measurement, 0, values, {Text.benchmark: name})


UPSTREAM = "https://github.com/hpc/ior/blob/4.0.0/src/ior-output.c"
FORMAT = LineFormat(
    "IOR",
    UPSTREAM,
    parse,
    markers=("Max Write: ", "Max Read: "),
    section_start=(TITLE, *HEADERS),
    section_end=("Finished            : ", "Run finished: "),
)
DOCUMENT = DocumentFormat("IOR (JSON)", UPSTREAM, recognises, parse_document)
