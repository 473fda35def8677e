"""`slurmscale watch`: the state of a sweep, updated in a table that fits the terminal, or as lines without a terminal.

It reads the state as `status` does, as often as `--wait`; stopping it ends no run.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import zip_longest
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from jobs.console import console, plain
from jobs.fitted_table import FittedTable
from jobs.rundir import SweepDir
from jobs.submit.commands import (
    FAILED,
    POLL_S,
    exit_code,
    lines_of_nodes,
    look,
    not_shown,
    pause_s,
    state_cell,
    step_of,
    summary,
)
from jobs.submit.notices import Watched
from jobs.submit.stage_states import StageState, stage_lines, stage_states
from jobs.submit.states import RunState, State
from jobs.submit.sweeps.sweep_at import open_sweep
from jobs.submit.watching.progress import Progress, last_step, progress_of, since_last_step
from jobs.submit.watching.tensorboard import Curves
from jobs.submit.watching.watch_keys import Keys, Mode, Order, Screen, keys_of_terminal

TROUBLE = (State.held, State.suspended, State.failed, State.lost, State.ended, State.stopped)
# Header, the line with the numbers of hidden runs, the summary, and the line of the cursor.
LINES_BESIDE_ROWS = 4
# The remark on the chosen run, a message, and the keys.
LINES_OF_KEYS = 3
BAR_WIDTH = 12
# A narrower terminal needs its columns for text.
WIDTH_WITH_BARS = 110


def watch(path: Path, *, nodes: bool = False, tensorboard: bool = False) -> int:
    """Show a sweep until nothing of it is alive; return 1 if a run did not finish, 130 if the user leaves.

    With `nodes` also the use of each node of the running runs; with `tensorboard` write curves at every refresh.
    """
    sweep = open_sweep(path)
    out = console()
    curves = Curves(sweep) if tensorboard else None
    if curves:
        out.print(f"tensorboard --logdir {shlex.quote(str(curves.directory))} shows the curves", soft_wrap=True)
    try:
        found = in_a_table(sweep, out, curves, nodes=nodes) if out.is_terminal else in_lines(sweep, curves, nodes=nodes)
    except KeyboardInterrupt:
        out.print(
            f"No longer watching; the runs continue. Run `slurmscale watch {sweep.quoted}` to see them again, "
            f"`slurmscale cancel {sweep.quoted}` to end them.",
            soft_wrap=True,
        )
        return 130
    if any(item.state is State.prepared for item in found):
        out.print(
            f"A prepared run is not submitted. `slurmscale resume {sweep.quoted}` submits it; a preview (launcher=dry) "
            "is submitted by its `slurmscale submit` with another launcher.",
            soft_wrap=True,
        )
    return exit_code(found)


def in_a_table(sweep: SweepDir, out: Console, curves: Curves | None, *, nodes: bool) -> list[RunState | StageState]:
    """Redraw one table, or what a key shows instead, until nothing is alive; a key to leave is Ctrl-C."""
    told, screen = Watched(sweep), Screen()
    with keys_of_terminal() as keys, Live(console=out, auto_refresh=False) as live:
        while True:
            found, around = look(sweep), stage_states(sweep)
            told.tell(found)
            if curves:
                curves.update()
            below = [*(lines_of_nodes(found) if nodes else []), *stage_lines(around)]
            pause = pause_s([*found, *around])
            if keys is None or not pause:
                live.update(view(found, below, out), refresh=True)
            if not pause:
                return [*found, *around]
            if keys is None:
                time.sleep(pause)
                continue
            screen.found = found
            until_next_look(keys, screen, pause, partial(redraw, live, screen, below, out))


def until_next_look(keys: Keys, screen: Screen, pause: float, draw: Callable[[], None]) -> None:
    """Draw, and do what keys stand for, until it is time for the next look, or until a key has changed the states."""
    end = time.monotonic() + pause
    while (left := end - time.monotonic()) > 0:
        draw()
        key = keys.wait(min(left, POLL_S))
        if key is not None:
            screen.press(key)
        if screen.leaves:
            raise KeyboardInterrupt
        if screen.looks_again:
            screen.looks_again = False
            return


def redraw(live: Live, screen: Screen, below: list[str], out: Console) -> None:
    """Draw the table with the lines of keys, or the page of the chosen run."""
    live.update(drawn(screen, below, out), refresh=True)


def drawn(screen: Screen, below: list[str], out: Console) -> Group:
    """Return the table with the lines of keys, or the page of the chosen run."""
    room = max(1, out.height - LINES_BESIDE_ROWS - LINES_OF_KEYS - len(below))
    screen.shown = fitting(screen.found, room) if screen.order is Order.attention else screen.rows(room)
    chosen = screen.run
    if chosen is not None and screen.mode in {Mode.log, Mode.curve}:
        return Group(*screen.page(chosen, out.width, out.height))
    about = []
    if chosen is not None:
        about = [f"{chosen.run.name}: {remark(chosen, progress_of(chosen.run)) or chosen.state.value}"]
    return view(screen.found, [*below, *about, *screen.footer()], out, shown=screen.shown, chosen=chosen)


def in_lines(sweep: SweepDir, curves: Curves | None, *, nodes: bool) -> list[RunState | StageState]:
    """Print every change of the state or reason of a run, and a summary after each refresh with a change.

    With `nodes` also the use of each node, at each refresh that has a new value.
    """
    shown: dict[str, tuple[State, str]] = {}
    shown_stages: list[str] = []
    told = Watched(sweep)
    while True:
        found, around = look(sweep), stage_states(sweep)
        told.tell(found)
        if curves:
            curves.update()
        changed = [item for item in found if shown.get(item.run.name) != (item.state, item.detail)]
        for item in changed:
            shown[item.run.name] = (item.state, item.detail)
            step = last_step(item.run)
            at = "" if step is None else f"at step {step}"
            line = f"{time.strftime('%H:%M:%S')} {item.run.name}: {item.state.value}"
            print(" ".join(filter(None, [line, at, item.detail])), flush=True)
        if changed:
            print(summary(found), flush=True)
        lines = [*(lines_of_nodes(found) if nodes else []), *stage_lines(around)]
        for line in lines:
            if line not in shown_stages:
                print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
        shown_stages = lines
        if not pause_s([*found, *around]):
            return [*found, *around]
        time.sleep(pause_s([*found, *around]))


def view(
    found: list[RunState],
    below: list[str],
    out: Console,
    shown: list[RunState] | None = None,
    chosen: RunState | None = None,
) -> Group:
    """Return the table of the most important runs, as high as the terminal, the numbers of all runs, and more lines.

    `shown` are other runs to have rows; with a `chosen` one its row is marked.
    """
    if shown is None:
        shown = fitting(found, out.height - LINES_BESIDE_ROWS - len(below))
    bars = out.width >= WIDTH_WITH_BARS
    table = FittedTable(one_line=True)
    table.whole("run")
    table.whole("state")
    for name in (*([""] if bars else []), "step", "tokens/s", "left", "attempt"):
        table.number(name)
    table.text("")
    for item in shown:
        now = progress_of(item.run)
        bar = ProgressBar(total=now.total, completed=now.step or 0, width=BAR_WIDTH) if now.total else ""
        table.add_row(
            one_line(item.run.name if chosen is None else f"{'>' if item == chosen else ' '} {item.run.name}"),
            state_cell(item.state, stands_out=item.state in FAILED),
            *([bar] if bars else []),
            step_of(now.step, now.total),
            *pace(now if item.state is State.running else None),
            str(now.attempt or "-"),
            one_line(remark(item, now)),
        )
    return Group(table, one_line(not_shown(found, shown)), one_line(summary(found)), *map(one_line, below))


def one_line(words: str) -> Text:
    """Return a text that is cut instead of wrapped; names and errors are never markup."""
    return plain(" ".join(words.split()), no_wrap=True, overflow="ellipsis")


def pace(now: Progress | None) -> tuple[str, str]:
    """Return tokens per second and the time left of a running run."""
    if now is None or now.tokens_per_s is None:
        return "-", "-"
    left = "-" if now.left_s is None else str(timedelta(seconds=round(now.left_s)))
    return f"{now.tokens_per_s:,.0f}", left


def fitting(found: list[RunState], room: int) -> list[RunState]:
    """Choose running, troubled and next waiting runs in turn until `room` is full; then the others."""
    running = [item for item in found if item.state is State.running]
    trouble = [item for item in found if item.state in TROUBLE]
    waiting = sorted((item for item in found if item.state in {State.queued, State.waiting}), key=when)
    # In turn, so that many of one kind do not push the others off a small terminal.
    turns = [item for turn in zip_longest(running, trouble, waiting) for item in turn if item is not None]
    others = [item for item in found if item not in turns]
    chosen = {item.run for item in [*turns, *others][: max(room, 1)]}
    return [item for item in [*running, *trouble, *waiting, *others] if item.run in chosen]


def when(item: RunState) -> tuple[bool, str]:
    """Return the sort key of waiting runs: by expected start, runs without one last."""
    return (item.expected_start is None, item.expected_start or "")


def remark(item: RunState, now: Progress) -> str:
    """Return the details of a state, the expected start of a waiting run, and the last error before a restart."""
    start = f"expected to start {item.expected_start.replace('T', ' ')}" if item.expected_start else ""
    earlier = f"earlier: {now.last_error}" if item.state.is_alive and now.last_error else ""
    old = since_last_step(item.run) if item.state is State.running else ""
    return "; ".join(filter(None, [item.detail, old, start, earlier]))
