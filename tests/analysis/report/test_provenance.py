"""Provenance: what logs of other programs state about their setup, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.load.discover import read, read_runs
from analysis.report.content import build
from analysis.report.page import page
from analysis.report.provenance import NOT_FOUND, facts, first_date
from tests.support.fake_runs import a_run, finished_run
from tests.support.megatron_logs import megatron, write

STEPS = [(step, 1000.0) for step in range(1, 12)]


def facts_of(path: Path) -> dict[str, list[str]]:
    return dict(facts(read_runs([path])))


def test_a_log_has_program_date_and_a_list_of_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "a.out", megatron(STEPS, prefix=" [2026-01-31 12:00:00]"))
    found = facts_of(tmp_path)
    assert found["Program"] == ["Megatron-LM"]
    assert found["First date in the log"] == ["2026-01-31"]
    assert found[NOT_FOUND] == ["GPU", "arithmetic type", "number of nodes", "program version"]


def test_what_a_facts_file_states_is_not_missing_and_counts_are_of_all_runs(tmp_path: Path) -> None:
    write(tmp_path / "a" / "a.out", megatron(STEPS))
    facts_file = "nodes: 1\nranks_per_node: 8\nprecision: bf16\nsoftware: Megatron-LM 0.12.0\n"
    write(tmp_path / "a" / "facts.yaml", f"gpu_name: NVIDIA H100 80GB HBM3\n{facts_file}")
    assert facts_of(tmp_path / "a")[NOT_FOUND] == ["date"]
    write(tmp_path / "b" / "b.out", megatron(STEPS, batch=32, prefix=" [2026-01-31 12:00:00]"))
    found = facts_of(tmp_path)
    assert found["Device"] == ["NVIDIA H100 80GB HBM3 (1 run)"]
    assert set(found[NOT_FOUND]) == {
        f"{name} (1 run)" for name in ("GPU", "arithmetic type", "date", "number of nodes", "program version")
    }


def test_runs_of_ours_have_no_list_of_logs(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("one"))
    assert NOT_FOUND not in facts_of(tmp_path)


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("[2026-01-31 12:00:00] step 1\n", "2026-01-31"),
        ("[2026/01/31 12:00:00] ppcls INFO\n", "2026-01-31"),
        ("0: 2026-01-31T12:00:00.123Z INFO\n", "2026-01-31"),
        ("[rank0]:[titan] 2026-01-31 12:00:00,123 - root\n", "2026-01-31"),
        (':::MLLOG {"namespace": "", "time_ms": 1769860800000, "key": "x"}\n', "2026-01-31"),
        ("torch 2026-01-31 nightly\n", None),
        ("version 20260131 12:00:00\n", None),
        ("Jan 31 12:00:00 node0 kernel\n", None),
        ("", None),
    ],
)
def test_a_date_has_a_year_and_a_time(tmp_path: Path, text: str, date: str | None) -> None:
    assert first_date(write(tmp_path / "a.log", text)) == date


def test_a_log_that_vanished_has_no_date(tmp_path: Path) -> None:
    assert first_date(tmp_path / "gone.log") is None


def test_the_note_of_a_sweep_is_the_first_fact_and_begins_the_report(tmp_path: Path) -> None:
    finished_run(tmp_path, a_run("r", sweep=tmp_path.name))
    (tmp_path / "note.txt").write_text("second driver, <b>warm</b>\n")
    assert facts(read_runs([tmp_path]))[0] == ("Note", ["second driver, <b>warm</b>"])
    content = build(read([tmp_path]))
    assert content.lead.startswith("second driver, <b>warm</b>. CPU run on Test CPU")
    assert "<b>warm" not in page(content)
