"""Start a rank again under nsys or rocprofv3 (engine.profile.program), whatever its launcher; no torch.

Options are those of the Nsight Systems user guide (https://docs.nvidia.com/nsight-systems/UserGuide) and of rocprofv3
(https://rocm.docs.amd.com/projects/rocprofiler-sdk). Output of rank R: profiles/rank-R.nsys-rep, and
profiles/rank-R_results.pftrace.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from jobs.errors import ConfigError
from jobs.output import own_directory
from jobs.ranks import Rank, node_name
from jobs.rundir import RunDir
from jobs.runtime.machine import STAGING_S
from jobs.schema import Profiler, Run

WRAPPED = "SLURMSCALE_WRAPPED"
"""Set in the environment of a rank that its profiler has started."""


def start_under_profiler(run: Run, directory: RunDir, rank: Rank) -> None:
    """Replace this process by the profiler that starts the rank, if it is one of engine.profile.ranks.

    Raise ConfigError if the profiler is not on this node.
    """
    profile = run.engine.profile
    if not profile.wraps_ranks or rank.rank not in profile.ranks or WRAPPED in os.environ:
        return
    command = command_of(run, directory, rank.rank)
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(
            f"engine.profile.program={profile.program.name} needs {command[0]}, which is not on PATH on "
            f"{node_name()}. Load its module (cluster.modules), use a container that has it, or set "
            "engine.profile.program=torch."
        )
    own_directory(directory.profiles)
    os.environ[WRAPPED] = profile.program.name
    os.environ.pop(STAGING_S, None)  # the copying was over before the process that will be the rank
    command += [sys.executable, "-u", "-m", "jobs.run", str(directory.path)]
    print(f"rank {rank.rank}: {shlex.join(command)}", flush=True)
    os.execv(program, command)  # noqa: S606 (no shell is wanted)


def command_of(run: Run, directory: RunDir, rank: int) -> list[str]:
    """Return the command line of the profiler of a rank, before that of the rank."""
    profile, name = run.engine.profile, f"rank-{rank}"
    if profile.program is Profiler.rocprof:
        return ["rocprofv3", "--runtime-trace", "--output-format", "pftrace", "--output-directory",
                str(directory.profiles), "--output-file", name, "--"]  # fmt: skip
    # Steps: jobs.runtime.profiling.profiler starts and stops the recording by the call that this waits for.
    only = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if profile.steps else []
    return ["nsys", "profile", "--trace=cuda,nvtx,osrt,cudnn,cublas", "--sample=none", "--force-overwrite=true", *only,
            f"--output={directory.profiles / name}"]  # fmt: skip
