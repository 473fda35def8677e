"""Why runs ended that did not finish. Of ours: what they recorded, else what they printed, else Slurm's accounting.

Only what belongs to the latest submission counts, and of a log what was printed since the job was last started. What a
rank could only see of another one's death gives way to what the machine says of itself. Of other people's logs it is
what analysis.failures.verdict says.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.failures.sacct import ending_of_job, read_jobs
from analysis.failures.signatures import SEARCH, Ending, evidence
from analysis.failures.verdict import Verdict, verdict
from analysis.formatting import short
from analysis.load.run_directory import RunResult
from analysis.parsers.base import Line, Record
from analysis.parsers.search import Search, blocks
from jobs.causes import Cause, end_of, latest_attempt
from jobs.rundir import BATCH_STARTED, SweepDir
from jobs.submit.submissions import Submission, submissions_on_record

ENDINGS: Mapping[Cause, Ending] = {
    Cause.time_limit: Ending.time_limit,
    Cause.preempted: Ending.preempted,
    Cause.lost_peer: Ending.network,
    Cause.killed: Ending.killed,
    Cause.hung: Ending.collective_timeout,
    Cause.hardware: Ending.hardware,
    # Unless the error's words say that it was the GPU's.
    Cause.out_of_memory: Ending.out_of_host_memory,
    Cause.refused: Ending.configuration_error,
    Cause.code: Ending.code_error,
}
# What a death leaves behind, whatever it died of ...
TRACES = {Ending.network, Ending.killed, Ending.unknown}
# ... and what the machine and Slurm say that explains it.
EXPLANATIONS = {
    Ending.out_of_host_memory,
    Ending.hardware,
    Ending.node_failure,
    Ending.time_limit,
    Ending.preempted,
}
LONGEST_PROOF = 240
DIED = {"failed", "stopped", "unfinished"}
# It waits for its turn, or its ranks never met.
NEVER_BEGAN = "not started"
GPU_MEMORY = re.compile(r"(?:CUDA|HIP|XPU) out of memory")
# Where Slurm's output goes, a person may put `sacct --parsable2 ... > sacct.txt`.
TABLES = "sacct*"
MOST_LOGS = 64
LOG_NAME = re.compile(r"(?P<id>.+)_(?P<rank>\d{1,9})_log\.out")
STEP_LINE = re.compile(r"step \d+/\d+  loss ")
OF_OUR_LOGS = Search((*SEARCH.needles, BATCH_STARTED, "  loss "))


@dataclass(frozen=True)
class Ended:
    """Why a run ended, as a report says it: the proof is `slurm-12.out:7: srun: error: node02: task 1: Killed`."""

    ending: Ending
    proof: str | None = None

    @classmethod
    def of(cls, file: str, said: Verdict) -> Ended:
        """The verdict on a file, or on a log whose proof is elsewhere."""
        return cls(said.ending, f"{said.file or file}:{said.line}: {short(said.proof or '', LONGEST_PROOF)}")

    @property
    def words(self) -> str:
        """The ending for a person."""
        return self.ending.name.replace("_", " ").replace("gpu", "GPU")

    @property
    def advice(self) -> str:
        """What to do, in one sentence."""
        return self.ending.value


@dataclass(frozen=True)
class Sweep:
    """What a sweep directory tells of the ends of its runs."""

    submissions: Mapping[str, Submission]
    logs: Mapping[str, Sequence[Path]]
    """By the id in their names, rank 0's first: it has what the batch script and Slurm print, too."""
    accounts: Mapping[str, tuple[str, list[Record]]]
    """By job: the name of the table's file, and the job's rows."""


def endings(runs: Sequence[RunResult]) -> dict[Path, Ended]:
    """Why each run ended that died, by its path.

    Of runs that never began, and of other people's logs, only those of which something tells.
    """
    logs = {run.path: run.log.verdict for run in runs if run.log and run.log.verdict and run.log.verdict.weight}
    unfinished = [run for run in runs if run.log is None and run.state in {*DIED, NEVER_BEGAN}]
    sweeps = {path: read_sweep(path) for path in {run.path.parent for run in unfinished}}
    found = {run.path: ended(run, sweeps[run.path.parent]) for run in unfinished}
    died = {run.path for run in unfinished if run.state in DIED}
    told = {path: each for path, each in found.items() if path in died or each.ending is not Ending.unknown}
    return told | {path: Ended.of(path.name, said) for path, said in logs.items()}


