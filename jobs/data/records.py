"""Records: instruction data, in JSON or docstrings, as pairs of prompt and response.

This module does not know token ids. A record that cannot be used is refused by its number; no record is skipped
silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from jobs.data.docstrings import docstring_rows
from jobs.data.sources import EXPECTED, decoded, reading
from jobs.errors import DataError
from jobs.schema import Source

JSON_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number",
              float: "a number", type(None): "null"}  # fmt: skip
TITLE_CHARACTERS = 40


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


def read_records(source: Source, files: list[Path], max_samples: int | None) -> list[Record]:
    """Return the first `max_samples` records of these files, or all.

    Raise DataError with file and record for content that is not UTF-8, JSON or Python, or has another structure.
    """
    if source is Source.docstrings:
        return list(islice((record for path in files for record in docstring_records(path)), max_samples))
    (path,) = files
    with reading(path):
        text = decoded(path.read_bytes(), path)
    lines = path.suffix == ".jsonl" or begins_with_a_row(text)
    rows = json_lines(text, path) if lines else json_rows(text, path, source)
    if not rows:
        raise DataError(f"{path} has no records. data.source={source.name} reads {EXPECTED[source]}.")
    parse = PARSERS[source]
    return [parse(row, f"{path}: record {number}", name) for number, (name, row) in enumerate(rows[:max_samples], 1)]


def docstring_records(path: Path) -> Iterator[Record]:
    """Return the docstrings of a Python file, in Alpaca's prompt."""
    rows = enumerate(docstring_rows(path), 1)
    return (alpaca_record(row, f"{path}: docstring {number}", None) for number, row in rows)


def begins_with_a_row(text: str) -> bool:
    """Return whether the first line is an object by itself and others follow, whatever the file's name."""
    first, _, rest = text.lstrip().partition("\n")
    if not rest.strip():
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def json_lines(text: str, path: Path) -> list[tuple[str | None, Any]]:
    """Return one JSON value per line, without blank lines."""
    lines = enumerate(text.split("\n"), 1)
    return [(None, json_value(line, path, number)) for number, line in lines if line.strip()]


def json_value(text: str, path: Path, line: int) -> Any:
    """Return the value of a JSON text that begins at this line of the file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {line + error.lineno - 1}, column {error.colno}"
        raise DataError(f"{path} is not JSON at {place}: {error.msg}.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
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


def alpaca_record(row: Any, where: str, _name: str | None) -> Record:
    """Return a record with Stanford Alpaca's prompt, as in litgpt 0.5.12 (litgpt/prompts.py, class Alpaca)."""
    fields = fields_of(row, where)
    instruction, context = fields.text("instruction"), fields.optional_text("input")
    response = fields.text("output")
    if context:
        prompt = (
            "Below is an instruction that describes a task, paired with an input that provides further context. "
            "Write a response that appropriately completes the request.\n\n"
            f"### Instruction:\n{instruction}\n\n### Input:\n{context}\n\n### Response:\n"
        )
    else:
        prompt = (
            "Below is an instruction that describes a task. "
            "Write a response that appropriately completes the request.\n\n"
            f"### Instruction:\n{instruction}\n\n### Response:\n"
        )
    return Record(f"{where} ({title(instruction)})", prompt, response)


def pubmedqa_record(row: Any, where: str, name: str | None) -> Record:
    """Return a record with question and abstract as prompt, and the long answer and the decision as response.

    The keys are those of https://pubmedqa.github.io (QUESTION, CONTEXTS, LONG_ANSWER, final_decision), those of
    qiaojin/PubMedQA on the hub (question, context, long_answer, final_decision), or those of the dataset.json of Dell
    and Metrum AI's fine-tuning with RoCE (question, context, answer). The prompt is this project's own.
    """
    fields = fields_of(row, where)
    original = "QUESTION" in fields.values
    question = fields.text("QUESTION" if original else "question")
    name = name or str(fields.values.get("pubid") or fields.values.get("id") or "")
    context = context_of(fields, "CONTEXTS" if original else "context")
    long_answer = fields.optional_text("LONG_ANSWER" if original else "long_answer") or fields.optional_text("answer")
    decision = fields.optional_text("final_decision")
    if not (long_answer or decision):
        raise DataError(f"{where} has neither a long answer nor a final_decision; it has {', '.join(fields.values)}.")
    prompt = (
        "Answer the question from the abstract, then decide: yes, no or maybe.\n\n"
        f"### Question:\n{question}\n\n### Abstract:\n{context}\n\n### Answer:\n"
    )
    response = "\n\n".join(part for part in (long_answer, decision and f"Decision: {decision}") if part)
    return Record(f"{where} ({f'id {name}' if name else title(question)})", prompt, response)


def context_of(fields: Fields, key: str) -> str:
    """Return the abstract: from a string, a list of paragraphs, or the hub's object that contains such a list."""
    value = fields.values.get(key)
    if isinstance(value, dict):
        return context_of(Fields(f"{fields.where}: {key}", value), "contexts")
    if isinstance(value, list):
        parts = enumerate(value, 1)
        return "\n".join(as_text(part, f'{fields.where}: paragraph {i} of "{key}"') for i, part in parts)
    return fields.text(key)


PARSERS: dict[Source, Callable[[Any, str, str | None], Record]] = {
    Source.alpaca: alpaca_record,
    Source.pubmedqa: pubmedqa_record,
}


def fields_of(row: Any, where: str) -> Fields:
    """Return the record as an object; raise DataError for any other type."""
    if not isinstance(row, dict):
        raise DataError(f"{where} is {JSON_NAMES[type(row)]}; expected an object.")
    return Fields(where, row)


def as_text(value: Any, where: str) -> str:
    """Return the value as a string that a tokenizer accepts."""
    if not isinstance(value, str):
        raise DataError(f"{where} is {JSON_NAMES[type(value)]}; expected a string.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} is not text: character {error.start} is half of a surrogate pair.") from error
    return value


def title(text: str) -> str:
    """Return the first words of a text in quotes, on one line."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= TITLE_CHARACTERS else f'"{line[:TITLE_CHARACTERS].rstrip()}..."'
