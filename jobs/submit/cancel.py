"""`slurmscale cancel`: end the waiting and running jobs of a sweep, or of one run of it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.errors import SubmitError
from jobs.event_fields import NO_JOB
from jobs.plan.rules.rule import counted
from jobs.rundir import RunDir, SweepDir
from jobs.submit.cancellation import ForeignJobsError
from jobs.submit.launchers import by_launcher
from jobs.submit.stage_states import StageState, stage_states
from jobs.submit.states import RunState, State, states
from jobs.submit.sweeps.intents import settle
from jobs.submit.sweeps.ledger import held, record_cancelled, record_given_up, uninterrupted
from jobs.submit.sweeps.submissions import intents, kind_of
from jobs.submit.sweeps.sweep_at import open_sweep


def cancel(path: Path) -> int:
    """End every run of the sweep that waits or runs, of a run directory that run only; return the exit code."""
    return cancel_all(open_sweep(path))


def cancel_run(run: RunDir) -> int:
    """End a run, and no other of its sweep."""
    return cancel_all(SweepDir(run.path.parent, run.name))


def cancel_all(sweep: SweepDir) -> int:
    """End every run that waits or runs, and the stages around it; return the exit code."""
    with held(sweep):
        for line in settle(sweep):
            print(line)
        found = states(sweep)
        runs = [item for item in found if item.state.is_alive]
        # Stages first: some start at the end of a run, also of a cancelled one.
        stages = [item for item in stage_states(sweep) if item.state.is_alive and sweep.has(item.run)]
        refuse_elsewhere(sweep, [*stages, *runs])
        waiting = [item.run.name for item in found if item.state is State.waiting]
        if sweep.only is not None:
            refuse_unconfirmed(sweep)
            refuse_stage_of_queue(sweep, stages)
        with uninterrupted():
            foreign = end(sweep, [*reversed(stages), *runs])
            record_given_up(sweep, waiting)
    doubtful = [item for item in found if item.doubt and not item.state.is_open]
    unsure = [f"{item.run.name} may restart: {item.doubt}. Repeat the command later." for item in doubtful]
    for sentence in [*foreign.values(), *unsure]:
        print(f"slurmscale cancel: {sentence}", file=sys.stderr)
    ended = sum(item.job_id not in foreign for item in runs) + len(waiting)
    ended_stages = sum(item.job_id not in foreign for item in stages)
    if ended or ended_stages:
        also = f" and {counted(ended_stages, 'stage')}" if ended_stages else ""
        print(f"cancelled {sweep.only or counted(ended)}{also} of {sweep.path}")
    elif not foreign and not unsure:
        print(f"{sweep.path}: no run waits or runs" if sweep.only is None else f"{sweep.only} neither waits nor runs")
    return 2 if foreign or unsure else 0


def end(sweep: SweepDir, alive: Sequence[RunState | StageState]) -> dict[str, str]:
    """End jobs and record that they were cancelled; return a sentence on each that is not the sweep's, by its id."""
    foreign: dict[str, str] = {}
    for launcher, items in by_launcher(alive):
        job_ids = list(dict.fromkeys(str(item.job_id) for item in items if item.job_id != NO_JOB))
        if sweep.only is not None and launcher.takes_turns:
            launcher.cancel_turn(sweep, sweep.only)
            continue
        # A script that the scheduler did not get is not on record.
        if launcher.cancels_for_sure:
            record_cancelled(sweep, job_ids)
        try:
            launcher.cancel(sweep, job_ids)
        except ForeignJobsError as error:
            foreign |= error.sentences
        if not launcher.cancels_for_sure:
            record_cancelled(sweep, [job_id for job_id in job_ids if job_id not in foreign])
    return foreign


def refuse_elsewhere(sweep: SweepDir, alive: Sequence[RunState | StageState]) -> None:
    """Raise SubmitError for processes that can only be ended on the machine that started them."""
    elsewhere = {str(item.host) for item in alive if is_on_its_host(item)} - {socket.gethostname()}
    if elsewhere:
        raise SubmitError(
            f"{sweep.path} has runs that were started on {', '.join(sorted(elsewhere))} by launcher=local; their "
            f"processes can only be ended there. Run `slurmscale cancel {sweep.quoted}` on that machine."
        )


def is_on_its_host(item: RunState | StageState) -> bool:
    """Return True if the processes of a run or stage can only be ended on the machine that started them."""
    kind = kind_of(item.launcher)
    return kind is not None and kind.on_this_machine


def refuse_stage_of_queue(sweep: SweepDir, stages: Sequence[StageState]) -> None:
    """Raise SubmitError for a stage that runs in a local queue: its processes are those of the queue."""
    if any(is_on_its_host(item) and item.state is State.running for item in stages):
        raise SubmitError(
            f"A stage of {sweep.only} runs in the queue of the sweep and cannot be ended without the queue. Wait for "
            f"its end, or run `slurmscale cancel {sweep.whole.quoted}` to end all."
        )


def refuse_unconfirmed(sweep: SweepDir) -> None:
    """Raise SubmitError for a run whose job, which others share, is not on record yet."""
    if any(sweep.only in intent.runs and len(intent.runs) > 1 for intent in intents(sweep)):
        raise SubmitError(
            f"The submission of {sweep.only} and other runs was interrupted, and the scheduler has not shown their "
            f"job yet. Repeat the command in a few minutes. Run `slurmscale cancel {sweep.whole.quoted}` to end all."
        )
