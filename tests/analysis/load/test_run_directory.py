"""Records on disk: written records are read back, and an incomplete line loses only itself."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.metrics import REGISTRY
from jobs.rundir import RunDir, append_event, append_record, read_records
from jobs.secrets import names_secret, redact
from tests.support.paths import ROOT

# Hypothesis also draws strings that the code contains, and records have no secrets: the value of a key TOKEN is masked.
TEXT = st.text().filter(lambda text: redact(text) == text and not names_secret(text, "a value"))
RECORDS = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False,
                          allow_infinity=False), max_size=4)  # fmt: skip


@given(st.lists(RECORDS, max_size=5))
def test_records_are_read_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("records") / "r.jsonl"
    for record in records:
        append_record(path, record)
    assert list(read_records(path)) == records


@given(st.lists(RECORDS, min_size=1, max_size=5), st.data())
def test_a_file_cut_anywhere_gives_the_records_before_the_cut_and_takes_new_ones(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, object]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("records") / "r.jsonl"
    for record in records:
        append_record(path, record)
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    append_record(path, {"after": 1})
    read = list(read_records(path))
    assert read[-1] == {"after": 1}
    # A cut just before a newline leaves a whole record.
    assert read[:-1] in (records[:whole], records[: whole + 1])


def test_not_a_number_never_reaches_a_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_record(tmp_path / "r.jsonl", {"loss": float("nan")})


def test_an_event_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    append_event(RunDir(tmp_path), "started", step=None, ranks=2)
    (event,) = read_records(tmp_path / "status.jsonl")
    assert event.keys() == {"time", "event", "ranks"}


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    assert list(read_records(tmp_path / "none")) == []


def test_metric_names_end_with_their_unit() -> None:
    for metric in REGISTRY.values():
        if metric.unit in {"s", "B"}:
            assert metric.name.endswith({"s": "_s", "B": "_bytes"}[metric.unit]), metric.name
        assert metric.definition.endswith(".")


def test_no_module_but_the_registry_spells_a_metric_as_a_string() -> None:
    # `step`, `attempt`, `samples` and `tokens` are also plain words (of events, of batches, of text).
    names = REGISTRY.keys() - {"step", "attempt", "loss", "samples", "tokens", "learning_rate"}
    for file in [*(ROOT / "jobs").rglob("*.py"), *(ROOT / "analysis").rglob("*.py")]:
        # Keys of other tools' files are spelt as those tools spell them: GenAI-Perf has a `goodput` too.
        if file.name == "metrics.py" or "parsers" in file.parts:
            continue
        spelt = {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
        assert not names & {value for value in spelt if isinstance(value, str)}, file


def test_the_record_file_of_a_run_is_plain_json_lines(tmp_path: Path) -> None:
    append_record(tmp_path / "r.jsonl", {"a": "é\n", "b": 1.5})
    assert json.loads((tmp_path / "r.jsonl").read_text()) == {"a": "é\n", "b": 1.5}