def read_sweep(path: Path) -> Sweep:
    """The ledger of a sweep, and the accounting tables that lie in it; what cannot be read tells nothing."""
    directory = SweepDir(path)
    submissions: Mapping[str, Submission] = {}
    # Anyone may have written the ledger.
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
        {name: each for name, each in submissions.items() if is_whole(each)},
        {log_id: [file for _, file in sorted(ranked)] for log_id, ranked in logs.items()},
        accounts,
    )


def is_whole(submission: Submission) -> bool:
    """Whether a record of the ledger is of the kind that we write."""
    ids = submission.job_id, submission.log_id or ""
    return all(isinstance(each, str) for each in ids) and type(submission.events_before) is int


def ended(run: RunResult, sweep: Sweep) -> Ended:
    """Why a run ended."""
    submission = sweep.submissions.get(run.path.name) or by_hand(run)
    silent = submission is not None and submission.events_before >= len(run.events)
    if silent and end_of(latest_attempt(run.events)) is not None:
        # Submitted again, and without a word since: what is listed is how it ended before.
        submission = None
    found = [*by_events(run.events, submission)]
    if submission is not None:
        found += [*by_logs(sweep, submission), *by_accounting(sweep, submission)]
    first = found[0] if found else Ended(Ending.unknown)
    if first.ending in TRACES:
        return next((each for each in found if each.ending in EXPLANATIONS), first)
    return first


def by_hand(run: RunResult) -> Submission | None:
    """The submission of a run whose script a person gave to sbatch: only the run itself knows of it."""
    job_id = run.started.get("job_id")
    return Submission(run.name, "slurm", job_id, 0, log_id=job_id) if isinstance(job_id, str) else None


# --- where it may be told --------------------------------------------------------------------------------------


def by_events(events: Sequence[Mapping[str, Any]], submission: Submission | None) -> Iterator[Ended]:
    """What the run itself recorded since it was last submitted."""
    attempt = latest_attempt(events[submission.events_before if submission else 0 :])
    end = end_of(attempt) or next((event for event in attempt if event["event"] == "requeued"), None)
    if submission is not None and submission.cancelled and (end is None or end["event"] == "stopped"):
        yield Ended(Ending.cancelled, "submissions.jsonl: cancelled by `slurmscale cancel`")
        return
    cause = Cause.__members__.get(str(end.get("cause"))) if end is not None else None
    if end is None or cause is None:
        return
    in_gpu = cause is Cause.out_of_memory and GPU_MEMORY.search(str(end.get("error")))
    ending = Ending.out_of_gpu_memory if in_gpu else ENDINGS[cause]
    yield Ended(ending, f"status.jsonl: {end['event']}, cause {cause.name}")


def by_logs(sweep: Sweep, submission: Submission) -> Iterator[Ended]:
    """What its ranks, the batch script and Slurm printed; nothing where logs contradict each other."""
    files = sweep.logs.get(submission.log_id or "", ())[:MOST_LOGS]
    if files and starts(files[0]) > 1:
        # Of a job that was started again, the other logs do not tell which start they are of.
        files = files[:1]
    found = [(file.name, said) for file in files for said in printed(file)]
    heaviest = min((said.weight.value for _, said in found if said.weight), default=None)
    told = [(name, said) for name, said in found if said.weight and said.weight.value == heaviest]
    if len({said.ending for _, said in told}) == 1:
        name, said = told[0]
        yield Ended.of(name, said)


def starts(file: Path) -> int:
    """How often the job that wrote a log was started, as far as its batch script said so."""
    with suppress(OSError):
        return sum(line.text.startswith(BATCH_STARTED) for line in Search((BATCH_STARTED,)).lines(blocks(file)))
    return 0


def printed(file: Path) -> Iterator[Verdict]:
    """What a log proves of the end of its last start, if it can be read and proves anything."""
    lines: list[Line] = []
    progress = 0
    with suppress(OSError):
        for line in OF_OUR_LOGS.lines(blocks(file)):
            if line.text.startswith(BATCH_STARTED):
                lines = []
            elif STEP_LINE.match(line.text):
                progress = line.number
            else:
                lines.append(line)
    said = verdict(evidence(lines), last_progress=progress)
    if said.weight is not None:
        yield said


def by_accounting(sweep: Sweep, submission: Submission) -> Iterator[Ended]:
    """What accounting says of its job; a pilot's job is not the run's own."""
    if submission.has_own_job and submission.job_id in sweep.accounts:
        name, rows = sweep.accounts[submission.job_id]
        said = ending_of_job(rows)
        if said.weight is not None:
            yield Ended.of(name, said)
