"""Read many run directories at once, in several processes if there are many."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from analysis.load.run_directory import read_run
from analysis.run import RunResult
from jobs.files import confine

# Reading fewer runs takes less time than starting processes.
FEWEST_FOR_PROCESSES = 500
RUNS_AT_ONCE = 50
# A login node is shared.
MOST_PROCESSES = 8


class Task(NamedTuple):
    """A run directory to read."""

    path: Path
    submissions: Sequence[Mapping[str, Any]]
    """The records of the sweep's ledger on this run."""
    confined: Sequence[Path] = ()
    """The directories that no link of the run may lead out of."""


def results(tasks: Sequence[Task], *, may_spawn: bool) -> Iterator[RunResult]:
    """Yield the result of each run in order, read by several processes if there are many runs."""
    done = 0
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0))) if may_spawn else 1
    if len(tasks) >= FEWEST_FOR_PROCESSES and processes > 1:
        pool = ProcessPoolExecutor(
            processes,
            # A forked process could inherit a lock that another thread holds.
            multiprocessing.get_context("spawn"),
            # Ctrl-C reaches every process; only this one handles it.
            initializer=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
        )
        try:
            for result in pool.map(read_task, tasks, chunksize=RUNS_AT_ONCE):
                done += 1
                yield result
        except (OSError, BrokenProcessPool):
            # A limit on processes or memory was hit: this process reads the rest, more slowly.
            pass
        finally:
            pool.shutdown(cancel_futures=True)
    yield from map(read_task, tasks[done:])


def read_task(task: Task) -> RunResult:
    """Return the result of one run."""
    confine(task.confined)
    return read_run(task.path, task.submissions)
