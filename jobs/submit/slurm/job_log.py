"""Messages of Slurm, of srun and of the batch script in the log of a job."""

from __future__ import annotations

import re
from pathlib import Path

from jobs.files import UnsuitableFileError, read_tail
from jobs.rundir import BATCH_STARTED, NOT_STARTED, RunDir, SweepDir
from jobs.submit.sweeps.submissions import Submission

TAIL_BYTES = 65536
# Message of srun for failed tasks, the first one first: "srun: error: node02: task 1: Killed", "... tasks 0-3: Exited
# with exit code 1".
DEATH = re.compile(r"^srun: error: (\S+): tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
# Message of srun for a node that stopped answering.
NODE_FAILURE = re.compile(r"^srun: error: Node failure on (\S+)$", re.MULTILINE)
# Message of slurmstepd for a program that a node does not have: "slurmstepd: error: execve(): python: No such file ..."
EXECVE = re.compile(r"^slurmstepd\S*: error: execve\(\): (.+): (.+)$", re.MULTILINE)
# Lines that a rank did not print.
OF_SLURM = re.compile(r"(srun|slurmstepd\S*|slurmscale): ")
STARTED = re.compile(rf"^{BATCH_STARTED}, restart (\d{{1,9}})\b", re.MULTILINE)


def log_of(run: RunDir, submission: Submission) -> Path:
    """Return the log of the batch script of a submission, which is also that of rank 0."""
    return SweepDir(run.path.parent).output(submission.log_id or submission.job_id)


def tail(file: Path) -> str:
    """Return the last TAIL_BYTES of a log; empty if the file does not exist."""
    try:
        return read_tail(file, TAIL_BYTES)
    except (FileNotFoundError, UnsuitableFileError):
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


def node_failed_in_start(file: Path, restart: int) -> str | None:
    """Return the node whose failure ended a start, by srun's message after its line; None if srun reported none."""
    text = tail(file)
    starts = list(STARTED.finditer(text))
    for found, following in zip(starts, [*starts[1:], None], strict=True):
        if int(found[1]) == restart:
            printed = text[found.end() : following.start() if following else None]
            return next(iter(NODE_FAILURE.findall(printed)[-1:]), None)
    return None


def not_started(printed: str) -> str | None:
    """Return the reason for which a batch script started no ranks, with the last error that it printed, if any.

    `printed` is its output since its start.
    """
    before, found, after = printed.partition(NOT_STARTED)
    if not found:
        return None
    lines = own_lines(before)
    words = [line for line in lines if "error" in line.lower()] or lines
    return after.partition("\n")[0] + (f" ({words[-1]})" if words else "")


def own_lines(printed: str) -> list[str]:
    """Return the lines that the script and its rank 0 printed themselves since the start of the script."""
    # The rest of the line of the start comes first.
    lines = [line.strip() for line in printed.splitlines() if not line.startswith(", restart ")]
    return [line for line in lines if line and not OF_SLURM.match(line)]
