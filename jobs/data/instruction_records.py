"""Records: instruction data, in JSON, Parquet or docstrings, as pairs of prompt and response.

    rows        the records of a file as plain data
    fields      the values of a row by the names of jobs.prompt_template.FIELDS
    record      prompt and response, by a prompt template

This module does not know token ids. A record that cannot be used is refused by its number; no record is skipped
silently.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from jobs.data.directory import PARQUET
from jobs.data.docstrings import docstring_rows
from jobs.data.sources import BYTE_ORDER_MARK, EXPECTED, bounded_lines, decoded, reading
from jobs.errors import DataError
from jobs.files import opened, parse_json, read_bytes
from jobs.prompt_template import Template
from jobs.schema import Data, Source

JSON_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number",
              float: "a number", type(None): "null"}  # fmt: skip
TITLE_CHARACTERS = 40
LARGEST_JSON_BYTES = 2 << 30
"""A JSON document takes ten times its size in memory, where its records cannot be read one by one; lines can."""


@dataclass(frozen=True)
class Record:
    """One instruction sample as text."""

    where: str
    """File, number from 1, and id or first words, as errors name the record."""
    prompt: str
    response: str


@dataclass(frozen=True)
class Fields:
    """The values of a record; a value of the wrong type raises DataError."""

    where: str
    values: dict[str, Any]

    def text(self, key: str) -> str:
        """Return the string of a required key."""
        if key not in self.values:
            raise DataError(f'{self.where} has no "{key}"; it has {", ".join(self.values) or "no keys"}.')
        return as_text(self.values[key], f'{self.where}: "{key}"')

    def optional_text(self, key: str) -> str:
        """Return the string of a key; empty where it is absent or null."""
        return "" if self.values.get(key) is None else self.text(key)


class Row(NamedTuple):
    """A record as it was read."""

    where: str
    """File and number from 1."""
    name: str | None
    """Its key in an object of records by id."""
    values: Any


@dataclass(frozen=True)
class Rows:
    """The first records of the files of a source."""

    first: list[Row]
    count: int
    """Records in all files; of docstrings, those that were read."""


def read_rows(
    source: Source, files: list[Path], max_samples: int | None, max_line_mb: float = Data.max_line_mb
) -> Rows:
    """Return the first `max_samples` records of these files, or all; only these are kept in memory.

    Raise DataError with file and record for content that is not UTF-8, JSON, Parquet or Python, or has another
    structure.
    """
    if source is Source.docstrings:
        each = (
            Row(f"{path}: docstring {number}", None, row)
            for path in files
            for number, row in enumerate(docstring_rows(path), 1)
        )
        first = list(islice(each, max_samples))
        return Rows(first, len(first))
    first, count = [], 0
    for path in files:
        left = None if max_samples is None else max_samples - len(first)
        if path.suffix == PARQUET:
            rows, in_file = parquet_rows(path, left)
        else:
            rows, in_file = text_rows(path, source, left, max_line_mb)
        numbered = enumerate(rows, 1)
        first += [Row(f"{path}: record {number}", name, values) for number, (name, values) in numbered]
        count += in_file
    if not count:
        raise DataError(f"{files[0]} has no records. data.source={source.name} reads {EXPECTED[source]}.")
    return Rows(first, count)


def records_from(rows: list[Row], source: Source, template: Template) -> list[Record]:
    """Return prompt and response of each row; raise DataError for a row without a field that they need."""
    return [record_from(row, source, template) for row in rows]


def record_from(row: Row, source: Source, template: Template) -> Record:
    """Return prompt and response of a row."""
    label, values = READERS[source](fields_of(row.values, row.where), row.name)
    try:
        prompt, response = template.filled(values)
    except KeyError as error:
        raise DataError(
            f"{row.where} ({label}) has no {error.args[0]}, which the prompt template uses; it has "
            f"{', '.join(values)}. Set another data.prompt, or leave such records out of the file."
        ) from error
    return Record(f"{row.where} ({label})", prompt, response)


def text_rows(
    path: Path, source: Source, most: int | None, max_line_mb: float
) -> tuple[list[tuple[str | None, Any]], int]:
    """Return the first `most` records of a file of JSON or JSON lines, and the number of all.

    Raise DataError for a JSON document above LARGEST_JSON_BYTES, and for a line beyond data.max_line_mb.
    """
    with reading(path), opened(path) as file:
        if path.suffix == ".jsonl" or begins_with_a_row(file, max_line_mb):
            file.seek(0)
            return json_lines(file, path, most, max_line_mb)
        size_bytes = file.seek(0, os.SEEK_END)
        if size_bytes > LARGEST_JSON_BYTES:
            raise DataError(
                f"{path} is a JSON document of {size_bytes / 1e9:.1f} GB, and one of more than "
                f"{LARGEST_JSON_BYTES / 1e9:.1f} GB is not read into memory. Write one record per line into a .jsonl "
                "file, and set data.path to it; data.max_samples then limits the records in memory."
            )
        # A byte-order mark, as programs of Windows write it, does not belong to the text.
        text = decoded(read_bytes(path, LARGEST_JSON_BYTES), path).removeprefix(BYTE_ORDER_MARK)
    rows = json_rows(text, path, source)
    return rows[:most], len(rows)


def parquet_rows(path: Path, most: int | None) -> tuple[list[tuple[str | None, Any]], int]:
    """Return the first `most` records of a Parquet file, and the number of all; raise DataError without pyarrow."""
    try:
        from pyarrow import ArrowException  # noqa: PLC0415 (optional)
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise DataError(
            f"{path} is read by pyarrow, which is not installed. Run `pip install pyarrow`, or convert it to JSON."
        ) from error
    try:
        with reading(path), opened(path) as content, ParquetFile(content) as file:
            values = (row for batch in file.iter_batches() for row in batch.to_pylist())
            return [(None, row) for row in islice(values, most)], file.metadata.num_rows
    except ArrowException as error:
        raise DataError(f"{path} is not Parquet that pyarrow can read: {error}.") from error


def begins_with_a_row(file: BinaryIO, max_line_mb: float) -> bool:
    """Return whether the first line is an object by itself and others follow, whatever the file's name."""
    lines = iter(lambda: file.readline(round(max_line_mb * 1e6) + 1), b"")
    first, following = (next((line for line in lines if line.strip()), b"") for _ in range(2))
    if not following:
        return False
    try:
        return isinstance(parse_json(first.decode().removeprefix(BYTE_ORDER_MARK)), dict)
    except ValueError:
        return False


