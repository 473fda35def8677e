"""The commands on a sweep: submit, status, resume. Each needs only the directory of the sweep."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from jobs.console import console, plain
from jobs.errors import SuiteError
from jobs.expectation import checked
from jobs.failure_causes import FailureCause, end_of, latest_attempt, recorded_cause
from jobs.fitted_table import FittedTable
from jobs.output import exit_code_of
from jobs.plan.rules.rule import counted
from jobs.run_events import events_or_failure
from jobs.rundir import RunDir, SweepDir
from jobs.schema import LauncherKind, Run
from jobs.submit.decision.decide import decision_on
from jobs.submit.launch import launch
from jobs.submit.launchers import by_launcher, launcher_of
from jobs.submit.notices import Watched
from jobs.submit.pbs.orphans import settle_orphans
from jobs.submit.stage_states import StageState, missing_stages, stage_lines, stage_states
from jobs.submit.states import RunState, State, states
from jobs.submit.sweeps.backlog import launchable, submit_backlog, submit_waiting
from jobs.submit.sweeps.intents import settle
from jobs.submit.sweeps.ledger import held
from jobs.submit.sweeps.note import note_of
from jobs.submit.sweeps.submissions import is_in_queue, latest_submissions
from jobs.submit.sweeps.sweep_at import open_sweep
from jobs.submit.trust.own_sweeps import is_own
from jobs.submit.trust.received import trust_or_refuse
from jobs.submit.watching.progress import last_step, node_lines, since_last_step, steps_planned

if TYPE_CHECKING:
    from jobs.plan.compose import Point

POLL_S = 1.0
# Each refresh needs two calls of the scheduler: at most 12 calls per minute.
QUEUE_POLL_S = 10.0
# For a longer sweep `submit` shows the first runs, `status` only those that may need attention.
MOST_ROWS = 50
NAMED_RUNS = 3
FAILED = {State.failed, State.lost}
QUIET = {State.finished, State.queued, State.waiting, State.prepared, State.cancelled}


COLOURS = {
    State.running: "cyan",
    State.finished: "green",
    State.failed: "red",
    State.lost: "red",
    State.held: "yellow",
    State.suspended: "yellow",
    State.stopped: "yellow",
    State.cancelled: "yellow",
}


def submit(
    overrides: list[str], *, multirun: bool, wait: bool | None, skip_illegal: bool = False, expect: str | None = None
) -> int:
    """Compose, show, prepare and launch runs; return the exit code. With `skip_illegal` list what is left out.

    The result that is expected (jobs.expectation) is stored in the record of each run.
    """
    points = points_to_submit(overrides, multirun=multirun, skip_illegal=skip_illegal, expect=expect)
    return submit_points(points, wait=wait)


def points_to_submit(
    overrides: list[str], *, multirun: bool, skip_illegal: bool, expect: str | None = None
) -> list[Point]:
    """Compose runs, with the result that is expected of each. With `skip_illegal` print what is left out."""
    from jobs.plan.compose import compose  # noqa: PLC0415 (Hydra, which commands on a sweep do without)

    left_out: list[str] | None = [] if skip_illegal else None
    points = compose(overrides, multirun=multirun, left_out=left_out)
    for line in left_out or ():
        console().print(line, soft_wrap=True)
    return points if expect is None else [expecting(point, expect) for point in points]


def expecting(point: Point, text: str) -> Point:
    """Return a point that records the result that is expected of it."""
    declared = point.run.program.metrics if point.run.program else ()
    return replace(point, facts={**point.facts, "expect": checked(text, declared, in_campaign=False)})


def submit_points(points: list[Point], *, wait: bool | None, try_large: bool = False) -> int:
    """Show, prepare and launch composed points; return the exit code.

    With `wait=None` wait for the ends of runs that end with this command (launcher=here) and no others. With
    `try_large` launch also those whose samples are predicted to be too long for their GPUs.
    """
    from jobs.plan.table import plan_notes, plan_table  # noqa: PLC0415 (NumPy, as the next one)
    from jobs.submit.hosts.ledger import without_known_bad  # noqa: PLC0415 (filelock)
    from jobs.submit.preparation.prepare import prepared  # noqa: PLC0415

    runs, known = without_known_bad([point.run for point in points])
    points = [replace(point, run=run) for point, run in zip(points, runs, strict=True)]
    out = console()
    out.print(plan_table(runs[:MOST_ROWS]))
    if len(runs) > MOST_ROWS:
        out.print(f"... and {counted(len(runs) - MOST_ROWS)} more; `slurmscale plan` shows them all")
    kind = runs[0].launcher.kind
    launcher_of(kind).check(runs)
    with prepared(points, try_large=try_large) as made:
        sweep = made.sweep
        try:
            for note in [*plan_notes(runs, made.samples), *known]:
                out.print(note)
            out.print(f"prepared {counted(len(runs))} in {sweep.path}", soft_wrap=True)
            launched = [*(settle(sweep) if is_own(sweep) else []), *launch(sweep, made.runs, kind)]
        except (SuiteError, SystemExit):  # the latter where nobody reads the output any more
            # A run whose job could not be cancelled keeps its directory and its record.
            latest = latest_submissions(sweep)
            if all(d.name not in latest or latest[d.name].cancelled for _, d in made.runs):
                made.take_back()
            raise
        except KeyboardInterrupt as interrupt:
            submitted = sum(directory.name in latest_submissions(sweep) for _, directory in made.runs)
            out.print(
                f"Interrupted: {submitted} of {counted(len(runs))} were submitted and are on record. Run `slurmscale "
                f"resume {sweep.quoted}` to submit the rest, or `slurmscale cancel {sweep.quoted}`.",
                soft_wrap=True,
            )
            return exit_code_of(interrupt)
    for line in launched:
        print(line)
    if not kind.starts_runs:
        print(nothing_started(kind, wait=bool(wait)))
        return 0
    print(f"show its state with: slurmscale status {sweep.quoted}")
    return wait_for(sweep) if waits(wait, kind) else 0


def waits(wait: bool | None, kind: LauncherKind) -> bool:
    """Return True if a command that has started runs waits for them: as the user says, or since they end with it."""
    return kind.in_own_job if wait is None else wait


def nothing_started(kind: LauncherKind, *, wait: bool) -> str:
    """Return the last line of a launcher that starts no run; `wait`: the user wants to wait for their ends."""
    done = (
        "Only a preview (launcher=dry): nothing was started"
        if kind.is_preview
        else f"launcher={kind.name} starts no run"
    )
    return f"{done}, so there is nothing to wait for." if wait else f"{done}."


def status(path: Path, *, everything: bool = False, nodes: bool = False, check: bool = False) -> int:
    """Print one row per run; for a long sweep only runs that are running or in trouble, unless `everything`.

    With `nodes` also a line for each node of the running runs. With `check` return 1 if a run or stage failed or was
    lost.
    """
    sweep = open_sweep(path)
    found = look(sweep)
    shown = found if everything or len(found) <= MOST_ROWS else [item for item in found if item.state not in QUIET]
    table = FittedTable()
    table.whole("run")
    table.whole("state")
    table.number("step")
    table.whole("job")
    table.text("")
    for item in shown:
        total = steps_planned(item.run)
        step = step_of(last_step(item.run), total)
        old = since_last_step(item.run) if item.state is State.running else ""
        words = "; ".join(filter(None, [item.detail, old]))
        table.add_row(plain(item.run.name), state_cell(item.state), step, item.job_id or "-", plain(words))
    out = console()
    if shown:
        out.print(table)
    if len(shown) < len(found):
        print(f"{not_shown(found, shown)}; `slurmscale status --all {sweep.quoted}` shows every run")
    for line in lines_of_nodes(shown) if nodes else []:
        out.print(plain(line), soft_wrap=True)
    for line in decisions(shown):
        out.print(plain(line), soft_wrap=True)
    out.print(summary(found))
    if text := note_of(sweep):
        out.print(plain(f"note: {text}"), soft_wrap=True)
    if any(item.state is State.waiting for item in found) and not is_own(sweep):
        print(f"not submitted by you, so only shown; `slurmscale resume {sweep.quoted}` shows what it would run")
    around = stage_states(sweep)
    for line in stage_lines(around):
        out.print(line, soft_wrap=True)
    ends = [item.state for item in found] + [item.state for item in around]
    return int(check and not FAILED.isdisjoint(ends))


def decisions(found: Iterable[RunState]) -> Iterator[str]:
    """Yield a line for each decision on failed runs (STOP or RESTART, and the reason), with the names of the runs."""
    names: dict[str, list[str]] = {}
    for item in found:
        if item.state in FAILED and (decision := decision_on(item.run, events_or_failure(item.run))):
            names.setdefault(decision.words, []).append(item.run.name)
    for words, runs in names.items():
        more = f" and {len(runs) - NAMED_RUNS:,} more" if len(runs) > NAMED_RUNS else ""
        yield f"{words} ({', '.join(runs[:NAMED_RUNS])}{more})"


def state_cell(state: State, *, stands_out: bool = False) -> Text:
    """Return a state in its colour; one that stands out also on terminals without colours."""
    return plain(state.value, f"{COLOURS.get(state, '')}{' bold reverse' if stands_out else ''}".strip())


def lines_of_nodes(found: Collection[RunState]) -> list[str]:
    """Return one line for each node of the running runs, with its use."""
    return [f"{item.run.name} {line}" for item in found if item.state is State.running for line in node_lines(item.run)]


def look(sweep: SweepDir) -> list[RunState]:
    """Return the states of a sweep, after submitting as much of its backlog as Slurm accepts, if it is the user's."""
    if not is_own(sweep):
        return states(sweep)
    try:
        # Also if only one run of it is shown: places in the queue are for the whole sweep.
        for line in submit_backlog(sweep.whole):
            print(line)
    except SuiteError as error:
        print(f"The backlog of the sweep cannot be submitted: {error}", file=sys.stderr)
    found = states(sweep)
    try:
        lines = settle_orphans(sweep.whole, found)
    except SuiteError as error:
        print(f"Jobs that wait for a deleted one are left as they are: {error}", file=sys.stderr)
        return found
    for line in lines:
        print(line)
    return states(sweep) if lines else found


