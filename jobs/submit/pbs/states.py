"""The state of a job of PBS in the words that all launchers share (jobs.submit.job_state), from `qstat -x -f`."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from jobs.submit.job_state import UNKNOWN, JobState

# What job_state is called by Slurm. T: in transit to a queue or server; W: waits for its time; B: an array that began.
ALIVE = {
    "B": "RUNNING",
    "E": "COMPLETING",
    "H": "PENDING",
    "Q": "PENDING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "T": "PENDING",
    "U": "SUSPENDED",
    "W": "PENDING",
}
# Substate of a job that qdel ended, before or while it ran; 92 is one that finished, 93 one that failed.
TERMINATED = 91
# A script that a signal ended has 256 and its number.
BY_SIGNAL = 256
# Ends by PBS itself: negative codes.
BY_PBS = {
    -25: ("FAILED", "PBS ended it: it used more CPUs than it had asked for. Set cluster.cpus_per_rank"),
    -26: ("OUT_OF_MEMORY", "PBS ended it: it used more virtual memory than it had asked for"),
    -27: ("OUT_OF_MEMORY", "PBS ended it: it used more memory than it had asked for. Set cluster.memory_gb_per_node"),
    -28: ("TIMEOUT", "PBS ended it: it used more CPU time than it had asked for"),
    -29: ("TIMEOUT", "PBS ended it at its walltime. Set wall_time_min"),
}
# The end of a comment that repeats the state: "Job run at ... and finished".
ENDS = re.compile(r" and (?:finished|failed|terminated|exceeded resource \w+)$")


def state_of(job: Mapping[str, Any]) -> JobState:
    """Return the state of a job from its attributes."""
    described = f"{job.get('Job_Name', '')}|{job.get('Submit_arguments', '')}"
    letter, comment = str(job.get("job_state", "")), str(job.get("comment", ""))
    if letter in ALIVE:
        state = ALIVE[letter]
        return JobState(state, reason(job, comment) if state == "PENDING" else None, nodes=nodes_of(job),
                        described=described)  # fmt: skip
    if letter == "M":
        return JobState(UNKNOWN, "PBS moved it to another server: ask there", described=described)
    state, why = end_of(job)
    return JobState(state, why, nodes=nodes_of(job), described=described)


def reason(job: Mapping[str, Any], comment: str) -> str | None:
    """Return why a job waits: its holds, the jobs that it depends on, or the scheduler's comment."""
    if job.get("job_state") == "H":
        holds = str(job.get("Hold_Types", "n"))
        if "s" in holds and (before := jobs_before(job)):
            return f"waits for job {', '.join(before)}"
        return f"JobHeld (Hold_Types={holds})" + (f": {comment}" if comment else "")
    return comment or None


def dependencies(job: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the job ids of each kind of dependency of a job: {"afterok": ["14"]} of afterok:14.pbshead@pbshead."""
    found: dict[str, list[str]] = {}
    for part in filter(None, str(job.get("depend", "")).split(",")):
        kind, *job_ids = part.split(":")
        found.setdefault(kind, []).extend(job_id.partition(".")[0] for job_id in job_ids)
    return found


def jobs_before(job: Mapping[str, Any]) -> list[str]:
    """Return the jobs that a job waits for."""
    return [each for kind, ids in dependencies(job).items() if kind.startswith("after") for each in ids]


def jobs_after(job: Mapping[str, Any]) -> list[str]:
    """Return the jobs that wait for a job."""
    return [each for kind, ids in dependencies(job).items() if kind.startswith("before") for each in ids]


def never_ran(job: Mapping[str, Any]) -> bool:
    """Return True if a job was deleted while it waited."""
    return job.get("job_state") == "F" and not isinstance(job.get("Exit_status"), int)


def end_of(job: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return how a job that is over ended, by Slurm's name of the state, and a reason if PBS has one."""
    code = job.get("Exit_status")
    if job.get("substate") == TERMINATED or str(job.get("comment", "")).endswith("and terminated"):
        before = jobs_before(job) if code is None else []
        return "CANCELLED", f"with qdel, or since job {', '.join(before)} failed" if before else "with qdel"
    if not isinstance(code, int):
        # Deleted before it ran; job_state X is a task of an array.
        if before := jobs_before(job):
            return "CANCELLED", f"since job {', '.join(before)} failed or was deleted"
        return "CANCELLED", ENDS.sub("", str(job.get("comment", ""))) or None
    if code == 0:
        return "COMPLETED", None
    if code in BY_PBS:
        return BY_PBS[code]
    if code < 0:
        return "LAUNCH_FAILED", f"PBS could not start it or keep it running (Exit_status={code})"
    if code >= BY_SIGNAL:
        number = code - BY_SIGNAL
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return "FAILED", f"its script was ended by {name} (Exit_status={code})"
    return "FAILED", f"its script ended with exit code {code}"


def nodes_of(job: Mapping[str, Any]) -> str | None:
    """Return the hosts of a job, of `pn01/0*4+pn02/0*4`: pn01,pn02; None before it ran."""
    hosts = dict.fromkeys(part.partition("/")[0] for part in str(job.get("exec_host", "")).split("+"))
    return ",".join(filter(None, hosts)) or None
