"""The failures of runs that did not finish, each with its proof.

For a run directory the proof is its own record, else its logs, else Slurm's accounting. Only the latest submission
counts, and in a log only the lines since the job was last started. A symptom that a rank recorded gives way to a
statement of the machine or of Slurm that explains it. For another program's log the verdict on that log is used.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from analysis.failures.sacct import read_jobs, verdict_on_job
from analysis.failures.signatures import matches, search
from analysis.failures.verdict import Verdict, decide, in_words
from analysis.formatting import short
from analysis.parsers.base import Line, Record
from analysis.parsers.search import Search, blocks
from analysis.run import RunResult
from jobs.failure_causes import FailureCause, end_of, latest_attempt, recorded_cause
from jobs.run_events import NUMBER, unseen
from jobs.rundir import BATCH_STARTED, SweepDir
from jobs.submit.sweeps.submissions import Submission, submissions_on_record

LONGEST_PROOF = 240
DIED = {"failed", "stopped", "unfinished"}
# Queued, or its ranks never met.
NEVER_BEGAN = "not started"
# A user may write `sacct --parsable2 ... > sacct.txt` into the directory of Slurm's output.
TABLES = "sacct*"
MOST_LOGS = 64
LOG_NAME = re.compile(r"(?P<id>.+)_(?P<rank>\d{1,9})_log\.out")
STEP_LINE = re.compile(r"step \d+/\d+  loss ")


@dataclass(frozen=True)
class Failure:
    """The failure of a run as a report prints it; a proof is `slurm-12.out:7: srun: error: task 1: Killed`."""

    cause: FailureCause
    proof: str | None = None
    specific_advice: str = field(default="", compare=False)
    """The remedy for the proof; empty for that of the cause."""
    possible: FailureCause | None = None
    """The cause that the proof hints at, where the cause is unknown."""

    @classmethod
    def of(cls, file: str, verdict: Verdict) -> Failure:
        """Return the failure of the log with this name; the proof may be in another file."""
        line = verdict.proof or ""
        proof = f"{verdict.file or file}:{verdict.line}: {short(line, LONGEST_PROOF)}"
        if verdict.rank is not None and not re.search(rf"\brank[ :=]*{verdict.rank}\b", line, re.IGNORECASE):
            where = "" if verdict.host is None or verdict.host in line else f" on {verdict.host}"
            proof += f" (rank {verdict.rank}{where})"
        return cls(verdict.cause, proof, verdict.advice, verdict.possible)

    @property
    def advice(self) -> str:
        """The remedy."""
        return self.specific_advice or (self.possible or self.cause).advice

    @property
    def words(self) -> str:
        """The cause as text."""
        return in_words(self.cause, self.possible).replace("gpu", "GPU")


@dataclass(frozen=True)
class Sweep:
    """The ledger, logs and accounting of a sweep directory."""

    submissions: Mapping[str, Submission]
    logs: Mapping[str, Sequence[Path]]
    """By the id in their names, rank 0's first: it also contains the output of the batch script and of Slurm."""
    accounts: Mapping[str, tuple[str, list[Record]]]
    """By job: the name of the table's file, and the job's rows."""


def failures(runs: Sequence[RunResult]) -> dict[Path, Failure]:
    """Return the failure of each run that died, by its path.

    Runs that never began, and other programs' logs, are included only where there is a proof.
    """
    logs = {run.path: run.log.verdict for run in runs if run.log and run.log.verdict and run.log.verdict.weight}
    unfinished = [run for run in runs if run.log is None and run.state in {*DIED, NEVER_BEGAN}]
    sweeps = {path: read_sweep(path) for path in {run.path.parent for run in unfinished}}
    found = {run.path: failure_of(run, sweeps[run.path.parent]) for run in unfinished}
    died = {run.path for run in unfinished if run.state in DIED}
    kept = {path: each for path, each in found.items() if path in died or each.cause is not FailureCause.unknown}
    return kept | {path: Failure.of(path.name, verdict) for path, verdict in logs.items()}


def read_sweep(path: Path) -> Sweep:
    """Read the ledger, logs and accounting tables of a sweep directory; skip what cannot be read."""
    directory = SweepDir(path)
    submissions: Mapping[str, Submission] = {}
    # The ledger may have been written by another program.
    with suppress(OSError, KeyError, TypeError):
        submissions = submissions_on_record(directory)
    accounts: dict[str, tuple[str, list[Record]]] = {}
    for file in sorted([*path.glob(TABLES), *directory.logs.glob(TABLES)]):
        with suppress(OSError):
            accounts |= {job: (file.name, rows) for job, rows in read_jobs(file).items()}
    logs: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for file in directory.logs.glob("*_log.out"):
        if named := LOG_NAME.fullmatch(file.name):
            logs[named["id"]].append((int(named["rank"]), file))
    return Sweep(
        {name: each for name, each in submissions.items() if is_well_formed(each)},
        {log_id: [file for _, file in sorted(ranked)] for log_id, ranked in logs.items()},
        accounts,
    )


