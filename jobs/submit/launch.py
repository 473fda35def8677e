"""Launching prepared runs: all or none, with every submission on record the moment it is one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import psutil

from jobs.errors import SubmitError
from jobs.plan.rules.rule import counted
from jobs.plan.rules.stages import CHAINING, stages_of
from jobs.rundir import RunDir, SweepDir
from jobs.schema import EngineKind, LauncherKind, Run
from jobs.submit import pbs, pilot_job, slurm_commands, stages
from jobs.submit.batch_script import code_environment, script_text
from jobs.submit.ledger import record_submission, uninterrupted
from jobs.submit.permissions import refuse_shared
from jobs.submit.slurm_arrays import arrays, submit_arrays, submit_pilots
from jobs.submit.stages import Unevaluated


def check(runs: list[Run]) -> None:
    """Refuse what the launcher is known not to take, before anything is prepared; raises SubmitError."""
    nemo = any(run.engine.kind is EngineKind.nemo for run in runs)
    missing = [name for name in ("torch", "nemo" if nemo else "litgpt") if find_spec(name) is None]
    if runs[0].launcher.kind is LauncherKind.local and missing:
        raise SubmitError(
            f"launcher=local trains on this machine, where Python has no {' and no '.join(missing)}. Type "
            "pip install torch==2.13.0, then pip install --editable "
            f"'.[{'train,nemo' if nemo else 'train'}]' in the checkout."
        )
    if runs[0].launcher.kind is LauncherKind.pbs_script:
        for run in runs:
            pbs.options(run)
    if runs[0].launcher.kind is LauncherKind.pilot:
        pilot_job.check(runs)
    if runs[0].launcher.kind is LauncherKind.slurm:
        slurm_commands.require()
        for partition, nodes, wall_time_min in {(r.cluster.partition, r.nodes, r.wall_time_min) for r in runs}:
            slurm_commands.refuse_beyond_partition(partition, nodes, wall_time_min)
        stages.refuse_beyond_partition(runs[0])


def launch(
    sweep: SweepDir, runs: list[tuple[Run, RunDir]], kind: LauncherKind, unevaluated: Sequence[Unevaluated] = ()
) -> list[str]:
    """Start the runs with this launcher, and the stages around them; return sentences for the user.

    Raises SubmitError when the launcher refuses any of them, RunDirError when others could change what they execute:
    then none of them is left queued.
    """
    if kind not in CHAINING and any(stages_of(run) for run, _ in runs):
        raise SubmitError(
            f"{sweep.path} has stages around training, and launcher={kind.name} sends no jobs that wait for "
            "each other. Type --launcher slurm or --launcher local."
        )
    try:
        refuse_shared(sweep.path)
        match kind:
            case LauncherKind.slurm:
                return submit_arrays(sweep, runs, unevaluated)
            case LauncherKind.pilot:
                return submit_pilots(sweep, runs)
            case LauncherKind.local:
                return launch_local(sweep, [directory for _, directory in runs], unevaluated)
            case LauncherKind.script:
                return write_scripts(sweep, runs)
            case LauncherKind.pbs_script:
                return write_pbs_scripts(sweep, runs)
            case LauncherKind.dry:
                return show_scripts(sweep, runs)
    except OSError as error:
        raise SubmitError(
            f"{error.filename or sweep.path}: {error.strerror or error}. Nothing was launched. Make room or choose "
            "another place with runs_dir=PATH."
        ) from error


# --- this machine --------------------------------------------------------------------------------------------


def launch_local(sweep: SweepDir, directories: list[RunDir], unevaluated: Sequence[Unevaluated] = ()) -> list[str]:
    """Start a queue of its own session that runs them one after the other, and outlives this shell."""
    queued = [*directories, *(each.directory for each in unevaluated)]
    with uninterrupted(), (sweep.logs / "queue.log").open("a") as log:
        queue = subprocess.Popen(
            [sys.executable, "-m", "jobs.submit.local_queue", str(sweep.path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=code_environment(queued[0].code.resolve()),
            text=True,
        )
        started = psutil.Process(queue.pid).create_time()
        for directory in directories:
            record_submission(sweep, directory, "local", str(queue.pid), process_started=started)
        stages.record_local(sweep, queued, str(queue.pid), started)
        assert queue.stdin is not None
        queue.stdin.write(json.dumps([directory.name for directory in queued]))
        queue.stdin.close()
    return [f"started {counted(len(queued))} on this machine, one after the other (process {queue.pid})"]


# --- by hand -------------------------------------------------------------------------------------------------


def write_scripts(sweep: SweepDir, runs: list[tuple[Run, RunDir]]) -> list[str]:
    """Leave job.sbatch in every run directory."""
    for run, directory in runs:
        directory.batch_script.write_text(script_text(run, directory, sweep))
    return [
        f"wrote the batch script of {counted(len(runs))}; submit with",
        *(f"    sbatch {shlex.quote(str(directory.batch_script))}" for _, directory in runs),
    ]


def write_pbs_scripts(sweep: SweepDir, runs: list[tuple[Run, RunDir]]) -> list[str]:
    """Leave job.pbs in every run directory."""
    for run, directory in runs:
        directory.pbs_script.write_text(pbs.script_text(run, directory, sweep))
    return [
        f"wrote the PBS job script of {counted(len(runs))}; submit with",
        *(f"    qsub {shlex.quote(str(directory.pbs_script))}" for _, directory in runs),
    ]


def show_scripts(sweep: SweepDir, runs: list[tuple[Run, RunDir]]) -> list[str]:
    """Show what the first run of each array would send."""
    groups = arrays(runs, len(runs))
    return [
        line
        for group in groups
        for line in (
            f"--- {group[0][1].name}: batch script of {counted(len(group))}",
            script_text(*group[0], sweep),
        )
    ] + stages.Chain(sweep, runs, (), len(runs)).scripts()
