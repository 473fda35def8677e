"""The entry of every rank: `python -m jobs.run RUN_DIR`; launcher=local calls `main` through submitit.

Read the frozen configuration, check that the code is the submitted one, and do its work. torch is imported only
after these checks. A failure of any rank is recorded with rank and node before the process ends.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import metadata
from pathlib import Path

import jobs
from jobs.engines.engine import engine_of
from jobs.errors import ConfigError, RunDirError, SupersededError, before_torch_archive
from jobs.failure_causes import STOPS, KnownCauseError, cause_of, record_failure
from jobs.lease import Lease
from jobs.output import outlive_full_disk
from jobs.ranks import Rank, node_name, this_rank
from jobs.rundir import RunDir, load_run
from jobs.runtime import storage_io
from jobs.runtime.garbage import uncollected_imports
from jobs.runtime.gpus import limits as gpu_limits
from jobs.runtime.gpus.allocator import use_expandable_segments
from jobs.runtime.gpus.limits import gpus_limited
from jobs.runtime.node.system import system_recorded
from jobs.runtime.profiling.wrapped import start_under_profiler
from jobs.runtime.transport import listen_to_nccl, send_gloo_as_nccl, use_network
from jobs.runtime.watchdog import Watchdog
from jobs.schema import Run
from jobs.secrets import redacted_traceback
from jobs.versions import major_minor
from jobs.work.work import work_of

STDERR = 2
# What a rank has left to do after its work takes milliseconds; a profiler that writes its results then needs longer.
TEARDOWN_LIMIT_S = 300
SIGEV_THREAD = 2  # timer_create(2): the timer calls a function in a thread of its own


def run_rank(run_directory: str) -> None:
    """Run one rank, as the whole work of this process: its end is bounded too."""
    try:
        main(run_directory)
    except SystemExit as ended:
        end_at_last(ended.code if isinstance(ended.code, int) else 1)
        raise
    end_at_last(0)


def end_at_last(code: int, within_s: int = TEARDOWN_LIMIT_S) -> None:
    """Let this process end with an exit code after some time, if its teardown does not.

    On a loaded machine one of 92 runs hung in it: the destructors of torch and OpenMP wait for their
    threads, where no Python thread runs any more. So the C library calls _exit(code) from a thread of its own.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "timer_create"):  # a C library that has it in another one
        return
    timer = ctypes.c_void_p()
    event = Event(value=code, notify=SIGEV_THREAD, function=ctypes.cast(libc["_exit"], ctypes.c_void_p))
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
        # struct itimerspec: an interval of 0 and the time until the first call, each in seconds and nanoseconds.
        libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, within_s, 0), None)


class Event(ctypes.Structure):
    """struct sigevent of 64-bit Linux (bits/types/sigevent_t.h)."""

    _fields_ = (
        ("value", ctypes.c_long),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_byte * 32),
    )


def main(run_directory: str) -> None:
    """Run one rank of the run in this directory to its end."""
    outlive_full_disk()
    # After a crash of a library (SIGSEGV, SIGABRT) the rank's log contains the Python stacks of all threads.
    faulthandler.enable(STDERR)
    directory = RunDir(Path(run_directory))
    run = load_run(directory.config)
    rank = this_rank(run.ranks_per_node)
    lease = Lease(directory)
    try:
        refuse_other_code(directory)
        refuse_other_world(run.ranks, rank)
        end_when_asked()
        start_under_profiler(run, directory, rank)
        # The arithmetic libraries read this when they are loaded.
        os.environ["OMP_NUM_THREADS"] = str(run.engine.cpu_threads_per_rank)
        if run.ranks > 1:
            use_network(run.network)
        with gpus_limited(run, rank) as held, system_recorded(run, lease, rank, held):
            if run.ranks > 1:
                listen_to_nccl(directory.nccl_log(rank.rank))
                send_gloo_as_nccl()
            with suppress(metadata.PackageNotFoundError):  # a torch that was not installed by a package manager
                prepare_for_torch(run, metadata.version("torch"))
            with imports_watched(run, lease, rank), uncollected_imports():
                start = work_of(run).entry(run)
            phase = work_of(run).first_phase
            with nullcontext() if phase is None else storage_io.rank_recorded(run, directory, rank, phase):
                start(run, lease, rank)
    except SupersededError as error:
        print(f"slurmscale: {error}", flush=True)
    except BaseException as error:
        cause = before_torch_archive(error)
        if isinstance(cause, KnownCauseError):
            text, evidence = str(cause), cause.evidence
        else:
            text, evidence = "".join(traceback.format_exception_only(cause)).strip(), {}
        if not lease.is_lost():
            record_failure(directory, cause_of(cause), rank=rank.rank, node=node_name(), error=text, evidence=evidence)
        if not isinstance(error, Exception):
            raise
        # Printed here, since submitit would write the traceback of an exception to its result file as it is.
        print(redacted_traceback(error), end="", file=sys.stderr, flush=True)
        sys.exit(1)


@contextmanager
def imports_watched(run: Run, lease: Lease, rank: Rank) -> Iterator[None]:
    """End a run that still imports when its start-up has taken too long; afterwards its work has its own watchdog."""
    limit_s = run.engine.startup_limit_s
    watchdog = None if limit_s is None else Watchdog(lease, rank, limit_s, limit_s)
    try:
        yield
    finally:
        if watchdog is not None:
            watchdog.stop()


def end_when_asked() -> None:
    """Let the signals that ask a run to stop end this rank at once, until its workload handles them.

    Imports and the meeting of the ranks take minutes, and nothing needs saving. The exit code names the signal: who
    sent it, and whether the run restarts, is known to the scheduler.
    """

    def end(number: int, _frame: object) -> None:
        line = f"slurmscale: {STOPS[signal.Signals(number)].reason}, before training began: nothing to save\n"
        os.write(STDERR, line.encode())
        gpu_limits.release()
        os._exit(128 + number)

    for number in STOPS:
        signal.signal(number, end)


def prepare_for_torch(run: Run, version: str) -> None:
    """Refuse a torch that is too old for the engine, and set what torch reads when it is imported."""
    engine = engine_of(run)
    if engine.least_torch is not None and major_minor(version) < engine.least_torch:
        raise ConfigError(
            f"engine={run.engine.kind.name} needs torch {'.'.join(map(str, engine.least_torch))} or later, and this "
            f"node has {version}. Install it (INSTALL.md), set a container or cluster.python that has "
            "it, or engine=nemo."
        )
    if engine.sets_allocator:
        use_expandable_segments(os.environ, version)


def refuse_other_code(directory: RunDir) -> None:
    """Raise RunDirError if the imported code is not the run's snapshot."""
    running = Path(jobs.__file__).resolve().parent.parent
    if directory.code.exists() and running != directory.code_snapshot:
        raise RunDirError(
            f"This run was submitted with the code in {directory.code_snapshot}, but {running} was imported. "
            f"Set PYTHONSAFEPATH=1 PYTHONPATH={directory.code_snapshot} before python."
        )


def refuse_other_world(ranks: int, rank: Rank) -> None:
    """Raise RunDirError if the launcher started another number of ranks than planned."""
    if rank.world_size != ranks:
        raise RunDirError(
            f"The run was planned for {ranks} ranks (nodes x ranks_per_node), but {rank.world_size} were started. "
            f"Ask Slurm for the planned nodes and tasks, or submit again with the numbers you have."
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m jobs.run", description="Start one rank of a prepared run.")
    parser.add_argument("run_directory", help="the directory that `slurmscale submit` prepared")
    run_rank(parser.parse_args().run_directory)