def json_lines(
    file: BinaryIO, path: Path, most: int | None, max_line_mb: float
) -> tuple[list[tuple[str | None, Any]], int]:
    """Return the first JSON values, one per line without blank lines, and the number of all, which are all parsed."""
    rows: list[tuple[str | None, Any]] = []
    count = offset = 0
    for number, line in enumerate(bounded_lines(file, path, max_line_mb), 1):
        text = decoded(line, path, offset).removesuffix("\n")
        text = text if offset else text.removeprefix(BYTE_ORDER_MARK)
        offset += len(line)
        if text.strip():
            value = json_value(text, path, number)
            count += 1
            if most is None or count <= most:
                rows.append((None, value))
    return rows, count


def json_value(text: str, path: Path, line: int) -> Any:
    """Return the value of a JSON text that begins at this line of the file."""
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        place = f"line {line + error.lineno - 1}, column {error.colno}"
        raise DataError(f"{path} is not JSON at {place}: {error.msg}.") from error
    except ValueError as error:  # a number of thousands of digits, thousands of brackets
        raise DataError(f"{path} is not JSON that Python can parse, from line {line}: {error}.") from error


def json_rows(text: str, path: Path, source: Source) -> list[tuple[str | None, Any]]:
    """Return the records of a JSON document, with their ids where it is an object of records by id."""
    document = json_value(text, path, 1)
    if isinstance(document, list):
        return [(None, row) for row in document]
    if isinstance(document, dict) and source is Source.pubmedqa:
        return list(document.items())
    found = JSON_NAMES[type(document)]
    keys = f" with keys {', '.join(list(document)[:5])}" if isinstance(document, dict) and document else ""
    raise DataError(f"{path} contains {found}{keys}. data.source={source.name} reads {EXPECTED[source]}.")


