"""A bar that tells how far a long read is: on stderr, only in a terminal, and only once it takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SHOWN_AFTER_S = 1.0
REDRAWN_EVERY_S = 0.2
T = TypeVar("T")


def with_progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items as they come; `what` they are stands before the bar."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    task = bar.add_task("", total=total)
    due = time.monotonic() + SHOWN_AFTER_S
    try:
        for done, item in enumerate(items, start=1):
            if time.monotonic() > due:
                due += REDRAWN_EVERY_S
                bar.start()
                bar.update(task, completed=done)
            yield item
    finally:
        bar.stop()
