"""The leaderboard's judgement on attempts that run until a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.compare.campaign import Entry, Terms, Verdict
from analysis.report.leaderboard_text import notes, verdict_words
from jobs.rundir import SweepDir, append_record, event_record
from tests.benchmarks.referee import SHAPES, ends, faster
from tests.support.campaigns import leaderboard_of, pairs

FASTER = [(10.0, 9.0), (10.1, 9.1), (9.9, 8.95)]
NOISE = [(10.0, 10.1), (10.2, 10.0), (9.9, 10.0), (10.0, 10.05), (10.1, 10.0)]


def tried(campaign: Path, name: str, times_s: Sequence[tuple[float, float]], order: int) -> None:
    pairs(campaign, name, times_s, recorded={"until": {"order": order, "minimum_effect": 0.02}})


def entries(campaign: Path) -> dict[str, Entry]:
    return {entry.trial.name: entry for entry in leaderboard_of(campaign).entries}


def test_neither_further_attempts_nor_further_pairs_change_a_verdict(tmp_path: Path) -> None:
    tried(tmp_path / "a", "fast", FASTER, order=1)
    first = entries(tmp_path / "a")["fast"]
    assert first.verdict is Verdict.faster
    tried(tmp_path / "b", "fast", [*FASTER, (10.0, 14.0), (10.0, 13.0)], order=1)
    for order in range(2, 9):
        tried(tmp_path / "b", f"again{order}", NOISE, order=order)
    pairs(tmp_path / "b", "fixed", NOISE)
    found = entries(tmp_path / "b")
    assert found["fast"].verdict is Verdict.faster, "it was proved after three pairs"
    assert found["fast"].confidence == first.confidence == pytest.approx(0.975)
    errors = [1 - entry.confidence for entry in found.values()]
    assert sum(errors) == pytest.approx(0.05), "all attempts together, also those of fixed pairs, err with 5 %"


def test_the_first_interval_that_decides_is_the_verdict() -> None:
    wide, above, small = (0.9, 1.2), (1.001, 1.05), (1.001, 1.015)
    assert Terms(1, 0.02).verdict([wide, above, small]) is Verdict.faster
    assert Terms(1, 0.02).verdict([wide, small]) is Verdict.no_difference
    assert Terms(1, 0.02).verdict([wide, (0.8, 0.9), above]) is Verdict.slower
    assert Terms(1, 0.02).verdict([wide]) is Verdict.undecided


def test_the_terms_come_from_the_record_and_an_attempt_without_them_is_judged_as_before(tmp_path: Path) -> None:
    pairs(tmp_path, "fixed", NOISE)
    board = leaderboard_of(tmp_path)
    assert [entry.verdict for entry in board.entries] == [Verdict.tie]
    assert not any("group-sequential" in note for note in notes(board))
    tried(tmp_path, "open", NOISE, order=1)
    board = leaderboard_of(tmp_path)
    assert entries(tmp_path)["open"].verdict is Verdict.undecided
    (note,) = [note for note in notes(board) if "group-sequential" in note]
    assert "open 2.5 %" in note


def test_equal_speed_within_the_effect_that_matters_is_a_verdict_and_shares_the_baselines_rank(tmp_path: Path) -> None:
    times_s = [(10.0 + number % 3 / 100, 10.0 + number % 4 / 100) for number in range(6)]
    tried(tmp_path, "equal", times_s, order=1)
    entry = entries(tmp_path)["equal"]
    assert (entry.verdict, entry.rank) == (Verdict.no_difference, 1)
    assert verdict_words(entry) == "no difference within 2 %"


def test_an_attempt_whose_pairs_were_chosen_does_not_count(tmp_path: Path) -> None:
    tried(tmp_path, "fast", FASTER, order=1)
    append_record(SweepDir(tmp_path).submissions, event_record("removed", run="fast-baseline-r4"))
    (entry,) = entries(tmp_path).values()
    assert entry.verdict is Verdict.invalid
    assert "fast-baseline-r4 of its pairs was removed" in entry.reasons[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_configurations_are_crowned_in_at_most_5_per_cent_of_sequential_campaigns(shape: str) -> None:
    found = ends(0.0, 0.01, shape, 100, 1)
    assert faster(found.verdicts) <= 5
    assert found.verdicts.count(Verdict.no_difference) > 10


def test_a_clear_difference_takes_fewer_pairs_than_a_fixed_number_would() -> None:
    found = ends(0.1, 0.01, "normal", 50, 1)
    assert faster(found.verdicts) == 50
    assert sum(found.pairs) < 4 * 50