def alpaca_fields(fields: Fields, _name: str | None) -> tuple[str, dict[str, str]]:
    """Return label and fields of a record of Alpaca."""
    instruction, context, response = fields.text("instruction"), fields.optional_text("input"), fields.text("output")
    values = {"instruction": instruction, "context": context, "response": response}
    return title(instruction), values | {"input": context, "output": response}


def dolly_fields(fields: Fields, _name: str | None) -> tuple[str, dict[str, str]]:
    """Return label and fields of a record of Dolly: https://github.com/databrickslabs/dolly (data)."""
    values = {"instruction": fields.text("instruction"), "context": fields.optional_text("context")}
    values |= {"response": fields.text("response")}
    category = fields.optional_text("category")
    return title(values["instruction"]), values | ({"category": category} if category else {})


def pubmedqa_fields(fields: Fields, name: str | None) -> tuple[str, dict[str, str]]:
    """Return label and fields of a record of PubMedQA; the response is the long answer and the decision.

    The keys are those of https://pubmedqa.github.io (QUESTION, CONTEXTS, LONG_ANSWER, final_decision), those of
    qiaojin/PubMedQA on the hub (question, context, long_answer, final_decision), or those of the dataset.json of Dell
    and Metrum AI's fine-tuning with RoCE (question, context, answer).
    """
    original = "QUESTION" in fields.values
    question = fields.text("QUESTION" if original else "question")
    name = name or str(fields.values.get("pubid") or fields.values.get("id") or "")
    context = context_of(fields, "CONTEXTS" if original else "context")
    long_answer = fields.optional_text("LONG_ANSWER" if original else "long_answer") or fields.optional_text("answer")
    decision = fields.optional_text("final_decision")
    if not (long_answer or decision):
        raise DataError(
            f"{fields.where} has neither a long answer nor a final_decision; it has {', '.join(fields.values)}."
        )
    response = "\n\n".join(part for part in (long_answer, decision and f"Decision: {decision}") if part)
    values = {"instruction": question, "context": context, "response": response, "question": question}
    answers = {"long_answer": long_answer, "final_decision": decision}
    return f"id {name}" if name else title(question), values | {key: text for key, text in answers.items() if text}


def context_of(fields: Fields, key: str) -> str:
    """Return the abstract: from a string, a list of paragraphs, or the hub's object that contains such a list."""
    value = fields.values.get(key)
    if isinstance(value, dict):
        return context_of(Fields(f"{fields.where}: {key}", value), "contexts")
    if isinstance(value, list):
        parts = enumerate(value, 1)
        return "\n".join(as_text(part, f'{fields.where}: paragraph {i} of "{key}"') for i, part in parts)
    return fields.text(key)


READERS: dict[Source, Callable[[Fields, str | None], tuple[str, dict[str, str]]]] = {
    Source.alpaca: alpaca_fields,
    Source.docstrings: alpaca_fields,
    Source.dolly: dolly_fields,
    Source.pubmedqa: pubmedqa_fields,
}


def fields_of(row: Any, where: str) -> Fields:
    """Return the record as an object; raise DataError for any other type."""
    if not isinstance(row, dict):
        raise DataError(f"{where} is {kind_of(row)}; expected an object.")
    return Fields(where, row)


def as_text(value: Any, where: str) -> str:
    """Return the value as a string that a tokenizer accepts."""
    if not isinstance(value, str):
        raise DataError(f"{where} is {kind_of(value)}; expected a string.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} is not text: character {error.start} is half of a surrogate pair.") from error
    return value


def kind_of(value: Any) -> str:
    """Return the name of a value's type; Parquet has more types than JSON."""
    return JSON_NAMES.get(type(value), f"a {type(value).__name__}")


def title(text: str) -> str:
    """Return the first words of a text in quotes, on one line."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= TITLE_CHARACTERS else f'"{line[:TITLE_CHARACTERS].rstrip()}..."'
