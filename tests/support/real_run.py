"""Real runs for tests: a run directory from overrides, and its ranks as real processes.

Ranks are forked from the test's process, which has imported torch already: a run then takes a second or two
instead of ten. They talk over gloo like any others.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkContext, ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch  # imported once here, for all forked ranks

from jobs.frozen import dump_run
from jobs.plan.compose import compose
from jobs.run import main
from jobs.run_events import run_events
from jobs.rundir import RunDir, append_event, load_run, read_records
from jobs.runtime.imports import import_litgpt_alone
from jobs.stages import evaluate as evaluation
from tests.support.waiting import limit_s

# OpenMP hangs in a fork of a process that has used its threads.
torch.set_num_threads(1)
import_litgpt_alone()  # as jobs.run does
importlib.import_module("jobs.work.train.loop")


# A model that trains in milliseconds and still has grouped-query attention, several layers and uneven shapes.
def last_of_each(overrides: Iterable[str]) -> list[str]:
    """Return overrides without those whose key a later one sets, since a sweep gives each key once."""
    return list({override.partition("=")[0]: override for override in overrides}.values())


SMALL_MODEL = (
    "model.layers=2",
    "model.hidden_size=48",
    "model.heads=4",
    "model.kv_heads=2",
    "model.head_size=12",
    "model.intermediate_size=80",
    "model.vocab_size=320",
    "model.max_sequence_length=64",
)
SMALL = (
    *SMALL_MODEL,
    "job.sequence_length=32",
    "job.micro_batch_size=1",
    "job.learning_rate=5e-3",
    "job.steps=6",
    "data=random",
    "data.max_samples=16",
)


def make_run(where: Path, *overrides: str, small: bool = True) -> RunDir:
    """A run directory below `where`, as submit prepares it but without a code snapshot."""
    given = [*(SMALL if small else ()), f"runs_dir={where}", "sweep=test", f"data.cache_dir={where}/cache", *overrides]
    run = compose(given, multirun=False)[0].run
    directory = RunDir(where / "test" / str(run.name))
    directory.path.mkdir(parents=True)
    directory.config.write_text(dump_run(run))
    append_event(directory, "prepared")
    return directory


# Many times what any run of the tests takes, since CI's machine may be slow for a while: it ends what would never end.
TIMEOUT_S = 400
FORK = multiprocessing.get_context("fork")


def rank_environment(rank: int, world: int, start: str) -> dict[str, str]:
    """Return the variables of a rank that no launcher started."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "SLURMSCALE_START": start}


def rank(directory: Path, rank: int, world: int, start: str) -> None:
    """One rank, from its start to its end."""
    _print_to(directory / f"rank{rank}.log")
    # The log of a rank that hangs has its stacks, before the test ends it.
    faulthandler.dump_traceback_later(0.9 * limit_s(TIMEOUT_S), file=2)
    os.environ.update(rank_environment(rank, world, start))
    main(str(directory))


def train(
    directory: RunDir,
    timeout_s: float = TIMEOUT_S,
    context: ForkContext | ForkServerContext = FORK,
    of_rank: Callable[[Path, int, int, str], None] = rank,
) -> list[int | None]:
    """Run all ranks of a run to their end; returns their exit codes."""
    world, start = load_run(directory.config).ranks, secrets.token_hex(8)
    ranks = [context.Process(target=of_rank, args=(directory.path, number, world, start)) for number in range(world)]
    for process in ranks:
        process.start()
    logs = [directory.path / f"rank{number}.log" for number in range(world)]
    return [_ended(process, log, timeout_s) for process, log in zip(ranks, logs, strict=True)]


def evaluate(directory: RunDir) -> int | None:
    """Run the stage that evaluates a run; returns its exit code."""
    process = FORK.Process(target=_evaluate, args=(directory.path,))
    process.start()
    return _ended(process, directory.path / "rank0.log", TIMEOUT_S)


def _ended(process: BaseProcess, log: Path, timeout_s: float) -> int | None:
    """Return the exit code of a process; one that does not end is killed, which its log records."""
    process.join(limit_s(timeout_s))
    if process.is_alive():
        process.kill()
        with log.open("a") as file:
            file.write(f"killed by the test: it still ran after {timeout_s} s\n")
    process.join()
    return process.exitcode


def _evaluate(directory: Path) -> None:
    _print_to(directory / "rank0.log")
    evaluation.main(str(directory))


def _print_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    # pytest turns warnings into errors; a real rank does not.
    warnings.resetwarnings()


def losses(directory: RunDir) -> list[float]:
    """Loss of every step, in order; a step computed twice counts as computed last."""
    return [row["loss"] for row in steps(directory)]


def steps(directory: RunDir) -> list[dict[str, float]]:
    """The record of every step, in order."""
    rows = {row["step"]: row for row in read_records(directory.metrics) if "step" in row}
    return [rows[step] for step in sorted(rows)]


def events(directory: RunDir, kind: str) -> list[dict[str, object]]:
    """The run's events of one kind."""
    return [event for event in run_events(directory) if event["event"] == kind]


def printed(directory: RunDir) -> str:
    """Return the output of all ranks."""
    return "\n".join(file.read_text() for file in sorted(directory.path.glob("rank*.log")))
