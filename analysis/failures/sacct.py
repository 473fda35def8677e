"""Why a job ended, by a table of Slurm's sacct, alone or together with the job's log.

States as https://slurm.schedmd.com/sacct.html names them. The job's own row may hide the cause: a job whose step was
killed for its memory is FAILED, and only the step's row says OUT_OF_MEMORY. COMPLETED proves nothing: success is judged
by what a run leaves behind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from analysis.failures.signatures import SIGNALS, Ending, Weight
from analysis.failures.verdict import Verdict
from analysis.parsers import sacct
from analysis.parsers.base import Record, Text
from analysis.parsers.detect import read_log
from analysis.parsers.search import Search, blocks

STATES: Mapping[str, tuple[Ending, Weight]] = {
    "NODE_FAIL": (Ending.node_failure, Weight.fault),
    "BOOT_FAIL": (Ending.node_failure, Weight.fault),
    "OUT_OF_MEMORY": (Ending.out_of_host_memory, Weight.fault),
    "TIMEOUT": (Ending.time_limit, Weight.end),
    "PREEMPTED": (Ending.preempted, Weight.end),
    "REQUEUED": (Ending.requeued, Weight.end),
    "CANCELLED": (Ending.cancelled, Weight.signal),
}
# In these the job's own row may hide that a step was killed for its memory.
MAY_HIDE = {"FAILED", "TIMEOUT", "PREEMPTED", "CANCELLED"}
STEP = re.compile(r"(?P<job>[^.]+)(?:\.(?P<step>\w+).*)?")
EXIT_CODE = re.compile(r"(?P<code>\d+):(?P<signal>\d+)")
# A shell's exit code for a command that a signal ended is this and its number.
SHELL_SIGNAL = 128
# slurm-12_3.out, 12_3_0_log.out (submitit), train-12.err
LOG_NAME = re.compile(r"(?:slurm-|^)(\d+(?:_\d+)?)(?:\.|_\d+_log\.)|[-_.](\d+(?:_\d+)?)\.(?:out|err|log)$")
OWN_ID = Search(("*** STEP ", "*** JOB ", "StepId=", "SLURM_JOB_ID", "SLURM_JOBID"))
LOG_ID = re.compile(r"(?:\*\*\* (?:STEP|JOB) |StepId=|SLURM_JOB_?ID\W{1,3})(\d+(?:_\d+)?)")


def read_jobs(path: Path) -> dict[str, list[Record]]:
    """The rows of each job in whichever accounting tables a file holds: its own, then its steps', by the job's id.

    Of a job that was started again (`sacct --duplicates`) the rows of its last start. Raises OSError.
    """
    jobs: dict[str, list[Record]] = {}
    rows = [row for form, records in read_log(path) if form is sacct.FORMAT for row in records]
    for row in rows:
        named = STEP.fullmatch(row.texts.get(Text.job_id, ""))
        if named is not None and named["step"] is None:
            jobs[named["job"]] = [row]
        elif named is not None:
            jobs.setdefault(named["job"], []).append(row)
    return jobs


def ending_of_job(rows: Iterable[Record]) -> Verdict:
    """Why a job ended, by its rows."""
    rows = list(rows)
    own = next((row for row in rows if "." not in row.texts[Text.job_id]), None)
    steps = [row for row in rows if row is not own and not row.texts[Text.job_id].endswith(".extern")]
    state = "FAILED" if own is None else own.texts.get(Text.state, "")
    if state in MAY_HIDE:
        last = [row for row in steps if not row.texts[Text.job_id].endswith(".batch")][-1:]
        batch = [row for row in steps if row.texts[Text.job_id].endswith(".batch")]
        # A step before the last may have run out of memory and been tried again.
        for row in (*last, *batch):
            if row.texts.get(Text.state) == "OUT_OF_MEMORY":
                return proved(row, *STATES["OUT_OF_MEMORY"])
        if state == "FAILED":
            signals = [(row, ending) for row in (*last, *([own] if own else [])) if (ending := by_signal(row))]
            return proved(*signals[0], Weight.signal) if signals else Verdict(Ending.unknown)
    return proved(own, *STATES[state]) if own is not None and state in STATES else Verdict(Ending.unknown)


def by_signal(row: Record) -> Ending | None:
    """What the signal stands for that ended a job or step; None where none did, or another one."""
    found = EXIT_CODE.fullmatch(row.texts.get(Text.exit_code, ""))
    if found is None:
        return None
    return SIGNALS.get(int(found["signal"]) or int(found["code"]) - SHELL_SIGNAL)


def proved(row: Record, ending: Ending, weight: Weight) -> Verdict:
    """The verdict of a row, which is quoted in its own words."""
    code = row.texts.get(Text.exit_code)
    words = f"{row.texts[Text.job_id]} {row.texts.get(Text.state, 'without a state')}"
    return Verdict(ending, row.line, words + (f", exit code {code}" if code else ""), weight=weight)


def weighed(log: Verdict, job: Verdict) -> Verdict:
    """What the log of a job and its rows prove together.

    Of equal weight it is the log's word, which came first and says where; but a bare signal is explained by who sent
    it. A log that shows its program's end is believed whatever became of the job then.
    """
    if log.ending is Ending.succeeded or job.weight is None:
        return log
    if log.weight is None or job.weight.value < log.weight.value:
        return job
    return job if job.weight is log.weight is Weight.signal else log


def accounted(logs: Mapping[Path, Verdict], tables: Iterable[Path]) -> dict[Path, Verdict]:
    """The verdicts on these logs, each weighed against what accounting tables say of the job that wrote it.

    Raises OSError where a file cannot be read.
    """
    accounts = {job: (table.name, rows) for table in tables for job, rows in read_jobs(table).items()}
    found = dict(logs)
    for path, log in logs.items():
        job = job_of(path, accounts) if accounts else None
        if job is not None:
            name, rows = accounts[job]
            found[path] = weighed(log, replace(ending_of_job(rows), file=name))
    return found


def job_of(log: Path, known: Collection[str]) -> str | None:
    """Which of these jobs wrote a log, by its name or else by what Slurm wrote into it; None where that is not one.

    Raises OSError.
    """
    named = {each for found in LOG_NAME.finditer(log.name) for each in found.groups() if each in known}
    if not named:
        lines = OWN_ID.lines(blocks(log))
        named = {found[1] for line in lines for found in LOG_ID.finditer(line.text) if found[1] in known}
    return named.pop() if len(named) == 1 else None
