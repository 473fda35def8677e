"""Messages of Slurm, of srun and of the batch script in the log of a job."""

from __future__ import annotations

import os
import re
from pathlib import Path

from submitit.core.utils import JobPaths

from jobs.rundir import BATCH_STARTED, RunDir, SweepDir
from jobs.submit.submissions import Submission

TAIL_BYTES = 65536
# Message of srun for failed tasks, the first one first: "srun: error: node02: task 1: Killed", "... tasks 0-3: Exited
# with exit code 1".
DEATH = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
# Message of srun for a node that stopped answering.
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)$", re.MULTILINE)
STARTED = re.compile(rf"^{BATCH_STARTED}, restart (\d+)", re.MULTILINE)


def log_of(run: RunDir, submission: Submission) -> Path:
    """Return the log of the batch script of a submission, which is also that of rank 0."""
    return Path(JobPaths(SweepDir(run.path.parent).logs, submission.log_id or submission.job_id, 0).stdout)


def tail(file: Path) -> str:
    """Return the last TAIL_BYTES of a log; empty if there is none."""
    try:
        with file.open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL_BYTES))
            return output.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def printed_since_start(file: Path) -> str:
    """Return the output of a job since the latest start of its batch script."""
    return tail(file).rpartition(BATCH_STARTED)[2]


def restarts(file: Path) -> int:
    """Return the number of restarts before the latest start of the batch script; 0 if its log does not contain it."""
    return max((int(number) for number in STARTED.findall(tail(file))), default=0)


def failed_node(file: Path) -> str | None:
    """Return the node that failed last, by the messages of srun; None if srun was on it, or reported none."""
    return next(iter(NODE_FAILURE.findall(tail(file))[-1:]), None)
