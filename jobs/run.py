"""The entry of every rank: `python -m jobs.run RUN_DIR`; launcher=local calls `main` through submitit.

Read the frozen configuration, check that the code is the submitted one, and do its work. torch is imported only
after these checks. A failure of any rank is recorded with rank and node before the process ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import traceback
from contextlib import nullcontext, suppress
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
from jobs.runtime.allocator import use_expandable_segments
from jobs.runtime.garbage import uncollected_imports
from jobs.runtime.system import system_recorded
from jobs.runtime.transport import listen_to_nccl, send_gloo_as_nccl, use_network
from jobs.runtime.wrapped import start_under_profiler
from jobs.schema import Run
from jobs.secrets import redacted_traceback
from jobs.versions import major_minor
from jobs.work.work import work_of

STDERR = 2


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
        with system_recorded(run, lease, rank):
            if run.ranks > 1:
                listen_to_nccl(directory.nccl_log(rank.rank))
                send_gloo_as_nccl()
            with suppress(metadata.PackageNotFoundError):  # a torch that was not installed by a package manager
                prepare_for_torch(run, metadata.version("torch"))
            with uncollected_imports():
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


def end_when_asked() -> None:
    """Let the signals that ask a run to stop end this rank at once, until its workload handles them.

    Imports and the meeting of the ranks take minutes, and nothing needs saving. The exit code names the signal: who
    sent it, and whether the run restarts, is known to the scheduler.
    """

    def end(number: int, _frame: object) -> None:
        line = f"slurmscale: {STOPS[signal.Signals(number)].reason}, before training began: nothing to save\n"
        os.write(STDERR, line.encode())
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
    main(parser.parse_args().run_directory)
