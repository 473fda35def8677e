"""Many run directories at once: what the cache has is not worked out again, the rest is shared among processes.

A run's result is plain data between processes and in the cache, so that one that was kept is what reading would give.
"""

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

import orjson

from analysis.cache import Shelf, cache_directory, digest
from analysis.load.run_directory import RunResult, run_of
from analysis.load.run_files import Contents, contents_of, stamp_of
from analysis.metrics.energy import Energy
from analysis.metrics.goodput import Loss
from analysis.progress import with_progress
from jobs import metrics as m

# Fewer are read before other processes have started.
FEWEST_FOR_PROCESSES = 500
RUNS_AT_ONCE = 50
# A login node is shared.
MOST_PROCESSES = 8


class Task(NamedTuple):
    """A run directory to read."""

    path: Path
    submissions: Sequence[Mapping[str, Any]]
    """What its sweep's ledger has on it."""
    metered: bool
    """Whether power readings lie in it. They are not kept: these files may be too many for memory, to tell changes."""


class Worked(NamedTuple):
    """What is worked out of a run."""

    stamp: list[Any] | None
    key: str | None
    """None where it is not to be kept."""
    text: bytes | None
    """Its result as JSON; None where that would change it."""


def read_all(tasks: Sequence[Task], *, use_cache: bool, may_spawn: bool) -> list[RunResult]:
    """The results of these runs, in their order."""
    folder = cache_directory() if use_cache else None
    shelves: dict[Path, Shelf] = {}
    places = [(task.path.parent, task.path.name) for task in tasks]
    for sweep, _ in places:
        if sweep not in shelves:
            shelves[sweep] = Shelf.of(sweep, folder)
    found: list[RunResult | None] = []
    for task, (sweep, name) in with_progress(
        zip(tasks, places, strict=True), len(tasks), "Looking for changes in runs"
    ):
        value = kept(task, name, shelves[sweep])
        found.append(None if value is None else decoded(task.path, unfolded(value, shelves[sweep])))
    rest = [number for number, run in enumerate(found) if run is None]
    worked = worked_out([tasks[number] for number in rest], may_spawn=may_spawn)
    for number, (stamp, key, text) in zip(rest, with_progress(worked, len(rest), "Reading runs"), strict=True):
        task, (sweep, name) = tasks[number], places[number]
        if text is None:
            found[number] = run_of(task.path, contents_of(task.path), task.submissions)
            continue
        value = orjson.loads(text)
        found[number] = decoded(task.path, value)
        if key is not None:
            shelves[sweep].put(name, key, folded(value, shelves[sweep]), stamp)
    for shelf in shelves.values():
        shelf.save()
    return [run for run in found if run is not None]


def kept(task: Task, name: str, shelf: Shelf) -> Any:
    """What the shelf has of a run as it is now; its files are read only where their stamp does not tell that."""
    if name not in shelf.entries:
        return None
    stamp = stamp_with_ledger(task)
    value = shelf.get_unchanged(name, stamp)
    if value is None and (key := key_of(task, contents_of(task.path))):
        value = shelf.get(name, key)
        if value is not None and stamp is not None:
            shelf.put(name, key, value, stamp)
    return value


def worked_out(tasks: Sequence[Task], *, may_spawn: bool) -> Iterator[Worked]:
    """What is worked out of each, in order, by several processes where there are many."""
    done = 0
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0))) if may_spawn else 1
    if len(tasks) >= FEWEST_FOR_PROCESSES and processes > 1:
        pool = ProcessPoolExecutor(
            processes,
            # Whatever threads there are here, a new process has none of them.
            multiprocessing.get_context("spawn"),
            # Ctrl-C reaches all of them; this one tells.
            initializer=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
        )
        try:
            for result in pool.map(work_out, tasks, chunksize=RUNS_AT_ONCE):
                done += 1
                yield result
        except (OSError, BrokenProcessPool):
            # A limit on processes or on memory: slower then, but not without an answer.
            pass
        finally:
            pool.shutdown(cancel_futures=True)
    yield from map(work_out, tasks[done:])


