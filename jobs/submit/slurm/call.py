"""The commands of Slurm, as jobs.submit.scheduler_call calls them: what their error messages mean."""

from __future__ import annotations

import re

from jobs.errors import SubmitError
from jobs.submit import scheduler_call
from jobs.submit.scheduler_call import AwayError, NoAnswerError, QueueFullError, Scheduler

# Accounting only adds details, so it may fail soon.
SACCT_TIMEOUT_S = 10

# Messages of commands whose request Slurm may have received.
NO_ANSWER = re.compile(r"timed out|Zero Bytes|(?:send|receive|shutdown) failure", re.IGNORECASE)
# Messages of commands whose request did not reach a controller that could answer: none listens, a backup in standby,
# munge or the network is away, too many calls, or a job that is just changing.
AWAY = re.compile(
    "|".join(
        (
            "Unable to contact slurm controller",
            "is DOWN",
            "RESTORE SLURMCTLD",
            "standby mode",
            "Communication (?:connection|shutdown) ",
            "connect failure",
            "Connection (?:refused|reset)",
            "No route to host",
            "(?:Network|Host) is (?:unreachable|down)",
            "Broken pipe",
            "endpoint is not connected",
            "Temporary failure in name resolution",
            "Resource temporarily unavailable",
            "Cannot allocate memory",
            "temporarily unable",
            "Munge (?:en|de)code failed",
            "Protocol authentication error",
            "Rate limit exceeded",
            "try again (?:later|in a bit)",
            "Problem talking to the database",
            "persistent connection",
        )
    ),
    re.IGNORECASE,
)
# The names of limits on jobs in the queue in Slurm's error messages, per user or per account; and a controller that has
# MaxJobCount jobs: sbatch itself tries again for two minutes.
FULL = re.compile(r"\b(?:Assoc|QOS)\w*Submit\w*Limit\b")
FULL_CONTROLLER = re.compile(
    r"(?:submission failed|allocation failure): Resource temporarily unavailable|temporarily unable to accept job|"
    r"job queue full"
)
# The name by which its configuration calls that limit.
FULL_CONTROLLER_LIMIT = "MaxJobCount"


def refusal(stderr: str) -> SubmitError:
    """Return the exception for an error message of a Slurm command."""
    if full := FULL.search(stderr):
        return QueueFullError(full[0])
    if FULL_CONTROLLER.search(stderr):
        return QueueFullError(FULL_CONTROLLER_LIMIT)
    # NO_ANSWER first: some messages match both, and a job that may exist must not be submitted twice.
    kind = NoAnswerError if NO_ANSWER.search(stderr) else AwayError if AWAY.search(stderr) else SubmitError
    return kind(message(stderr))


def message(stderr: str) -> str:
    """Return the error message of a Slurm command, without the name of the command on each line."""
    return scheduler_call.message(stderr, "sbatch|scontrol|squeue|sacct|sacctmgr|sinfo|scancel")


SLURM = Scheduler("Slurm", "sbatch", refusal, "is slurmctld up? (scontrol ping)")
ask, answered, answered_once, answered_or_unknown = (
    SLURM.ask, SLURM.answered, SLURM.answered_once, SLURM.answered_or_unknown
)  # fmt: skip
