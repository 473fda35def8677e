"""Recall and precision of the catalogue on the collected error texts.

analysis/failures/README.md has those at first reading.
"""

from __future__ import annotations

import pytest

from jobs.failure_causes import FailureCause
from tests.benchmarks.failure_causes import read_cases, score


@pytest.mark.parametrize("whole", [False, True])
def test_recall_and_precision_do_not_fall_on_the_collected_texts(whole: bool) -> None:
    found = score(case for case in read_cases() if case.whole is whole and case.set != "improved_on")
    assert (found.recall >= 0.85, found.precision >= 0.95) == (True, True)


def test_each_unseen_text_has_a_known_cause_and_a_source() -> None:
    cases = list(read_cases())
    assert {case.cause for case in cases} <= {cause.name for cause in FailureCause}
    assert all(case.source and case.text for case in cases)
    assert all(case.source.startswith("https://") for case in cases if not case.whole)
