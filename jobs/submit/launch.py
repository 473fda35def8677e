"""Launching prepared runs: all or none, with every submission on record the moment it is one."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import psutil
from submitit.core.utils import FailedJobError, FailedSubmissionError

from jobs import run as entry
from jobs.errors import SubmitError
from jobs.rundir import RunDir, SweepDir, append_record, now, read_records
from jobs.schema import EngineKind, LauncherKind, Run
from jobs.submit import pbs, slurm
from jobs.submit.private import refuse_shared
from jobs.submit.script import code_environment, executor, resources, script_text


def check(runs: list[Run]) -> None:
    """Refuse what the launcher is known not to take, before anything is prepared; raises SubmitError."""
    native = all(run.engine.kind is EngineKind.native for run in runs)
    missing = [name for name in ("torch", "litgpt" if native else "nemo") if find_spec(name) is None]
    if runs[0].launcher.kind is LauncherKind.local and missing:
        raise SubmitError(
            f"launcher=local trains on this machine, where Python has no {' and no '.join(missing)}. Type "
            "pip install torch==2.13.0, then pip install --editable "
            f"'.[{'train' if native else 'train,nemo'}]' in the checkout."
        )
    if runs[0].launcher.kind is LauncherKind.pbs_script:
        for run in runs:
            pbs.options(run)
    if runs[0].launcher.kind is LauncherKind.slurm:
        slurm.require()
        for partition, nodes, wall_time_min in {(r.cluster.partition, r.nodes, r.wall_time_min) for r in runs}:
            slurm.refuse_beyond_partition(partition, nodes, wall_time_min)


def launch(sweep: SweepDir, runs: list[tuple[Run, RunDir]], kind: LauncherKind) -> list[str]:
    """Start the runs with this launcher and return sentences for the user.

    Raises SubmitError when the launcher refuses any of them, RunDirError when others could change what they execute:
    then none of them is left queued.
    """
    try:
        refuse_shared(sweep.path)
        match kind:
            case LauncherKind.slurm:
                return launch_slurm(sweep, runs)
            case LauncherKind.local:
                return launch_local(sweep, [directory for _, directory in runs])
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


# --- Slurm ---------------------------------------------------------------------------------------------------


def launch_slurm(sweep: SweepDir, runs: list[tuple[Run, RunDir]]) -> list[str]:
    """Submit through submitit: one job array for all runs with equal resources."""
    slurm.require()
    groups = arrays(runs, slurm.max_array_size() - 1)
    for group in groups:
        run, directory = group[0]
        try:
            slurm.test_script(script_text(run, directory, sweep))
        except SubmitError as error:
            raise SubmitError(f"sbatch refuses {described(group)}: {error}. Nothing was submitted.") from error
    submitted: list[str] = []
    try:
        for group in groups:
            with uninterrupted():
                job_ids = submit_array(sweep, group)
                submitted += job_ids
                for (_, directory), job_id in zip(group, job_ids, strict=True):
                    record_submission(sweep, directory, "slurm", job_id)
    except (SubmitError, OSError) as error:
        cancel_submitted(sweep, submitted, because=error)
        raise SubmitError(f"{error} Nothing of this submission is left in the queue.") from error
    arrays_text = f" in {len(groups)} job arrays" if 1 < len(groups) < len(runs) else ""
    return [f"submitted {counted(len(submitted))}{arrays_text}: {compressed(submitted)}"]


def described(group: list[tuple[Run, RunDir]]) -> str:
    """The runs of an array and what decides whether a site takes them."""
    run = group[0][0]
    wanted = {
        "cluster.partition": run.cluster.partition,
        "cluster.account": run.cluster.account,
        "cluster.qos": run.cluster.qos,
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "wall_time_min": run.wall_time_min,
    }
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{run.name}{more} ({', '.join(f'{key}={value}' for key, value in wanted.items() if value is not None)})"


def counted(runs: int) -> str:
    """So many runs, in words."""
    return f"{runs} run{'s' if runs != 1 else ''}"


def arrays(runs: list[tuple[Run, RunDir]], most: int) -> list[list[tuple[Run, RunDir]]]:
    """The runs grouped by equal resources and code, no group larger than the site's arrays may be."""
    groups: dict[str, list[tuple[Run, RunDir]]] = {}
    for run, directory in runs:
        key = json.dumps(resources(run, directory.code.resolve()), sort_keys=True)
        groups.setdefault(key, []).append((run, directory))
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]


def submit_array(sweep: SweepDir, group: list[tuple[Run, RunDir]]) -> list[str]:
    """One sbatch for the group; returns its job ids."""
    run, directory = group[0]
    submitter = executor(run, sweep, resources(run, directory.code.resolve()))
    try:
        with submitter.batch():
            jobs = [submitter.submit(entry.main, str(directory.path)) for _, directory in group]
    except (FailedJobError, FailedSubmissionError) as error:
        raise SubmitError(f"sbatch refused {described(group)}: {slurm.spoken(str(error))}.") from error
    return [str(job.job_id) for job in jobs]


def cancel_submitted(sweep: SweepDir, job_ids: list[str], *, because: Exception) -> None:
    """Take back what an unfinished submission had queued; raises SubmitError when Slurm does not let us."""
    try:
        slurm.cancel(job_ids)
    except SubmitError as error:
        raise SubmitError(
            f"{because} What was submitted before could not be cancelled ({error}). It is on record: type "
            f"`slurmscale cancel {sweep.path}`, or scancel {' '.join(job_ids)}."
        ) from error
    for job_id in job_ids:
        append_record(sweep.submissions, {"time": now(), "event": "cancelled", "job_id": job_id})


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back, for us and for sbatch, until a submission and its record are both done."""
    asked: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _frame: asked.append(number))
    # The mask is for sbatch, which inherits it; for us it would not do, since Python hears of a signal that any of
    # its threads lets through.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, previous)
    if asked:
        raise KeyboardInterrupt


def record_submission(sweep: SweepDir, directory: RunDir, launcher: str, job_id: str, **more: float) -> None:
    """Append to the ledger that a run went to the launcher under this id."""
    record = {
        "time": now(),
        "event": "submitted",
        "run": directory.name,
        "launcher": launcher,
        "job_id": job_id,
        "host": socket.gethostname(),
        "events_before": sum(1 for _ in read_records(directory.status)),
        **more,
    }
    append_record(sweep.submissions, record)


def compressed(job_ids: list[str]) -> str:
    """Job ids as a person reads them: 12_[0-3], 13."""
    counts: dict[str, int] = {}
    for job_id in job_ids:
        counts[job_id.split("_")[0]] = counts.get(job_id.split("_")[0], 0) + 1
    return ", ".join(f"{main}_[0-{count - 1}]" if count > 1 else main for main, count in counts.items())


# --- this machine --------------------------------------------------------------------------------------------


def launch_local(sweep: SweepDir, directories: list[RunDir]) -> list[str]:
    """Start a queue of its own session that runs them one after the other, and outlives this shell."""
    with uninterrupted(), (sweep.logs / "queue.log").open("a") as log:
        queue = subprocess.Popen(
            [sys.executable, "-m", "jobs.submit.local_queue", str(sweep.path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=code_environment(directories[0].code.resolve()),
            text=True,
        )
        started = psutil.Process(queue.pid).create_time()
        for directory in directories:
            record_submission(sweep, directory, "local", str(queue.pid), process_started=started)
        assert queue.stdin is not None
        queue.stdin.write(json.dumps([directory.name for directory in directories]))
        queue.stdin.close()
    return [f"started {counted(len(directories))} on this machine, one after the other (process {queue.pid})"]


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
    ]
