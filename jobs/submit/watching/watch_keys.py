"""Keys of `slurmscale watch` on a terminal: choose a run, read its output, see its curve, cancel it, sort, leave."""

from __future__ import annotations

import io
import itertools
import os
import re
import select
import sys
import termios
import textwrap
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from enum import Enum

from rich.text import Text

from jobs import metrics as m
from jobs.console import plain
from jobs.errors import SuiteError
from jobs.files import parse_json, read_tail
from jobs.rundir import RunDir
from jobs.submit.states import RunState
from jobs.submit.watching.progress import last_step, latest_tokens_per_s
from jobs.visible import COLOUR

LEAVE, UP, DOWN, BACK = "q", "\x1b[A", "\x1b[B", "\x1b"
ARROWS = {"\x1bOA": UP, "\x1bOB": DOWN, "k": UP, "j": DOWN}
HELP = "run: up, down; its log: l; its curve: c; cancel it: x; sort: s; leave: q"
HELP_BACK = "back to the runs: any key"
# About ten thousand steps of metrics.jsonl.
CURVE_BYTES = 4 << 20
LABEL_WIDTH = 10
# Title, keys, and the line of the cursor.
LINES_AROUND_PAGE = 3
KEY_BYTES = 64
CURVES = (m.LOSS, m.TOKENS_PER_S)


class Order(Enum):
    """The orders of rows; the value is shown."""

    attention = "what needs attention"
    name = "name"
    step = "step"
    speed = "speed"


class Mode(Enum):
    """What is shown."""

    runs = "runs"
    log = "log"
    curve = "curve"
    question = "question"


@dataclass
class Screen:
    """The state of the display between two keys."""

    found: list[RunState] = field(default_factory=list)
    shown: list[RunState] = field(default_factory=list)
    """The runs with a row, in the order of the rows."""
    mode: Mode = Mode.runs
    order: Order = Order.attention
    chosen: str | None = None
    """The name of the chosen run."""
    message: str = ""
    leaves: bool = False
    looks_again: bool = False
    """A key has changed the states."""

    @property
    def run(self) -> RunState | None:
        """The chosen run, the first one if the chosen one has no row."""
        return next((each for each in self.shown if each.run.name == self.chosen), next(iter(self.shown), None))

    def press(self, key: str) -> None:
        """Do what a key stands for."""
        self.message = ""
        if self.mode is Mode.question:
            self.mode = Mode.runs
            self.message = self.cancelled() if key == "y" else "Nothing was cancelled."
        elif self.mode is not Mode.runs:
            self.mode = Mode.runs
        elif key == LEAVE:
            self.leaves = True
        elif key in {UP, DOWN}:
            self.move(1 if key == DOWN else -1)
        elif key == "s":
            orders = list(Order)
            self.order = orders[(orders.index(self.order) + 1) % len(orders)]
            self.message = f"Sorted by {self.order.value}."
        elif self.run is None:
            self.message = "There is no run to choose."
        elif key in {"l", "c"}:
            self.mode = Mode.log if key == "l" else Mode.curve
        elif key == "x":
            if self.run.state.is_alive:
                self.mode = Mode.question
            else:
                self.message = f"{self.run.run.name} is {self.run.state.value}: there is nothing to cancel."

    def move(self, by: int) -> None:
        """Choose the next or previous run."""
        names = [each.run.name for each in self.shown]
        if self.run is not None:
            self.chosen = names[max(0, min(len(names) - 1, names.index(self.run.run.name) + by))]

    def cancelled(self) -> str:
        """Cancel the chosen run, and return what `slurmscale cancel` reports."""
        from jobs.submit.cancel import cancel_run  # noqa: PLC0415 (only for this key)

        assert self.run is not None
        self.looks_again = True
        printed = io.StringIO()
        try:
            with redirect_stdout(printed), redirect_stderr(printed):
                cancel_run(self.run.run)
        except SuiteError as error:
            return str(error)
        return printed.getvalue()

    def rows(self, room: int) -> list[RunState]:
        """Return the runs in an order other than by attention that fit, the chosen one among them."""
        orders: dict[Order, Callable[[RunState], tuple[float, str]]] = {Order.step: by_step, Order.speed: by_speed}
        every = sorted(self.found, key=orders.get(self.order, by_name))
        place = next((i for i, each in enumerate(every) if each.run.name == self.chosen), 0)
        # One row beyond the chosen one, so that the arrows go on.
        start = max(0, min(place + 2 - room, len(every) - room))
        return every[start : start + room]

    def footer(self) -> list[str]:
        """Return the lines below the table: the question or message, and the keys."""
        if self.mode is Mode.question and self.run is not None:
            return [f"Cancel {self.run.run.name}, which is {self.run.state.value}? yes: y; no: any other key"]
        return [*filter(None, [self.message]), HELP]

    def page(self, chosen: RunState, width: int, height: int) -> list[Text]:
        """Return the output or the curves of the chosen run, as wide and high as the terminal."""
        room = max(1, height - LINES_AROUND_PAGE)
        lines = (
            last_lines(chosen.run, width)[-room:] if self.mode is Mode.log else curves(chosen.run, width, room)[:room]
        )
        title = f"{chosen.run.name}: {chosen.state.value} {chosen.detail}".rstrip()
        cut = [plain(" ".join(line.split("\t")), no_wrap=True, overflow="ellipsis") for line in lines]
        return [plain(title, "bold", no_wrap=True, overflow="ellipsis"), *cut, plain(HELP_BACK, "dim", no_wrap=True)]