def not_shown(found: list[RunState], shown: list[RunState]) -> str:
    """Return the numbers of runs without a row, by state; empty if all have one."""
    hidden = Counter(item.state for item in found) - Counter(item.state for item in shown)
    return f"not shown: {per_state(hidden)}" if hidden else ""


def step_of(step: int | None, total: int | None) -> str:
    """Return the step, with the total if it is known."""
    return "-" if step is None else f"{step}/{total}" if total else str(step)


def summary(found: list[RunState]) -> str:
    """Return the numbers of runs, in total and by state."""
    return f"{counted(len(found))}: {per_state(Counter(item.state for item in found))}"


def per_state(counts: Counter[State]) -> str:
    """Return numbers of runs by state as text."""
    return ", ".join(f"{counts[state]} {state.value}" for state in State if counts[state])


def resume(
    path: Path,
    *,
    launcher: str | None,
    wait: bool | None,
    trust: bool = False,
    but: Collection[State] = (),
    without: Collection[str] = (),
) -> int:
    """Launch again every run that has not finished and is not alive; each continues from its last checkpoint.

    A run directory stands for that run only. Runs in one of the states `but`, and those of the names `without`, are
    left as they are. A run whose configuration is damaged is named, and the exit code is that of a refusal. Raises
    SubmitError for a sweep that this user did not submit, unless `trust` puts it into the user's record.
    """
    sweep = open_sweep(path)
    # The lock: of two shells that resume at once, the second sees the launches of the first.
    with held(sweep):
        trust_or_refuse(sweep, trust=trust)
        moved = submit_waiting(sweep)
        found = states(sweep)
        if orphans := settle_orphans(sweep.whole, found):
            moved += orphans
            found = states(sweep)
        done = {State.finished, *but}
        todo = [
            item.run for item in found if not (item.state in done or item.state.is_open or item.run.name in without)
        ]
        # In the order of their submission: the runs of a campaign alternate with those of its baseline.
        order = {name: place for place, name in enumerate(latest_submissions(sweep))}
        todo.sort(key=lambda directory: order.get(directory.name, len(order)))
        for line in moved:
            print(line)
        print(f"{summary(found)}; {len(todo)} to resume")
        if warning := divergence_warning(todo):
            print(warning)
        runs, damaged = launchable(todo)
        for line in damaged:
            print(line, file=sys.stderr)
        missing = missing_stages(sweep, found)

        def chain_of(run: Run) -> tuple[LauncherKind, str]:
            return LauncherKind[launcher] if launcher else run.launcher.kind, str(run.stages)

        # One launch has one launcher and one set of stages.
        chains = list(dict.fromkeys(map(chain_of, [*(run for run, _ in runs), *(each.run for each in missing)])))
        for chain in chains:
            its_runs = [(run, directory) for run, directory in runs if chain_of(run) == chain]
            its_stages = [each for each in missing if chain_of(each.run) == chain]
            for line in launch(sweep.whole, its_runs, chain[0], its_stages):
                print(line)
    idle = [kind for kind, _ in chains if not kind.starts_runs]
    for kind in idle:
        print(nothing_started(kind, wait=bool(wait)))
    # Also without anything to resume: the user wants to wait for what runs.
    is_waited_for = wait or any(waits(wait, kind) for kind, _ in chains)
    code = wait_for(sweep) if is_waited_for and not (idle and len(idle) == len(chains)) else 0
    return 2 if damaged else code


