"""The records of Slurm's accounting about jobs that left the queue: one sacct for many jobs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from jobs.errors import SubmitError
from jobs.event_fields import JOB_ID
from jobs.submit.job_state import ENDED, GONE, STILL, JobState
from jobs.submit.scheduler_call import patience
from jobs.submit.slurm.call import SACCT_TIMEOUT_S, ask
from jobs.submit.slurm.commands import user_name
from jobs.submit.sweeps.submissions import Submission, tasks_of

# A row of sacct, among lines that wrappers of a site print. Names may contain anything. For a heterogeneous job, the
# row of its first component (12+0) counts, which has the batch script.
ACCOUNTED = re.compile(
    r"(?P<id>[0-9]+(?:_(?:[0-9]+|\[[0-9,%-]+\]))?)(?:\+0)?\|(?P<state>[A-Z_]+)\+?(?: by (?P<by>[^|]*))?"
    r"\|(?P<nodes>[^|]*)(?:\|(?P<submit>[^|]*)\|(?P<name>.*))?"
)
# Accounting prints local time, and the clock of a login node may differ.
CLOCKS_DIFFER = timedelta(minutes=30)


@dataclass(frozen=True)
class Start:
    """A start of a job or of tasks of an array, as accounting has it."""

    state: JobState
    job_id: str
    submit: str | None
    name: str | None
    """The name of the job."""

    def is_before(self, submission: Submission) -> bool:
        """Return True if it was submitted before the submission: it is another job of the same id."""
        if submission.time is None or not self.submit:
            return False
        with suppress(ValueError):
            began = datetime.fromisoformat(self.submit).astimezone()
            return began < datetime.fromisoformat(submission.time) - CLOCKS_DIFFER
        return False


@dataclass(frozen=True)
class Accounting:
    """The records of accounting about the requested jobs."""

    starts: Mapping[str, list[Start]]
    """The starts of each task by its id, the latest last."""
    unknown: str
    """The reason why a job has no start here."""

    @cached_property
    def arrays(self) -> set[str]:
        """The ids of the jobs, and of the arrays of the tasks, that accounting has."""
        return {name.partition("_")[0] for name in self.starts}

    def end_of(self, job_id: str, submission: Submission | None = None) -> JobState:
        """Return the final state of a job that left the queue, GONE if nobody knows it.

        The ids of jobs are used again: rows of another job than that of the submission are left out.
        """
        array = job_id.partition("_")[0]
        # An array that is cancelled before it starts has one row without tasks.
        rows = self.starts.get(job_id) or self.starts.get(array) or []
        own = of_submission(rows, submission)
        if not rows and array in self.arrays:
            # Accounting omits only tasks that were cancelled while they waited.
            return JobState("CANCELLED")
        if not own:
            return JobState(GONE, self.unknown)
        # -D lists each start of a requeued job; the last one is the present.
        if own[-1].state in ENDED:
            return own[-1]
        ends = [start for start in own if start.state in {"REQUEUED", *ENDED}]
        return JobState(GONE, f"{STILL}{own[-1].state}", last_end=ends[-1] if ends else None)


def accounting_of(job_ids: Iterable[str]) -> Accounting:
    """Ask accounting for jobs that left the queue; it lags by seconds."""
    # Whole arrays: for single tasks sacct omits those that were cancelled before they started. Options are not ids.
    arrays = sorted({job_id.partition("_")[0] for job_id in job_ids if JOB_ID.fullmatch(job_id)})
    starts: dict[str, list[Start]] = defaultdict(list)
    if not arrays:
        return Accounting(starts, "its id is not one of Slurm's")
    try:
        for start in accounted_starts(arrays):
            for task in tasks_of(start.job_id):
                starts[task].append(start)
    except SubmitError as error:
        return Accounting(starts, f"accounting does not answer: {error}")
    return Accounting(starts, "accounting has no record of it")


def accounted_starts(arrays: list[str]) -> Iterator[Start]:
    """Yield the starts of jobs and arrays as accounting has them; other lines than its rows are left out."""
    command = ("sacct", "-X", "-D", "-n", "-P", "-o", "JobID,State,NodeList,Submit,JobName", "-j", ",".join(arrays))
    # The next look asks again, and most states do not need it: a broken database must not slow every command down.
    with patience(0):
        printed = ask(*command, timeout_s=SACCT_TIMEOUT_S)
    for line in printed.splitlines():
        if row := ACCOUNTED.fullmatch(line):
            by = row["by"]  # "CANCELLED by 0"
            reason = f"by user {user_name(by)} with scancel" if by else None
            yield Start(JobState(row["state"], reason, nodes=row["nodes"]), row["id"], row["submit"], row["name"])


def of_submission(starts: list[Start], submission: Submission | None) -> list[JobState]:
    """Return the states of those starts of a job id that belong to a submission; an id may have been used before."""
    if submission is not None and submission.mark is not None:
        named = [start for start in starts if start.name == submission.mark]
        starts = named or [start for start in starts if not start.is_before(submission)]
    return [start.state for start in starts]