def is_well_formed(submission: Submission) -> bool:
    """Return True if the fields of a ledger record have the types that slurmscale writes."""
    ids = submission.job_id, submission.log_id or ""
    return all(isinstance(each, str) for each in ids) and type(submission.events_before) is int


def failure_of(run: RunResult, sweep: Sweep) -> Failure:
    """Return the failure of a run."""
    submission = sweep.submissions.get(run.path.name) or submitted_by_hand(run)
    silent = not since(run.events, submission)
    if silent and end_of(latest_attempt(run.events)) is not None:
        # Submitted again without an event since: its earlier end is listed.
        submission = None
    found = [*by_events(run.events, submission)]
    if submission is not None:
        found += [*by_logs(sweep, submission), *by_accounting(sweep, submission)]
    first = found[0] if found else Failure(FailureCause.unknown)
    if first.cause.is_symptom:
        return next((each for each in found if each.cause.explains_symptoms), first)
    return first


def submitted_by_hand(run: RunResult) -> Submission | None:
    """Return the submission of a run whose script a user gave to sbatch: only the run itself recorded the job."""
    job_id = run.started.get("job_id")
    return Submission(run.name, "slurm", job_id, 0, log_id=job_id) if isinstance(job_id, str) else None


# --- the sources of a proof ------------------------------------------------------------------------------------


def since(events: Sequence[Mapping[str, Any]], submission: Submission | None) -> Sequence[Mapping[str, Any]]:
    """Return the events of a run since it was last submitted; all of them without a submission."""
    if submission is None:
        return events
    return unseen(events, submission.events_before, submission.failures_before)


def by_events(events: Sequence[Mapping[str, Any]], submission: Submission | None) -> Iterator[Failure]:
    """Yield the failure that the run itself recorded since it was last submitted."""
    attempt = latest_attempt(since(events, submission))
    end = end_of(attempt) or next((event for event in attempt if event["event"] == "requeued"), None)
    if submission is not None and submission.cancelled and (end is None or end["event"] == "stopped"):
        yield Failure(FailureCause.cancelled, "submissions.jsonl: cancelled by `slurmscale cancel`")
    elif end is not None and (cause := recorded_cause(end)) is not None:
        file = "failures/" if NUMBER in end else "status.jsonl"
        proof = end.get("proof") or f"{file}: {end['event']}, cause {end['cause']}"
        yield Failure(cause, proof, end.get("advice", ""))


def by_logs(sweep: Sweep, submission: Submission) -> Iterator[Failure]:
    """Yield the failure that the output of the ranks, the batch script and Slurm proves; none where logs disagree."""
    files = sweep.logs.get(submission.log_id or "", ())[:MOST_LOGS]
    if files and starts(files[0]) > 1:
        # The other logs of a job that was started again do not name the start that wrote them.
        files = files[:1]
    found = strongest(files)
    if len({verdict.cause for _, verdict in found}) == 1:
        yield Failure.of(*found[0])


def strongest(files: Iterable[Path]) -> list[tuple[str, Verdict]]:
    """Return the strongest verdict on the last start in logs of one job, or equally strong ones, with names of logs."""
    found = [(file.name, verdict) for file in files for verdict in verdicts_on_start(file)]
    heaviest = min((verdict.weight.value for _, verdict in found if verdict.weight), default=None)
    return [(name, verdict) for name, verdict in found if verdict.weight and verdict.weight.value == heaviest]


def starts(file: Path) -> int:
    """Return how often the job that wrote a log was started, by the lines of its batch script; 0 if unreadable."""
    with suppress(OSError):
        return sum(line.text.startswith(BATCH_STARTED) for line in Search((BATCH_STARTED,)).lines(blocks(file)))
    return 0


@cache
def our_logs() -> Search:
    """Return the search for the lines that are relevant in a log of ours."""
    return Search((*search().markers, BATCH_STARTED, "  loss "))


def verdicts_on_start(file: Path) -> Iterator[Verdict]:
    """Yield the verdict on the last start in a log; none where the log cannot be read or proves nothing."""
    lines: list[Line] = []
    steps: list[int] = []
    with suppress(OSError):
        for line in our_logs().lines(blocks(file)):
            if line.text.startswith(BATCH_STARTED):
                lines = []
            elif STEP_LINE.match(line.text):
                steps.append(line.number)
            else:
                lines.append(line)
    verdict = decide(matches(lines), steps)
    if verdict.weight is not None:
        yield verdict


def by_accounting(sweep: Sweep, submission: Submission) -> Iterator[Failure]:
    """Yield the failure that accounting proves of the run's job; none for a pilot, whose job is shared by runs."""
    if submission.has_own_job and submission.job_id in sweep.accounts:
        name, rows = sweep.accounts[submission.job_id]
        verdict = verdict_on_job(rows)
        if verdict.weight is not None:
            yield Failure.of(name, verdict)
