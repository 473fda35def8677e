"""Records: instruction data in its published shapes, and refusals that name the record."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litgpt.prompts import Alpaca

from jobs.data.instruction_records import Record, read_rows, records_from
from jobs.data.megatron_binary import COUNTS, HEADER, VERSION, read_index
from jobs.data.sources import STDLIB, stdlib_files
from jobs.errors import DataError
from jobs.prompt_template import DEFAULTS, named
from jobs.schema import Source
from tests.support.tiny_data import ALPACA, write_json

QUESTION = "Do kettles sing before they boil?"
PUBMEDQA_PROMPT = (
    "Answer the question from the abstract, then decide: yes, no or maybe.\n\n### Question:\n"
    f"{QUESTION}\n\n### Abstract:\nTwelve kettles were heard.\nEleven sang.\n\n### Answer:\n"
)


@contextmanager
def peak_of_memory() -> Iterator[Callable[[], int]]:
    """Measure the memory of Python's objects within; the result returns its peak in bytes."""
    found = [0]
    tracemalloc.start()
    try:
        yield lambda: found[0]
    finally:
        found[0] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def read_records(source: Source, files: list[Path], max_samples: int | None, prompt: str | None = None) -> list[Record]:
    rows = read_rows(source, files, max_samples).first
    return records_from(rows, source, named()[prompt or DEFAULTS[source]])


def read(path: Path, value: Any, source: Source = Source.alpaca, max_samples: int | None = None) -> list[Record]:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in value))
    else:
        write_json(path, value)
    return read_records(source, [path], max_samples)


def refusal(path: Path, content: str | bytes, source: Source = Source.alpaca) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as refused:
        read_records(source, [path], None)
    return str(refused.value)


