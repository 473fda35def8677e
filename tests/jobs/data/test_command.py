"""`slurmscale data`: prepare data sets without a run, once each, and print their account."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.cli import main
from tests.support.cli import printed_words
from tests.support.tiny_data import ALPACA, write_json


def overrides(where: Path) -> list[str]:
    data = write_json(where / "alpaca.json", ALPACA * 5)
    return ["data=alpaca", f"data.path={data}", "data.bpe_vocab_size=300", f"data.cache_dir={where}/cache",
            "job.sequence_length=256", "ranks_per_node=1", f"runs_dir={where}/runs"]  # fmt: skip


def test_it_prepares_each_data_set_once_prints_its_account_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*overrides(tmp_path), "data.prompt=alpaca,question_answer", "data.test_split=0.2", "repeat=1,2"]
    assert main(["data", "-m", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:6] for line in lines[1:3]] == [
        ["alpaca,", "alpaca", "20", "20", "4", "0"],
        ["alpaca,", "question_answer", "20", "20", "4", "0"],
    ]
    sets = sorted(path for path in (tmp_path / "cache").iterdir() if not path.name.startswith("."))
    assert len(sets) == 2
    assert sorted(line.rpartition(" In ")[2] for line in lines[3:]) == [str(path) for path in sets]
    assert not (tmp_path / "runs").exists()
    before = [path.stat().st_mtime_ns for path in sets]
    assert main(["data", "-m", *given]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert [path.stat().st_mtime_ns for path in sets] == before, "what exists is not made again"


def test_data_without_a_path_and_samples_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "data=dolly"]) == 2
    assert "data.path is not set. data.source=dolly reads a list, or lines, of objects with" in printed_words(capsys)
    assert main(["data", *overrides(tmp_path), "data.test_split=15"]) == 2
    assert "15 of them are held out (data.held_out_samples, data.test_split)." in printed_words(capsys)
