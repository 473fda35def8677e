"""Recall and precision of the catalogue on the collected error texts; analysis/README.md has those at first reading."""

from __future__ import annotations

from jobs.failures import FailureCause
from tests.benchmarks.failure_causes import read_cases, score


def test_recall_and_precision_do_not_fall_on_the_collected_texts() -> None:
    found = score(case for case in read_cases() if case.set != "improved_on")
    assert (found.recall >= 0.85, found.precision >= 0.95) == (True, True)


def test_each_unseen_text_has_a_known_cause_and_a_source() -> None:
    cases = list(read_cases())
    assert {case.cause for case in cases} <= {cause.name for cause in FailureCause}
    assert all(case.source.startswith("https://") and case.text for case in cases)
