"""Call a command of PBS: the meaning of its messages, and the JSON that it prints.

The exit code of a command is the number of the server's error modulo 256: 153 for an unknown job, 35 for one that has
finished. qstat prints what it knows as JSON all the same, so an exit code alone is no failure.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

from jobs.errors import SubmitError
from jobs.submit import scheduler_call
from jobs.submit.scheduler_call import (
    COMMAND_TIMEOUT_S,
    AwayError,
    NoAnswerError,
    QueueFullError,
    Scheduler,
    patiently,
)

COMMANDS = "qsub|qstat|qdel|qalter|qselect|pbsnodes"
# Messages about requests that a server may have received.
NO_ANSWER = re.compile(r"timed out|timeout|End of File|Premature end of message|Communication failure", re.IGNORECASE)
# Messages about requests that reached no server that could answer: it is down, fails over, or has too many clients.
AWAY = re.compile(
    r"cannot connect to server|Couldn't connect to cluster|Connection (?:refused|reset)|No route to host|"
    r"Network is unreachable|Temporary failure in name resolution|server is shutting down|"
    r"Resource temporarily unavailable|Too many (?:open files|connections)|Server .*busy",
    re.IGNORECASE,
)
# Limits on the jobs of a user, a group or a project, in the server ("complex") or a queue.
FULL = re.compile(r"would exceed .*?limit.*|Maximum number of jobs already in .*", re.IGNORECASE)
# Jobs that the server does not have, or only in its history.
NOT_THERE = re.compile(r"Unknown Job Id|Job has finished")
# Refusals of qsub by the text of PBS, each with the keys that the job got it from and the remedy.
REFUSALS = (
    (r"Unknown queue", "cluster.partition is not a queue of this server. `qstat -Q` lists them: set cluster.partition"),
    (
        r"Job violates queue and/or server resource limits",
        "The queue (cluster.partition) allows less than the run asks for: `qstat -Qf` shows resources_max. Set another "
        "cluster.partition, or smaller nodes, wall_time_min, cluster.cpus_per_rank or cluster.memory_gb_per_node",
    ),
    (r"Unknown resource", "This server has no such resource. Remove it from cluster.pbs; cluster.gpus=false asks for "
                          "no ngpus"),
    (r"Illegal attribute or resource value", "Correct the value in cluster.pbs, or set cluster.pbs_totals=true for a "
                                             "site that does not accept `select`"),
    (r"Unauthorized Request|not authorized|Access .*denied|Not allowed|no access",
     "This account may not use that queue or project: set cluster.partition and cluster.account"),
    (r"[Pp]roject", "Set cluster.account to a project of yours"),
    (r"Bad UID for job execution", "The server does not know this user on this machine: submit from a login node of "
                                   "the cluster"),
)  # fmt: skip


def refusal(stderr: str) -> SubmitError:
    """Return the exception for an error message of a PBS command."""
    if full := FULL.search(stderr):
        return QueueFullError(full[0].strip())
    text = message(stderr)
    # NO_ANSWER first: a job that may exist must not be submitted twice.
    if NO_ANSWER.search(stderr):
        return NoAnswerError(text, "PBS")
    if AWAY.search(stderr):
        return AwayError(text, "PBS")
    remedy = next((remedy for pattern, remedy in REFUSALS if re.search(pattern, text)), "")
    return SubmitError(f"{text}. {remedy}" if remedy else text)


def message(stderr: str) -> str:
    """Return the error message of a PBS command without names of commands, and without the usage that may follow."""
    return scheduler_call.message(re.split(r"^usage:", stderr, maxsplit=1, flags=re.MULTILINE)[0], COMMANDS)


PBS = Scheduler("PBS", "qsub", refusal, "does the server answer? (qstat -B)")


def document(*command: str) -> dict[str, Any]:
    """Return the JSON that a command prints; of several operands also if it does not know some of them.

    Raises SubmitError for any other error.
    """
    return known_and_unknown(*command)[0]


def known_and_unknown(*command: str) -> tuple[dict[str, Any], set[str]]:
    """Return the JSON that a command prints, and the ids of the jobs that it says are unknown or over."""
    answer = patiently(lambda: PBS.answered_once(*command, timeout_s=COMMAND_TIMEOUT_S, failed=is_failure))
    unknown = set(re.findall(r"\b(\d+)(?:\.[\w.-]+)?\b", " ".join(not_there(answer.stderr))))
    # Wrappers of a site may print lines before it; without a job to show, some versions print nothing.
    begin = answer.stdout.find("{")
    return (parsed(answer.stdout[begin:], command[0]) if begin >= 0 else {}), unknown


def is_failure(answer: subprocess.CompletedProcess[str]) -> bool:
    """Return True unless a command succeeded, or only did not find operands."""
    if answer.returncode == 0:
        return False
    lines = [line for line in answer.stderr.splitlines() if line.strip()]
    return not lines or lines != not_there(answer.stderr)


def not_there(stderr: str) -> list[str]:
    """Return the lines of an error output about jobs that the server does not have."""
    return [line for line in stderr.splitlines() if NOT_THERE.search(line)]


# A backslash that begins no escape of JSON: PBS writes the values of variables as they are.
WRONG_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
# An unquoted word where a value is due, such as 08 or 1e5x: PBS writes what looks like a number without quotes.
BARE = re.compile(r'^(\s*"[^"\n]*":\s*)([^\s"{\[][^\n]*?)(,?)$', re.MULTILINE)


def parsed(text: str, command: str) -> dict[str, Any]:
    """Return a JSON document of PBS, repaired where it writes a value that is not JSON.

    Values that look like numbers are written without quotes, such as a variable with the value 007, and control
    characters and backslashes in others as they are.
    """
    try:
        found = json.loads(text, strict=False)
    except ValueError:
        try:
            found = json.loads(BARE.sub(quoted, WRONG_ESCAPE.sub(escaped, text)), strict=False)
        except ValueError as error:
            raise SubmitError(f"{command} printed no valid JSON ({error}); it begins {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise SubmitError(f"{command} printed no JSON object; it begins {text[:80]!r}")
    return found


def escaped(match: re.Match[str]) -> str:
    """Return an escape of JSON as it is, and any other backslash doubled."""
    return match[0] if match[1] else "\\\\"


def quoted(match: re.Match[str]) -> str:
    """Return a line of a document whose value is JSON: as it is, or as a string."""
    before, value, after = match.groups()
    try:
        json.loads(value)
    except ValueError:
        value = json.dumps(value)
    return f"{before}{value}{after}"
