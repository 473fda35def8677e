"""The answers about sweeps and plans, from the same states and plans that the tables show."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.answers import ListAnswer, ListedSweep, RunAnswer, StageAnswer, SweepAnswer
from jobs.failure_causes import end_of, latest_attempt, recorded_cause
from jobs.run_events import events_or_failure
from jobs.submit.commands import FAILED, POLL_S, QUEUE_POLL_S, look
from jobs.submit.decision.decide import decision_on
from jobs.submit.stage_states import StageState, stage_states
from jobs.submit.states import RunState, State
from jobs.submit.sweeps.note import note_of
from jobs.submit.sweeps.submissions import is_in_queue
from jobs.submit.sweeps.sweep_at import open_sweep
from jobs.submit.sweeps.sweep_list import Row, listed_rows
from jobs.submit.trust.own_sweeps import is_own
from jobs.submit.watching.progress import last_step, steps_planned

if TYPE_CHECKING:
    from jobs.plan.compose import Point


def sweep_answer(path: Path) -> SweepAnswer:
    """Return the states of the runs and stages of a sweep, or of one run of it. Raise RunDirError."""
    sweep = open_sweep(path)
    found = look(sweep)
    return SweepAnswer(
        directory=str(sweep.path),
        note=note_of(sweep) or None,
        submitted_by_you=is_own(sweep),
        counts=counts(found),
        runs=[run_answer(each) for each in found],
        stages=[stage_answer(each) for each in stage_states(sweep)],
    )


def changes(path: Path) -> Iterator[tuple[SweepAnswer, int]]:
    """Yield the states of a sweep, then at each change the runs and stages whose state is another one.

    The last one comes when no run waits or runs; its exit code is that of `slurmscale watch`. A step is no change.
    """
    known = set[RunAnswer | StageAnswer]()
    while True:
        found = sweep_answer(path)
        everything: list[RunAnswer | StageAnswer] = [*found.runs, *found.stages]
        alive = [each for each in everything if each.is_open]
        runs = [each for each in found.runs if without_progress(each) not in known]
        stages = [each for each in found.stages if each not in known]
        if runs or stages or not alive:
            code = 0 if alive else int({each.state for each in everything} != {State.finished.value})
            yield replace(found, runs=runs, stages=stages), code
        if not alive:
            return
        known = {*map(without_progress, found.runs), *found.stages}
        time.sleep(QUEUE_POLL_S if any(is_in_queue(each.launcher) for each in alive) else POLL_S)


def without_progress(run: RunAnswer) -> RunAnswer:
    """Return a state without what changes while it stays the same."""
    return replace(run, step=None, expected_start=None)


def directory_of(points: Sequence[Point]) -> Path:
    """Return the sweep directory of prepared points."""
    return Path(points[0].run.runs_dir) / str(points[0].run.sweep)


def counts(found: Sequence[RunState]) -> dict[str, int]:
    """Return the number of runs in each state that occurs."""
    numbers = Counter(each.state for each in found)
    return {state.value: numbers[state] for state in State if numbers[state]}


def run_answer(found: RunState) -> RunAnswer:
    """Return the state of a run."""
    events = events_or_failure(found.run) if found.state in FAILED else []
    cause, decision = recorded_cause(end_of(latest_attempt(events)) or {}), decision_on(found.run, events)
    return RunAnswer(
        name=found.run.name,
        directory=str(found.run.path),
        state=found.state.value,
        is_open=found.state.is_open,
        step=last_step(found.run),
        steps=steps_planned(found.run),
        job_id=found.job_id,
        launcher=found.launcher,
        host=found.host,
        expected_start=found.expected_start,
        cause=cause.name if cause else None,
        decision=decision.name if decision else None,
        decision_reason=decision.reason if decision else None,
        detail=found.detail or None,
    )


def stage_answer(found: StageState) -> StageAnswer:
    """Return the state of a stage."""
    return StageAnswer(
        stage=found.stage,
        run=found.run,
        state=found.state.value,
        is_open=found.state.is_open,
        job_id=found.job_id,
        launcher=found.launcher,
        detail=found.detail or None,
    )


def has_failed(answer: SweepAnswer) -> bool:
    """Return whether a run or stage failed or was lost."""
    ends = [*(each.state for each in answer.runs), *(each.state for each in answer.stages)]
    return not {state.value for state in FAILED}.isdisjoint(ends)


def list_answer(path: Path) -> ListAnswer:
    """Return the sweeps in a directory, the one that changed last first. Raise RunDirError."""
    return ListAnswer([listed_sweep(row) for row in listed_rows(path)])


def listed_sweep(row: Row) -> ListedSweep:
    """Return the row of a sweep."""
    return ListedSweep(
        directory=str(row.path),
        counts=None if isinstance(row.found, str) else counts(row.found),
        unknown_because=row.found if isinstance(row.found, str) else None,
        changed_unix_s=row.changed or None,
        size_bytes=row.size_bytes,
        note=row.note or None,
    )
