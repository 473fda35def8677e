"""A progress bar for long reads: on stderr, only in a terminal, and only after SHOWN_AFTER_S."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

SHOWN_AFTER_S = 1.0
REDRAWN_EVERY_S = 0.2
T = TypeVar("T")


def with_progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield the items unchanged; show `what` as the label of the bar."""
    if not sys.stderr.isatty():
        yield from items
        return
    with ExitStack() as stack:
        due, move = time.monotonic() + SHOWN_AFTER_S, None
        for done, item in enumerate(items, start=1):
            if time.monotonic() > due:
                due += REDRAWN_EVERY_S
                move = move or stack.enter_context(bar(total, what))
                move(done)
            yield item


@contextmanager
def bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Show a bar during the block; yield the function that sets the number of items done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from jobs.console import console

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)