def divergence_warning(runs: Sequence[RunDir]) -> str | None:
    """Return a warning that runs which diverged will do so again when they are resumed; None if no run diverged."""
    ends = {run.name: end_of(latest_attempt(events_or_failure(run))) or {} for run in runs}
    diverged = [
        f"{name} (step {end.get('step', 'unknown')})"
        for name, end in ends.items()
        if recorded_cause(end) is FailureCause.diverged
    ]
    if not diverged:
        return None
    return (
        f"Diverged: {', '.join(diverged)}. A resumed run continues from its last checkpoint with the same settings and "
        "samples, so it will diverge again unless the hardware was at fault. To change a setting submit another run, "
        "for instance with a lower job.learning_rate."
    )


def pause_s(found: Sequence[RunState | StageState]) -> float:
    """Return the seconds until the next refresh: more if a scheduler is asked, 0 if nothing is open."""
    alive = [item for item in found if item.state.is_open]
    return 0.0 if not alive else QUEUE_POLL_S if any(is_in_queue(item.launcher) for item in alive) else POLL_S


def wait_for(
    sweep: SweepDir, known: Collection[str] = (), watch: Callable[[Sequence[RunState]], bool] | None = None
) -> int:
    """Print a line for each run that ends; return 1 if one did not finish, 130 if the user stops waiting.

    Runs of the names `known` get no line. `watch` sees the states at every look, and returns True if it cancelled or
    resumed runs.
    """
    shown, told = set(known), Watched(sweep)
    found: list[RunState] = []
    try:
        while True:
            found = look(sweep)
            told.tell(found)
            if watch is not None and watch(found):
                found = states(sweep)
            around = stage_states(sweep)
            for item in found:
                if not item.state.is_open and item.run.name not in shown:
                    shown.add(item.run.name)
                    line = f"[{len(shown)}/{len(found)}] {item.run.name}: {item.state.value} {item.detail}"
                    print(line.rstrip(), flush=True)
            if not pause_s([*found, *around]):
                break
            time.sleep(pause_s([*found, *around]))
        for launcher, _ in by_launcher(found):
            launcher.finish()
    except KeyboardInterrupt:
        stopped = [text for launcher, _ in by_launcher(found) if (text := launcher.interrupt())]
        goes_on = f"No longer waiting; the runs continue. Run `slurmscale status {sweep.quoted}` to see them."
        print(*(stopped or [goes_on]), sep="\n")
        return 130
    for line in stage_lines(around):
        print(line)
    return exit_code([*found, *around])


def exit_code(found: Sequence[RunState | StageState]) -> int:
    """Return the exit code of a command that waited: 0 if every run and stage finished, else 1."""
    return 0 if all(item.state is State.finished for item in found) else 1
