"""The verdict on a job by a table of Slurm's sacct, alone or together with the job's log.

The states are those of https://slurm.schedmd.com/sacct.html. The job's own row may hide the cause: a job whose step ran
out of memory is FAILED, and only the step's row contains OUT_OF_MEMORY. COMPLETED proves nothing: success is judged by
the artefacts of a run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from analysis.failures.catalogue import Weight
from analysis.failures.exceptions import SHELL_SIGNAL, SIGNALS
from analysis.failures.verdict import Verdict
from analysis.parsers.base import Record, Text
from analysis.parsers.cluster import sacct
from analysis.parsers.detect import read_log
from analysis.parsers.search import Search, blocks
from jobs.failure_causes import FailureCause

STATES: Mapping[str, tuple[FailureCause, Weight]] = {
    "NODE_FAIL": (FailureCause.node_failure, Weight.fault),
    "BOOT_FAIL": (FailureCause.node_failure, Weight.fault),
    "OUT_OF_MEMORY": (FailureCause.out_of_host_memory, Weight.fault),
    "TIMEOUT": (FailureCause.time_limit, Weight.end),
    "DEADLINE": (FailureCause.time_limit, Weight.end),
    "LAUNCH_FAILED": (FailureCause.launch_failure, Weight.end),
    "RECONFIG_FAIL": (FailureCause.node_failure, Weight.fault),
    "PREEMPTED": (FailureCause.preempted, Weight.end),
    "REQUEUED": (FailureCause.requeued, Weight.end),
    "CANCELLED": (FailureCause.cancelled, Weight.signal),
}
# With these states the job's own row may hide that a step ran out of memory.
MAY_HIDE = {"FAILED", "TIMEOUT", "PREEMPTED", "CANCELLED"}
# 12, 12_3.batch; 12+0 and 12+1.0 are of a heterogeneous job, whose logs have the number of its first component.
STEP = re.compile(r"(?P<job>[^.+]+)(?:\+(?P<component>\d+))?(?:\.(?P<step>\w+).*)?")
EXIT_CODE = re.compile(r"(?P<code>\d+):(?P<signal>\d+)")
# slurm-12_3.out, 12_3_0_log.out (submitit), train-12.err
LOG_NAME = re.compile(r"(?:slurm-|^)(\d+(?:_\d+)?)(?:\.|_\d+_log\.)|[-_.](\d+(?:_\d+)?)\.(?:out|err|log)$")
OWN_ID = Search(("*** STEP ", "*** JOB ", "StepId=", "SLURM_JOB_ID", "SLURM_JOBID"))
LOG_ID = re.compile(r"(?:\*\*\* (?:STEP|JOB) |StepId=|SLURM_JOB_?ID\W{1,3})(\d+(?:_\d+)?)")


def read_jobs(path: Path) -> dict[str, list[Record]]:
    """Return the rows of each job in the accounting tables of a file, by job id: the job's own row, then its steps'.

    For a job that was started again (`sacct --duplicates`) these are the rows of its last start. Raises OSError.
    """
    jobs: dict[str, list[Record]] = {}
    rows = [row for form, records in read_log(path) if form is sacct.FORMAT for row in records]
    for row in rows:
        named = STEP.fullmatch(row.texts.get(Text.job_id, ""))
        if named is not None and named["step"] is None and named["component"] in {None, "0"}:
            jobs[named["job"]] = [row]
        elif named is not None:
            jobs.setdefault(named["job"], []).append(row)
    return jobs


def verdict_on_job(rows: Iterable[Record]) -> Verdict:
    """Return the verdict that the rows of a job prove."""
    rows = list(rows)
    own = next((row for row in rows if "." not in row.texts[Text.job_id]), None)
    steps = [row for row in rows if row is not own and not row.texts[Text.job_id].endswith(".extern")]
    state = "FAILED" if own is None else own.texts.get(Text.state, "")
    if state in MAY_HIDE:
        last = [row for row in steps if not row.texts[Text.job_id].endswith(".batch")][-1:]
        batch = [row for row in steps if row.texts[Text.job_id].endswith(".batch")]
        # A step before the last may have run out of memory and been repeated.
        for row in (*last, *batch):
            if row.texts.get(Text.state) == "OUT_OF_MEMORY":
                return verdict_by(row, *STATES["OUT_OF_MEMORY"])
        if state == "FAILED":
            signals = [(row, cause) for row in (*last, *([own] if own else [])) if (cause := cause_by_signal(row))]
            return verdict_by(*signals[0], Weight.signal) if signals else Verdict(FailureCause.unknown)
    return verdict_by(own, *STATES[state]) if own is not None and state in STATES else Verdict(FailureCause.unknown)


def cause_by_signal(row: Record) -> FailureCause | None:
    """Return the cause of the signal that ended a job or step; None if there is none, or it is not listed."""
    found = EXIT_CODE.fullmatch(row.texts.get(Text.exit_code, ""))
    if found is None:
        return None
    return SIGNALS.get(int(found["signal"]) or int(found["code"]) - SHELL_SIGNAL)


def verdict_by(row: Record, cause: FailureCause, weight: Weight) -> Verdict:
    """Return a verdict whose proof quotes this row."""
    code = row.texts.get(Text.exit_code)
    words = f"{row.texts[Text.job_id]} {row.texts.get(Text.state, 'without a state')}"
    return Verdict(cause, row.line, words + (f", exit code {code}" if code else ""), weight=weight)


def stronger(log: Verdict, job: Verdict) -> Verdict:
    """Return the verdict on a log or the one on its job, whichever proves more.

    With equal weight the log decides, because it names the line; but where both are bare signals the job decides,
    because its state names the sender.
    """
    if job.weight is None:
        return log
    if log.weight is None or job.weight.value < log.weight.value:
        return job
    return job if job.weight is log.weight is Weight.signal else log


def accounted(logs: Mapping[Path, Verdict], tables: Iterable[Path]) -> dict[Path, Verdict]:
    """Return the verdicts on these logs, each combined with the accounting of the job that wrote the log.

    A file that has gone since its verdict was read adds nothing.
    """
    accounts: dict[str, tuple[str, list[Record]]] = {}
    for table in tables:
        with suppress(OSError):
            accounts |= {job: (table.name, rows) for job, rows in read_jobs(table).items()}
    found = dict(logs)
    for path, log in logs.items():
        job = job_of(path, accounts) if accounts else None
        if job is not None:
            name, rows = accounts[job]
            found[path] = stronger(log, replace(verdict_on_job(rows), file=name))
    return found


def job_of(log: Path, known: Collection[str]) -> str | None:
    """Return the one known job that wrote a log, by the log's name or else by Slurm's messages in it; else None."""
    named = {each for found in LOG_NAME.finditer(log.name) for each in found.groups() if each in known}
    if not named:
        named = job_ids(log) & set(known)
    return named.pop() if len(named) == 1 else None


def job_ids(log: Path) -> set[str]:
    """Return the ids of Slurm jobs in Slurm's own lines of a log; empty if it cannot be read."""
    with suppress(OSError):
        return {found[1] for line in OWN_ID.lines(blocks(log)) for found in LOG_ID.finditer(line.text)}
    return set()