@given(instruction=st.text(), context=st.one_of(st.none(), st.text()), output=st.text())
def test_the_alpaca_prompt_is_that_of_litgpt(
    instruction: str, context: str | None, output: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    row = {"instruction": instruction, "input": context, "output": output}
    record = read(tmp_path_factory.getbasetemp() / "alpaca.json", [row])[0]
    assert record.prompt == Alpaca().apply(prompt=instruction, input=context)
    assert record.response == output


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_records_are_read_from_a_list_or_from_lines_with_or_without_a_byte_order_mark(
    tmp_path: Path, name: str
) -> None:
    file, responses = tmp_path / name, [row["output"] for row in ALPACA]
    assert [record.response for record in read(file, ALPACA)] == responses
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert [record.response for record in read_records(Source.alpaca, [file], None)] == responses


def test_only_the_first_samples_are_read(tmp_path: Path) -> None:
    assert len(read(tmp_path / "a.json", [*ALPACA, "not a record"], max_samples=len(ALPACA))) == len(ALPACA)


def test_docstrings_are_questions_in_alpacas_prompt_with_signatures_as_input(tmp_path: Path) -> None:
    (tmp_path / "queues.py").write_text(
        '''"""Where jobs wait.

    Not for long.
"""
try:
    class Queue(list):
        async def take(self, n: int = 1, *, wait=True) -> "Job":
            """Take n jobs.

            Waits for them.
            """
            def inner():
                """Useless to others."""
        def undocumented(self): pass
except ImportError:
    class Queue: "None here."
'''
    )
    records = read_records(Source.docstrings, [tmp_path / "queues.py"], None)
    asked = [("What is queues?", None), ("What does queues.Queue.take do?", "take(self, n: int=1, *, wait=True)"),
             ("What is queues.Queue?", None)]  # fmt: skip
    assert [record.prompt for record in records] == [Alpaca().apply(prompt=each[0], input=each[1]) for each in asked]
    assert [record.response for record in records] == [
        "Where jobs wait.\n\nNot for long.", "Take n jobs.\n\nWaits for them.", "None here.",
    ]  # fmt: skip
    assert records[1].where == f'{tmp_path}/queues.py: docstring 2 ("What does queues.Queue.take do?")'


def test_the_standard_library_has_thousands_of_docstrings_of_varied_length() -> None:
    files = stdlib_files(STDLIB)
    records = read_records(Source.docstrings, files, None)
    assert len(records) > 2000
    sizes = sorted(len(record.response) for record in records)
    assert sizes[len(sizes) // 10] * 10 < sizes[-len(sizes) // 10]
    assert read_records(Source.docstrings, files, 100) == records[:100]
    asked = [record.prompt for record in read_records(Source.docstrings, [STDLIB / "json/__init__.py"], 2)]
    assert [prompt.split("\n")[3] for prompt in asked] == ["What is json?", "What does json.dump do?"]


def test_a_file_that_is_not_python_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text("import sys\nprint 'two'\n")
    with pytest.raises(DataError) as refused:
        read_records(Source.docstrings, [path], None)
    assert str(refused.value).startswith(f"{path} cannot be parsed at line 2: ")
    assert str(refused.value).endswith("Set data=stdlib, which reads it as text.")


def test_pubmedqa_is_read_as_published(tmp_path: Path) -> None:
    row = {
        "QUESTION": QUESTION,
        "CONTEXTS": ["Twelve kettles were heard.", "Eleven sang."],
        "LONG_ANSWER": "Most do.",
        "final_decision": "yes",
        "YEAR": "2011",
    }
    (record,) = read(tmp_path / "pqal.json", {"21645374": row}, Source.pubmedqa)
    where = f"{tmp_path}/pqal.json: record 1 (id 21645374)"
    assert record == Record(where, PUBMEDQA_PROMPT, "Most do.\n\nDecision: yes")


@pytest.mark.parametrize(
    "context",
    [
        {"contexts": ["Twelve kettles were heard.", "Eleven sang."], "labels": ["METHODS", "RESULTS"]},
        ["Twelve kettles were heard.", "Eleven sang."],
        "Twelve kettles were heard.\nEleven sang.",
    ],
    ids=["as on the hub", "list", "string"],
)
@pytest.mark.parametrize(
    ("answers", "response"),
    [
        ({"long_answer": "Most do.", "final_decision": "yes"}, "Most do.\n\nDecision: yes"),
        ({"long_answer": "Most do."}, "Most do."),
        ({"long_answer": None, "final_decision": "maybe"}, "Decision: maybe"),
        ({"answer": "Most do."}, "Most do."),
    ],
    ids=["both", "long answer", "decision", "answer of Dell and Metrum AI's dataset.json"],
)
def test_pubmedqa_rows_are_read_with_what_answers_they_have(
    tmp_path: Path, context: Any, answers: dict[str, Any], response: str
) -> None:
    rows = [{"pubid": 7, "question": QUESTION, "context": context, **answers}]
    (record,) = read(tmp_path / "rows.jsonl", rows, Source.pubmedqa)
    assert record == Record(f"{tmp_path}/rows.jsonl: record 1 (id 7)", PUBMEDQA_PROMPT, response)


DOLLY = [
    {"instruction": "Who sang?", "context": "Eleven sang.", "response": "Eleven.", "category": "closed_qa"},
    {"instruction": "Name a kettle.", "context": "", "response": "Enamel.", "category": "open_qa"},
]
DOLLY_INTRODUCTION = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
)


def test_dolly_is_read_as_published_with_the_prompt_of_its_training(tmp_path: Path) -> None:
    with_context, without = read(tmp_path / "dolly.jsonl", DOLLY, Source.dolly)
    assert with_context.prompt == (
        f"{DOLLY_INTRODUCTION}### Instruction:\nWho sang?\n\nInput:\nEleven sang.\n\n### Response:\n"
    )
    assert without.prompt == f"{DOLLY_INTRODUCTION}### Instruction:\nName a kettle.\n\n### Response:\n"
    assert [with_context.response, without.response] == ["Eleven.\n\n### End", "Enamel.\n\n### End"]
    assert without.where == f'{tmp_path}/dolly.jsonl: record 2 ("Name a kettle.")'


def test_a_template_of_one_format_reads_another_ones_instruction_context_and_response(tmp_path: Path) -> None:
    rows = read_rows(Source.dolly, [write_json(tmp_path / "dolly.json", DOLLY)], None).first
    with_context, without = records_from(rows, Source.dolly, named()["question_answer"])
    assert with_context.prompt == "Eleven sang.\n\nQuestion: Who sang?\nAnswer:\n"
    assert without.prompt == "Question: Name a kettle.\nAnswer:\n"
    assert with_context.response == "Eleven."


PUBMEDQA = [
    {
        "pubid": number,
        "question": f"{QUESTION} {number}",
        "context": {"contexts": ["Twelve kettles were heard.", "Eleven sang."], "labels": ["METHODS", "RESULTS"]},
        "long_answer": "Most do.",
        "final_decision": "yes",
    }
    for number in range(5)
]


def test_the_hubs_parquet_files_give_the_records_that_json_gives(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    files = [tmp_path / f"train-0000{number}-of-00002.parquet" for number in range(2)]
    for file, rows in zip(files, (PUBMEDQA[:3], PUBMEDQA[3:]), strict=True):
        pq.write_table(pa.Table.from_pylist(rows), file)
    expected = read(tmp_path / "lines.txt", PUBMEDQA, Source.pubmedqa)
    found = read_records(Source.pubmedqa, files, None)
    assert [(each.prompt, each.response) for each in found] == [(each.prompt, each.response) for each in expected]
    assert found[3].where == f"{files[1]}: record 1 (id 3)"
    some = read_rows(Source.pubmedqa, files, 4)
    assert ([row.values["pubid"] for row in some.first], some.count) == ([0, 1, 2, 3], 5)
    files[0].write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=rf"{files[0]} is not Parquet that pyarrow can read: "):
        read_records(Source.pubmedqa, files, None)


def test_a_record_without_a_field_of_the_template_is_refused_by_its_id(tmp_path: Path) -> None:
    rows = [PUBMEDQA[0], {**PUBMEDQA[1], "final_decision": None}]
    path = write_json(tmp_path / "unlabeled.json", rows)
    with pytest.raises(DataError) as refused:
        read_records(Source.pubmedqa, [path], None, "pubmedqa_decision")
    assert str(refused.value) == (
        f"{path}: record 2 (id 1) has no final_decision, which the prompt template uses; it has instruction, context, "
        "response, question, long_answer. Set another data.prompt, or leave such records out of the file."
    )


def test_json_lines_are_read_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "dataset.json"
    path.write_text('{"instruction": "x", "output": "1"}\n{"instruction": "y", "output": "2"}\n')
    assert [record.response for record in read_records(Source.alpaca, [path], None)] == ["1", "2"]
    assert refusal(path, '{"instruction": "x"}\nmore\n').startswith(f"{path} is not JSON at line 2, column 1: ")


READS = (
    "data.source=alpaca reads a list, or lines, of objects with instruction, output and optionally input, in JSON or "
    "Parquet, or a directory with such a train.json or such .parquet, .jsonl or .json files."
)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", '[\n {"instruction": "x", "output": }\n]', " is not JSON at line 2, column 33: Expecting value."),
        ("a.jsonl", '{"instruction": "x", "output": "y"}\n\n{"instruction"}\n',
         " is not JSON at line 3, column 15: Expecting ':' delimiter."),
        ("a.json", "[" * 100_000, " is not JSON that Python can parse, from line 1: "),
        ("a.json", "[" + "9" * 5000 + "]", " is not JSON that Python can parse, from line 1: "),
        ("a.json", b'[{"instruction": "caf\xe9", "output": "y"}]', " is not UTF-8: byte 21 is 0xe9"),
        ("a.json", "[]", " has no records. data.source=alpaca reads "),
        ("a.jsonl", "\n\n", " has no records. data.source=alpaca reads "),
        ("a.json", '{"train": [], "test": []}', f" contains an object with keys train, test. {READS}"),
        ("a.json", '"text"', f" contains a string. {READS}"),
        ("a.json", "null", f" contains null. {READS}"),
        ("a.json", "3.5", f" contains a number. {READS}"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_file_that_holds_no_records_is_refused_with_place_and_reason(
    tmp_path: Path, name: str, content: str | bytes, says: str
) -> None:
    assert refusal(tmp_path / name, content).startswith(f"{tmp_path}/{name}{says}")


def test_an_object_without_records_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "a.json", "{}", Source.pubmedqa).startswith(f"{tmp_path}/a.json has no records. ")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("text", " is a string; expected an object."),
        ({"instruction": "x", "response": "y"}, ' has no "output"; it has instruction, response.'),
        ({}, ' has no "instruction"; it has no keys.'),
        ({"instruction": "x", "output": 5}, ': "output" is a number; expected a string.'),
        ({"instruction": "x", "output": None}, ': "output" is null; expected a string.'),
        ({"instruction": "x", "input": ["y"], "output": ""}, ': "input" is a list; expected a string.'),
        (
            {"instruction": "x", "output": "ab\ud83d"},
            ': "output" is not text: character 2 is half of a surrogate pair.',
        ),
    ],
)
def test_a_record_that_is_not_alpacas_is_refused_by_its_number(tmp_path: Path, row: Any, says: str) -> None:
    assert refusal(tmp_path / "a.json", json.dumps([ALPACA[0], row])) == f"{tmp_path}/a.json: record 2{says}"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([], " is a list; expected an object."),
        ({"context": "x"}, ' has no "question"; it has context.'),
        ({"question": "x"}, ' has no "context"; it has question.'),
        ({"QUESTION": "x", "CONTEXTS": ["y", 1]}, ': paragraph 2 of "CONTEXTS" is a number; expected a string.'),
        ({"question": "x", "context": {"text": []}}, ': context has no "contexts"; it has text.'),
        ({"question": "x", "context": True}, ': "context" is true or false; expected a string.'),
        (
            {"question": "x", "context": "y", "reply": "z"},
            " has neither a long answer nor a final_decision; it has question, context, reply.",
        ),
    ],
)
def test_a_record_that_is_not_pubmedqas_is_refused_by_its_number(tmp_path: Path, row: Any, says: str) -> None:
    assert refusal(tmp_path / "q.json", json.dumps([row]), Source.pubmedqa) == f"{tmp_path}/q.json: record 1{says}"


