"""Results that were expected before the runs: their grammar, their record, and their outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.report.leaderboard_text import notes
from jobs.cli import main
from jobs.rundir import SweepDir, provenance_of
from tests.support.campaigns import leaderboard_of, pairs
from tests.support.fake_runs import a_run, finished_run
from tests.support.real_run import SMALL

# 25 % faster, by pairs that agree within a per cent.
PAIRS = [(10.0, 8.0), (10.1, 8.05), (9.9, 7.95), (10.0, 8.02)]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("speed >= 1.10 x baseline", "kept"),
        ("speed >= 1.5 x baseline", "not_kept"),
        ("speed >= 1.25 x baseline", "not_decided"),
        ("speed <= 1.5 x baseline", "kept"),
        ("steady_time_s <= 0.9 x baseline", "kept"),
        ("steady_time_s <= 7", "not_kept"),
        ("steady_time_s >= 7.0", "kept"),
        ("memory_peak_bytes <= 1e9", "not_kept"),
        ("time_to_target_s <= 1e9", "not_decided"),
    ],
)
@pytest.mark.parametrize("until", [{}, {"until": {"order": 1, "minimum_effect": 0.02}}], ids=["fixed", "verdict"])
def test_the_interval_of_the_measured_value_decides(
    text: str, state: str, until: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs(tmp_path, "fast", PAIRS, recorded={"expect": text, **until})
    assert main(["leaderboard", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["result"]["campaigns"][0]["attempts"]
    assert (found["expected"], found["expected_state"]) == (text, state)
    (sentence,) = [note for note in notes(leaderboard_of(tmp_path)) if note.startswith("Expected of fast")]
    assert f"{text}. {state.replace('_', ' ').capitalize()}: " in sentence


def test_nothing_is_decided_of_an_attempt_that_does_not_count(tmp_path: Path) -> None:
    pairs(tmp_path, "cut", PAIRS, recorded={"expect": "speed >= 1.1 x baseline"}, samples=8)
    (sentence,) = [note for note in notes(leaderboard_of(tmp_path)) if note.startswith("Expected of cut")]
    assert "Not decided: the attempt does not count (trained on less" in sentence


def test_the_report_says_what_came_of_runs_that_were_submitted_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for repeat in (1, 2, 3):
        run = a_run(f"r{repeat}", repeat=repeat)
        directory = finished_run(tmp_path / "sweep", run, step_time_s=1 + repeat / 1000)
        facts = provenance_of(directory)
        directory.provenance.write_text(json.dumps(facts | {"expect": "steady_time_s <= 1"}))
    assert main(["report", str(tmp_path / "sweep"), "--json"]) == 0
    headline = json.loads(capsys.readouterr().out)["result"]["headline"]
    (sentence,) = [each for each in headline if each.startswith("Expected of r1 before its first run")]
    assert "steady_time_s <= 1. Not kept: " in sentence
    assert sentence.endswith("over 3 runs.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("faster", "--expect 'faster' cannot be read. Write METRIC >= NUMBER or METRIC <= NUMBER"),
        ("tokens_per_s > 3", "cannot be read"),
        ("tokens_per_s >= 1.1 x base", "cannot be read"),
        ("tokens_per_s >= 1.1 * baseline", "cannot be read"),
        ("tokens_per_s >= 1 and loss <= 3", "cannot be read"),
        ("tokens_per_s >= -3", "-3 is not a number above 0"),
        ("tokens_per_s >= 1e999", "1e999 is not a number above 0"),
        ("tokens_per_s >= 1.2.3", "1.2.3 is not a number above 0"),
        ("token_per_s >= 3", "there is no metric token_per_s. Did you mean tokens_per_s"),
        ("speed >= 3", "speed is only known relative to the baseline of a campaign. Write 'speed >= 3 x baseline'"),
        ("tokens_per_s >= 1.1 x baseline", "a run that is submitted alone has no baseline. Leave 'x baseline' out, or"),
    ],
)
def test_another_text_is_refused_with_the_form_to_write(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *SMALL, f"runs_dir={tmp_path}", "launcher=dry", "--expect", text]) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not any(tmp_path.iterdir())


def test_an_expectation_is_stored_before_the_first_run_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--campaign", str(tmp_path / "camp"), "--repeats", "1"]
    assert main(["attempt", "baseline", *SMALL, "launcher=dry", *place]) == 0
    words = ["attempt", "mbs1", "job.micro_batch_size=1", *place]
    assert main([*words, "--expect", "tokens_per_s  >=  1.10 x baseline"]) == 0
    stored = provenance_of(SweepDir(tmp_path / "camp").run("mbs1-r1"))["attempt"]["expect"]
    assert stored == "tokens_per_s >= 1.10 x baseline"
    assert main([*words, "--expect", "tokens_per_s >= 1.01 x baseline"]) == 2
    assert "The attempt mbs1 began with --expect 'tokens_per_s >= 1.10 x baseline'" in capsys.readouterr().err
    assert main(words) == 0, "further repeats keep it"
    assert provenance_of(SweepDir(tmp_path / "camp").run("mbs1-r2"))["attempt"]["expect"] == stored
    assert main(["attempt", "plain", *place]) == 0
    assert main(["attempt", "plain", *place, "--expect", stored]) == 2
    assert "began without --expect, and an expectation is stored before the first run" in capsys.readouterr().err
    assert main(["attempt", "baseline", *SMALL, "launcher=dry", *place, "--expect", stored]) == 2
    assert "--expect belongs to an attempt, and baseline is what attempts" in capsys.readouterr().err
