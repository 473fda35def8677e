"""The processes of a run."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from jobs.rundir import RunDir, SweepDir, read_records
from jobs.submit.sweeps.submissions import latest_submissions


def job_id(run: RunDir) -> str:
    (record,) = [r for r in read_records(SweepDir(run.path.parent).submissions) if r["event"] == "submitted"]
    return str(record["job_id"])


def process_of(run: RunDir, rank: int) -> psutil.Process:
    """Return the process of a rank: Slurm's variables contain its number and job, its command line the sweep."""
    job_id = latest_submissions(SweepDir(run.path.parent))[run.name].job_id
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            environment = process.environ()
            array_task = f"{environment.get('SLURM_ARRAY_JOB_ID')}_{environment.get('SLURM_ARRAY_TASK_ID')}"
            of_this_job = job_id in {environment.get("SLURM_JOB_ID"), array_task}
            number = environment.get("SLURM_PROCID")
            if ours(process, run) and of_this_job and number == str(rank) and "python" in process.name():
                return process
    raise AssertionError(f"no process of rank {rank}")


def ours(process: psutil.Process, run: RunDir) -> bool:
    try:
        return str(run.path.parent) in " ".join(process.cmdline()) and process.pid != os.getpid()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
