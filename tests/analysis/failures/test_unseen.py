"""Recall and precision of the catalogue on error texts that it was not made from."""

from __future__ import annotations

from jobs.failures import FailureCause
from tests.benchmarks.failure_causes import read_cases, score


def test_recall_and_precision_hold_on_texts_that_the_catalogue_was_not_made_from() -> None:
    found = score(case for case in read_cases() if case.set != "improved_on")
    assert (found.recall >= 0.85, found.precision >= 0.95) == (True, True)


def test_each_unseen_text_has_a_known_cause_and_a_source() -> None:
    cases = list(read_cases())
    assert {case.cause for case in cases} <= {cause.name for cause in FailureCause}
    assert all(case.source.startswith("https://") and case.text for case in cases)
