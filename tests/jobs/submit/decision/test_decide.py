"""STOP or RESTART: every cause has a decision with a reason, and a run that fails at one step again stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.failure_causes import FailureCause, record_failure
from jobs.run_events import run_events
from jobs.rundir import RunDir, append_event, append_record
from jobs.submit.decision.decide import REASONS, decide, repeated_step
from tests.benchmarks import stop_or_restart
from tests.support.real_run import make_run


def test_every_cause_has_a_decision_with_its_reason() -> None:
    assert set(REASONS) == set(FailureCause)
    assert decide(FailureCause.code).words == "STOP: the program would raise it again"
    assert decide(FailureCause.unknown).restart
    assert decide(FailureCause.killed).words.startswith("RESTART elsewhere: the node of the killed rank is suspect")


def start(run: RunDir, attempt: int, last_step: int, cause: FailureCause, node: str) -> None:
    """A start that failed after a step."""
    append_event(run, "started", attempt=attempt, restart=attempt - 1)
    append_record(run.metrics, {"step": last_step, "attempt": attempt})
    record_failure(run, cause, rank=1, node=node, error="it was", restart=attempt - 1)


@pytest.mark.parametrize(
    ("last_step", "cause", "expected"),
    [(7, FailureCause.killed, 7), (8, FailureCause.killed, None), (7, FailureCause.hung, None)],
)
def test_a_run_that_fails_again_after_the_same_step_stops(
    last_step: int, cause: FailureCause, expected: int | None, tmp_path: Path
) -> None:
    run = make_run(tmp_path)
    start(run, 1, 7, FailureCause.killed, "node01")
    assert repeated_step(run, run_events(run)) is None
    start(run, 2, last_step, cause, "node02")
    assert repeated_step(run, run_events(run)) == expected
    decision = decide(cause, expected)
    assert decision.restart is (expected is None)
    if expected is not None:
        assert decision.words == "STOP: two starts ended by killed after step 7: it follows the run"


def test_a_run_that_starts_too_slowly_again_with_warm_caches_stops(tmp_path: Path) -> None:
    run, cause = make_run(tmp_path), FailureCause.startup_limit
    record_failure(run, cause, rank=0, node="node01", error="no first step within 120 s", restart=0)
    assert decide(cause, repeated_step(run, run_events(run))).name == "RESTART"
    append_event(run, "requeued", cause=cause.name)
    record_failure(run, cause, rank=0, node="node01", error="no first step within 120 s", restart=1)
    decision = decide(cause, repeated_step(run, run_events(run)))
    assert decision.words == "STOP: two starts ended by startup_limit before a first step: it follows the run"


def test_the_decisions_on_labelled_ends_are_as_good_as_the_readme_states() -> None:
    errors = [stop_or_restart.errors(whole=whole) for whole in (False, True)]
    assert sum(each.wrong_stops for each in errors) <= 0.01 * sum(each.restarts for each in errors)
    assert sum(each.wrong_restarts for each in errors) <= 0.05 * sum(each.stops for each in errors)
