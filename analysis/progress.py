"""A bar that tells how far a long read is: on stderr, only in a terminal, and only once it takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SHOWN_AFTER_S = 1.0
T = TypeVar("T")


def with_progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items as they come; `what` they are stands before the bar."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    shown_at = time.monotonic() + SHOWN_AFTER_S
    task = bar.add_task("", total=total)
    try:
        for done, item in enumerate(items, start=1):
            bar.update(task, completed=done)
            if not bar.live.is_started and time.monotonic() > shown_at:
                bar.start()
            yield item
    finally:
        bar.stop()