def test_a_record_without_id_is_named_by_its_first_words(tmp_path: Path) -> None:
    rows = [{"instruction": "Tell\nof " + "the queue " * 9, "output": ""}]
    assert read(tmp_path / "a.json", rows)[0].where == (
        f'{tmp_path}/a.json: record 1 ("Tell of the queue the queue the queue th...")'
    )


# --- files that are larger than the memory ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_line_beyond_the_limit_is_refused_with_its_key(name: str, tmp_path: Path) -> None:
    row = json.dumps(ALPACA[0])
    (tmp_path / name).write_text(f'{row}\n{row[:-1]}, "more": "{"x" * 3000}"}}\n')
    with pytest.raises(DataError, match=r"line 2 is longer than 0\.002 MB \(data\.max_line_mb\)"):
        read_rows(Source.alpaca, [tmp_path / name], None, 0.002)


def test_a_json_document_larger_than_its_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.write(b'[{"instruction":\n')
        file.truncate(3 << 30)
    with peak_of_memory() as peak_bytes, pytest.raises(DataError) as refused:
        read_records(Source.alpaca, [tmp_path / "a.json"], None)
    assert "a.json is a JSON document of 3.2 GB, and one of more than 2.1 GB is not read" in str(refused.value)
    assert "data.max_samples" in str(refused.value)
    assert peak_bytes() < 300e6


def test_only_the_chosen_records_of_lines_are_in_memory_and_all_are_counted(tmp_path: Path) -> None:
    row = json.dumps({"instruction": "x" * 10_000, "output": "y"})
    (tmp_path / "a.jsonl").write_text(f"{row}\n" * 5000)
    with peak_of_memory() as peak_bytes:
        rows = read_rows(Source.alpaca, [tmp_path / "a.jsonl"], 3)
    assert (len(rows.first), rows.count) == (3, 5000)
    assert peak_bytes() < 5e6, "the file has 50 MB"


def test_an_index_of_another_size_than_its_header_states_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0" * 8)
    with (tmp_path / "a.idx").open("wb") as file:
        file.write(HEADER + COUNTS.pack(VERSION, 4, 1, 2))
        file.truncate(1 << 30)
    with peak_of_memory() as peak_bytes, pytest.raises(DataError, match="has 1073741824 bytes, and its 1 sequences"):
        read_index(tmp_path / "a.idx", tmp_path / "a.bin")
    assert peak_bytes() < 5e6
