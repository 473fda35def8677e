"""Attempts by proxy: judged by short runs, whose bias is taken out of the ratio and added to its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.campaign import Entry, Verdict
from analysis.compare.expectations import of_entry
from analysis.compare.proxy import Proxy, recorded
from analysis.report.leaderboard import campaign_answer
from analysis.report.leaderboard_text import notes, verdict_words
from tests.benchmarks.referee import by_proxy, faster
from tests.support.campaigns import a_repeat, leaderboard_of

SHORT = (5.0, 4.0, 3.0)
"""The losses of a short run."""
EQUAL = {"a": 1.04, "b": 1.05, "c": 1.055, "d": 1.045}
"""Short pairs look 5 % better than long ones."""


def proxied(campaign: Path, name: str, ratio: float, biases: dict[str, Any], **more: Any) -> Entry:
    """Return the judgement on an attempt by short runs that are faster by this ratio."""
    a_repeat(campaign, "baseline", 1, 10.0, role="baseline")
    facts = {"proxy": {"overrides": ["job.steps=2"], "biases": biases}, **more}
    for number, noise in enumerate((1.0, 1.004, 0.997, 1.001), start=1):
        short: dict[str, Any] = {"samples": 8, "losses": SHORT, "recorded": facts}
        a_repeat(campaign, name, number, 2.0, role="baseline", **short)
        a_repeat(campaign, name, number, 2.0 * noise / ratio, **short)
    return next(entry for entry in leaderboard_of(campaign).entries if entry.trial.name == name)


def test_short_runs_are_checked_against_short_baselines_and_decide_nothing_without_a_known_bias(tmp_path: Path) -> None:
    entry = proxied(tmp_path, "fast", 1.3, {"a": 1.04, "b": 1.05})
    assert not entry.reasons, "they trained on less than the baseline of full length"
    assert (entry.verdict, entry.rank) == (Verdict.undecided, None)
    board = leaderboard_of(tmp_path)
    assert board.baseline is not None
    assert len(board.baseline.runs) == 1
    (note,) = [note for note in notes(board) if "by proxy" in note]
    assert note == (
        "fast is judged by proxy job.steps=2, short runs of both sides: 2 configurations had run at both lengths "
        "before its first pair, and 3 that differ make the bias known, so that it is not decided."
    )


def test_a_known_bias_is_taken_out_of_the_ratio_and_added_to_the_interval(tmp_path: Path) -> None:
    unknown = proxied(tmp_path / "a", "equal", 1.05, {})
    known = proxied(tmp_path / "b", "equal", 1.05, EQUAL)
    assert unknown.interval
    assert known.interval
    assert known.ratio
    assert known.bias
    assert unknown.interval[0] > 1, "as if long, it would be named faster"
    assert (known.verdict, verdict_words(known)) == (Verdict.tie, "tie, by proxy")
    assert known.ratio.middle == pytest.approx(1.05 / math.prod(EQUAL.values()) ** (1 / 4), abs=2e-3)
    width = math.log(known.interval[1] / known.interval[0])
    assert width > math.log(known.bias.high / known.bias.low) > math.log(unknown.interval[1] / unknown.interval[0])
    better = proxied(tmp_path / "c", "better", 1.3, EQUAL)
    assert (better.verdict, better.rank) == (Verdict.faster, 1)
    (attempt,) = campaign_answer(leaderboard_of(tmp_path / "c")).attempts
    assert (attempt.proxy, attempt.proxy_configurations) == ("job.steps=2", 4)
    assert attempt.bias_low
    assert attempt.bias_high
    assert attempt.bias_low < 1.0474 < attempt.bias_high


@pytest.mark.parametrize(
    ("text", "biases", "state", "words"),
    [
        ("speed >= 1.1 x baseline", EQUAL, "kept", "Kept: 1.24"),
        ("speed >= 1.28 x baseline", EQUAL, "not_decided", "Not decided: 1.24"),
        ("speed >= 1.1 x baseline", {}, "not_decided", "make the bias known"),
        ("tokens_per_s >= 1.1 x baseline", EQUAL, "not_decided", "decide only speed"),
    ],
)
def test_an_expectation_is_decided_by_the_corrected_speed_alone(
    text: str, biases: dict[str, float], state: str, words: str, tmp_path: Path
) -> None:
    entry = proxied(tmp_path, "better", 1.3, biases, expect=text)
    found = of_entry(entry, leaderboard_of(tmp_path).rules)
    assert found is not None
    assert found.state.name == state
    assert words in found.words


@pytest.mark.parametrize(
    "known", [{"overrides": "job.steps", "biases": [1]}, {"biases": {"a": "1", "b": -1, "c": None}}]
)
def test_a_record_of_another_form_makes_no_bias_known(known: dict[str, Any]) -> None:
    found = recorded(known)
    assert found is not None
    assert found.bias(0.05) is None
    assert recorded(None) is None


def test_the_interval_of_a_bias_contains_that_of_a_further_configuration() -> None:
    bias = Proxy(("job.steps=2",), EQUAL).bias(0.05)
    assert bias is not None
    # t(3, 0.975) = 3.182; s of the logarithms 0.00617, times sqrt(1 + 1/4).
    assert math.log(bias.high / bias.middle) == pytest.approx(3.182 * 0.00617 * math.sqrt(1.25), rel=2e-3)
    assert bias.low * bias.high == pytest.approx(bias.middle**2)


@pytest.mark.parametrize("proxy", [(0.05, 0.01), (0.0, 0.02)])
def test_biased_short_runs_crown_equal_configurations_unless_the_bias_is_removed(proxy: Sequence[float]) -> None:
    middle, spread = proxy
    assert faster(by_proxy(0.0, (middle, spread), None, 60, 1)) > 12
    assert faster(by_proxy(0.0, (middle, spread), 5, 60, 1)) <= 3