def by_name(found: RunState) -> tuple[float, str]:
    """Return the sort key by name."""
    return 0.0, found.run.name


def by_step(found: RunState) -> tuple[float, str]:
    """Return the sort key by step, the run that is farthest first."""
    return -(last_step(found.run) or 0), found.run.name


def by_speed(found: RunState) -> tuple[float, str]:
    """Return the sort key by tokens/s of the last step, the fastest first."""
    return -next(iter(latest_tokens_per_s(found.run)), 0.0), found.run.name


def last_lines(run: RunDir, width: int) -> list[str]:
    """Return the end of the output of rank 0, without colours; the reason if there is none."""
    from jobs.submit.watching.logs import logs_answer  # noqa: PLC0415 (reads the configuration)

    try:
        found = logs_answer(run.path, rank=0).last_lines
    except SuiteError as error:
        return textwrap.wrap(str(error), width)
    # Of a progress bar that rewrites its line, the last state.
    return [re.sub(COLOUR, "", line.rpartition("\r")[2]) for line in found] or ["(no output yet)"]


# --- curves --------------------------------------------------------------------------------------------------------


def curves(run: RunDir, width: int, height: int) -> list[str]:
    """Return the metrics of CURVES that a run has over its steps, drawn in characters."""
    try:
        tail = read_tail(run.metrics, CURVE_BYTES)
    except OSError:
        tail = ""
    rows = list(steps_in(tail))
    drawn = []
    for metric in CURVES:
        found = [(row[m.STEP.name], value) for row in rows if (value := value_of(row, metric.name)) is not None]
        if found:
            drawn.append((metric, found))
    if not drawn:
        return [f"No step is recorded in {run.metrics.name} yet."]
    each = max(4, height // len(drawn)) - 2
    lines = []
    for metric, found in drawn:
        steps, values = zip(*found, strict=True)
        heading = f"{metric.name} ({metric.unit}), steps {steps[0]:,} to {steps[-1]:,}, now {values[-1]:,.4g}"
        lines += [heading, *chart(values, width - LABEL_WIDTH - 2, each), ""]
    return lines[:-1]


def steps_in(tail: str) -> Iterator[dict[str, float]]:
    """Yield the steps in the last lines of metrics.jsonl; the first line may be torn."""
    for line in tail.splitlines():
        with suppress(ValueError):
            row = parse_json(line)
            if isinstance(row, dict) and isinstance(row.get(m.STEP.name), int):
                yield row


def value_of(row: dict[str, float], name: str) -> float | None:
    """Return a metric of a step, the tokens/s from tokens and time; None if it is absent or not a number."""
    if name == m.TOKENS_PER_S.name:
        tokens, seconds = row.get(m.TOKENS.name), row.get(m.STEP_TIME.name)
        return tokens / seconds if isinstance(tokens, (int, float)) and isinstance(seconds, float) and seconds else None
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def chart(values: Sequence[float], width: int, height: int) -> list[str]:
    """Return lines of a curve, in each column the mean of as many steps, with the largest and smallest at the left."""
    width = max(1, min(width, len(values)))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    levels = [round((value - low) / (high - low) * (height - 1)) if high > low else 0 for value in means]
    lines = []
    for level in reversed(range(height)):
        label = f"{high:,.4g}" if level == height - 1 else f"{low:,.4g}" if level == 0 else ""
        lines.append(f"{label:>{LABEL_WIDTH}} |" + "".join("*" if each == level else " " for each in levels).rstrip())
    return lines


# --- the terminal --------------------------------------------------------------------------------------------------


@contextmanager
def keys_of_terminal() -> Iterator[Keys | None]:
    """Read single keys without echo while inside; None if standard input is not the terminal of this session."""
    try:
        keys = Keys(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):
        yield None
        return
    try:
        keys.hold()
        yield keys
    finally:
        keys.release()


class Keys:
    """Single keys of a terminal. Ctrl-C and Ctrl-Z keep their meaning."""

    def __init__(self, descriptor: int) -> None:
        """Remember how the terminal is set; raise OSError or termios.error if it is none, or of another session."""
        self.descriptor = descriptor
        os.tcgetpgrp(descriptor)
        self.before = termios.tcgetattr(descriptor)

    @property
    def in_foreground(self) -> bool:
        """Return whether this process may change the terminal; one in the background would be stopped."""
        return os.tcgetpgrp(self.descriptor) == os.getpgrp()

    def hold(self) -> bool:
        """Set the terminal for single keys; return whether that is possible now.

        Again before each key: a shell that continues a stopped command has set the terminal for itself.
        """
        if in_foreground := self.in_foreground:
            tty.setcbreak(self.descriptor, termios.TCSADRAIN)
        return in_foreground

    def release(self) -> None:
        """Set the terminal as it was."""
        with suppress(OSError, termios.error):  # the terminal is gone
            if self.in_foreground:
                termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self.before)

    def wait(self, seconds: float) -> str | None:
        """Return the next key; None if there is none for some seconds."""
        ready, _, _ = select.select([self.descriptor] if self.hold() else [], [], [], seconds)
        if not ready:
            return None
        typed = os.read(self.descriptor, KEY_BYTES).decode(errors="replace")
        if not typed:
            raise KeyboardInterrupt  # the terminal is gone
        # An arrow is several bytes; of other keys that were typed ahead only the first counts.
        whole = typed if typed.startswith(BACK) else typed[0]
        return ARROWS.get(whole[:3], whole[:3])