def work_out(task: Task) -> Worked:
    """A run's result as JSON with its stamp and its key."""
    # The stamp first: if a file changes while it is read, it is not what the stamp tells.
    stamp, contents = stamp_with_ledger(task), contents_of(task.path)
    return Worked(stamp, key_of(task, contents), encoded(run_of(task.path, contents, task.submissions)))


def stamp_with_ledger(task: Task) -> list[Any] | None:
    """The stamp of all that the key follows from; None where that may change unnoticed."""
    stamp = None if task.metered else stamp_of(task.path)
    return None if stamp is None else [*stamp, digest(b"ledger", submitted(task))]


def key_of(task: Task, contents: Contents) -> str | None:
    """The key of a run with these contents in the cache; None for one that is not to be kept.

    That is where there are power readings, and where a file cannot be read, which another time it may.
    """
    if task.metered:
        return None
    parts: list[bytes | None] = []
    for content in contents.values():
        if isinstance(content, OSError) and not isinstance(content, FileNotFoundError):
            return None
        parts.append(content if isinstance(content, bytes) else None)
    return digest(b"run", *parts, submitted(task))


def submitted(task: Task) -> bytes:
    """What stands for what the ledger has on a run."""
    return repr(task.submissions).encode(errors="surrogatepass")


def encoded(run: RunResult) -> bytes | None:
    """A result of ours without its path as JSON; None where JSON lacks such values, as dates and NaN."""
    value = {
        "config": run.config,
        "plan": run.plan,
        "provenance": run.provenance,
        "events": list(run.events),
        "state": run.state,
        "reason": run.reason,
        "values": {metric.name: value for metric, value in run.values.items()},
        # As two lists of numbers: a list for each pair takes several times as long to read.
        "losses": [list(run.losses), list(run.losses.values())],
        "steady_steps": run.steady_steps,
        "step_times_s": [list(run.step_times_s), list(run.step_times_s.values())],
        "lost_to": [[loss.cause, loss.starts, loss.time_s] for loss in run.lost_to],
        "energy": run.energy
        and {**vars(run.energy), "devices": [*run.energy.devices], "left_out": [*run.energy.left_out]},
    }
    try:
        text = orjson.dumps(value)
    except TypeError:
        return None
    return text if orjson.loads(text) == value else None


def folded(value: Mapping[str, Any], shelf: Shelf) -> dict[str, Any]:
    """An encoded result whose large parts are the shelf's: runs of one sweep have most of their settings in common."""
    sections = {name: shelf.share(section) for name, section in value["config"].items() if isinstance(section, dict)}
    # The order of the settings stays.
    config = value["config"] | dict.fromkeys(sections)
    shared = {name: shelf.share(value[name]) for name in ("plan", "provenance")}
    return {**value, **shared, "config": config, "sections": sections}


def unfolded(value: Mapping[str, Any], shelf: Shelf) -> dict[str, Any]:
    """The encoded result that was folded."""
    config = value["config"] | {name: shelf.shared[number] for name, number in value["sections"].items()}
    shared = {name: shelf.shared[value[name]] for name in ("plan", "provenance")}
    return {**value, **shared, "config": config}


def decoded(path: Path, value: Mapping[str, Any]) -> RunResult:
    """The result that was encoded, of a run directory at this path."""
    return RunResult(
        path,
        value["config"],
        value["plan"],
        value["provenance"],
        tuple(value["events"]),
        value["state"],
        value["reason"],
        values={m.REGISTRY[name]: number for name, number in value["values"].items()},
        losses=dict(zip(*value["losses"], strict=True)),
        steady_steps=value["steady_steps"],
        step_times_s=dict(zip(*value["step_times_s"], strict=True)),
        lost_to=[Loss(*loss) for loss in value["lost_to"]],
        energy=energy_decoded(value["energy"]),
    )


def energy_decoded(value: Mapping[str, Any] | None) -> Energy | None:
    """The energy that was encoded."""
    if value is None:
        return None
    return Energy(**{**value, "devices": tuple(value["devices"]), "left_out": tuple(value["left_out"])})
