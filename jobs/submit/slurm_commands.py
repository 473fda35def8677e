"""Slurm's commands, each asked once for many jobs: limits, test, states, cancel.

Works without accounting: what only sacct could tell is then GONE.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from jobs.errors import SubmitError

COMMAND_TIMEOUT_S = 60
# Accounting only adds to what is known without it.
SACCT_TIMEOUT_S = 10
ALIVE = {"PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED"}
# Our word beside Slurm's for a job that is not in the queue and whose end accounting does not tell.
GONE = "GONE"
# Likewise for a job whose scheduler cannot be asked.
UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class JobState:
    """What Slurm says of one job or array task."""

    state: str
    """Slurm's word: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, ..."""
    reason: str | None = None
    """Why a pending job waits, or why nothing is known of one that is gone."""
    expected_start: str | None = None
    """When Slurm expects a pending job to start, where it has computed that."""


class QueueFullError(SubmitError):
    """Slurm takes no more jobs of this user now; it will as others end."""


# How Slurm's error texts name its limits on jobs in the queue, of a user or of all users of an account.
FULL = re.compile(r"\b(?:Assoc|QOS)\w*Submit\w*Limit\b")
ELSEWHERE = (
    "Log in to the cluster's login node (or load its Slurm module), or type launcher=local cluster=local to run here, "
    "launcher=script to write scripts for later."
)


def require() -> None:
    """Raise SubmitError where Slurm's commands are not installed or no controller answers them."""
    if shutil.which("sbatch") is None:
        raise SubmitError(f"launcher=slurm needs sbatch, which is not on this machine's PATH. {ELSEWHERE}")
    try:
        ask("scontrol", "ping")
    except SubmitError as error:
        raise SubmitError(f"launcher=slurm: no Slurm controller answers here ({error}). {ELSEWHERE}") from error


def ask(*command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Output of a Slurm command; raises SubmitError with what it said when it fails."""
    return answered(*command, timeout_s=timeout_s).stdout


def answered(
    *command: str, text: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """What a Slurm command printed and said; raises SubmitError with what it said when it fails."""
    # A user may have told Slurm to write times in another way than we read them.
    environment = os.environ | {"SLURM_TIME_FORMAT": "standard"}
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, input=text, timeout=timeout_s, check=False, env=environment
        )
    except FileNotFoundError as error:
        raise SubmitError(f"{command[0]} is not on this machine's PATH.") from error
    except subprocess.TimeoutExpired as error:
        raise SubmitError(
            f"{command[0]} gave no answer in {timeout_s:.0f} s; is slurmctld up? (scontrol ping)"
        ) from error
    if answer.returncode != 0:
        raise refusal(answer.stderr or answer.stdout)
    return answer


def refusal(stderr: str) -> SubmitError:
    """The error that a Slurm command's words stand for."""
    full = FULL.search(stderr)
    return QueueFullError(full[0]) if full else SubmitError(spoken(stderr))


def spoken(stderr: str) -> str:
    """What a Slurm command said, without its own name in front of every line."""
    lines = [
        re.sub(r"^\s*(sbatch|scontrol|squeue|sacct|sacctmgr|sinfo|scancel): (error: )?", "", line)
        for line in stderr.splitlines()
    ]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip())) or "no words"


def partitions() -> dict[str, dict[str, str]]:
    """Every partition's settings as `scontrol show partition` names them; the default one also under ''."""
    found = {}
    for line in ask("scontrol", "--oneliner", "show", "partition").splitlines():
        settings = dict(item.split("=", 1) for item in line.split() if "=" in item)
        found[settings["PartitionName"]] = settings
        if settings.get("Default") == "YES":
            found[""] = settings
    return found


def refuse_beyond_partition(
    name: str | None, nodes: int, wall_time_min: int, *, prefix: str = "", key: str = "cluster.partition"
) -> None:
    """Raise SubmitError for what a partition can never run: Slurm itself may accept it and let it wait for ever.

    The key is the partition's in the configuration, the prefix that of nodes and time.
    """
    for sentence in beyond_partition(partitions(), name, nodes, wall_time_min, prefix=prefix, key=key):
        raise SubmitError(sentence)


def beyond_partition(
    known: dict[str, dict[str, str]],
    name: str | None,
    nodes: int,
    wall_time_min: int,
    *,
    prefix: str = "",
    key: str = "cluster.partition",
) -> Iterator[str]:
    """What of these wishes a partition can never run, and what to type instead."""
    settings = known.get(name or "")
    if settings is None:
        if name is not None:  # no default partition: sbatch will say so in its own words
            yield f"{key}={name} does not exist here; there are {', '.join(sorted(p for p in known if p))}."
        return
    where = f"partition {settings['PartitionName']}"
    most = [int(settings[key]) for key in ("MaxNodes", "TotalNodes") if settings.get(key, "").isdigit()]
    if most and nodes > min(most):
        yield (
            f"{prefix}nodes={nodes}, but {where} gives a job at most {min(most)}. "
            f"Type {prefix}nodes={min(most)} or less."
        )
    limit = minutes(settings.get("MaxTime", ""))
    if limit is not None and wall_time_min > limit:
        yield (
            f"{prefix}wall_time_min={wall_time_min}, but {where} allows {limit} (MaxTime={settings['MaxTime']}). "
            f"Type {prefix}wall_time_min={limit} or less."
        )


def minutes(text: str) -> int | None:
    """Slurm's [days-]hours:minutes:seconds in minutes; None for UNLIMITED and what is no time."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    if match is None:
        return None
    days, hours, mins, _ = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + mins


def test_script(script: str, jobs: int) -> str | None:
    """Let sbatch judge a script without submitting it, so many times; raises SubmitError with its words.

    Returns when and where it would start as the queue is now, such as `14:05 on node[01-02]`; None where sbatch does
    not tell.
    """
    words = answered("sbatch", "--test-only", f"--array=0-{jobs - 1}", text=script).stderr
    said = re.search(r"to start at (\S+) .*\bon nodes (\S+)", words)
    if said is None:
        return None
    start = datetime.fromisoformat(said[1])
    day = "" if start.date() == datetime.now().astimezone().date() else f"{start:%Y-%m-%d} "
    return f"{day}{start:%H:%M} on {said[2]}"


def room(script: str, wanted: int) -> tuple[int, str]:
    """How many jobs of this script, of so many, Slurm takes now, and the limit that keeps out the others.

    No database is asked, which many sites close: sbatch itself says what it would take, in one question where it is
    all or nothing, else in about log2(wanted).
    """
    most, limit = 0, ""
    tried, refused = wanted, wanted + 1
    while most < refused - 1:
        try:
            test_script(script, tried)
            most = tried
        except QueueFullError as full:
            refused, limit = tried, str(full)
        # A queue that is full today mostly has no room at all.
        tried = 1 if refused == wanted and most == 0 else (most + refused) // 2
    return most, limit


def configuration() -> dict[str, str]:
    """Slurm's settings as `scontrol show config` names them: SLURM_VERSION, MaxArraySize, KillWait, ..."""
    return dict(re.findall(r"^(\S+) *= *(.*)$", ask("scontrol", "show", "config"), flags=re.MULTILINE))


def submit_script(script: str) -> str:
    """sbatch; returns the job id."""
    return answered("sbatch", "--parsable", text=script).stdout.strip().partition(";")[0]


def max_array_size() -> int:
    """Most tasks of one job array, plus one, as the site sets it."""
    return int(configuration().get("MaxArraySize", "1001"))


def queue() -> dict[str, JobState]:
    """Every job that Slurm holds for this user, by id (array tasks as 12_3): one squeue."""
    held = {}
    for line in ask("squeue", "--me", "-r", "-h", "-o", "%i|%T|%S|%r").splitlines():
        job_id, state, start, reason = line.split("|", 3)
        waits = state == "PENDING"
        held[job_id] = JobState(state, reason if waits else None, start if waits and start != "N/A" else None)
    return held


def accounted(job_ids: list[str]) -> dict[str, JobState]:
    """How jobs that are not in the queue any more ended, GONE where accounting does not tell: one sacct."""
    if not job_ids:
        return {}
    # Whole arrays: asked for single tasks, sacct leaves out those that were cancelled before they started.
    arrays = sorted({job_id.partition("_")[0] for job_id in job_ids})
    command = ("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", ",".join(arrays))
    words: dict[str, str] = {}
    unknown = "accounting has no record of it"
    try:
        for line in ask(*command, timeout_s=SACCT_TIMEOUT_S).splitlines():
            name, _, state = line.partition("|")
            words |= dict.fromkeys(tasks_of(name), state.partition(" ")[0])  # "CANCELLED by 0"
    except SubmitError as error:
        unknown = f"accounting cannot be asked: {error}"
    found = {}
    known_arrays = {name.partition("_")[0] for name in words}
    for job_id in job_ids:
        array = job_id.partition("_")[0]
        # An array that is cancelled at once has a row without tasks.
        word = words.get(job_id, words.get(array))
        if word is None and array in known_arrays:
            # It forgets a task that was cancelled while it waited, and not what became of the others.
            found[job_id] = JobState("CANCELLED")
        elif word is None:
            found[job_id] = JobState(GONE, unknown)
        elif word in ALIVE:  # sacct lags by seconds
            found[job_id] = JobState(GONE, f"accounting still says {word}")
        else:
            found[job_id] = JobState(word)
    return found


def tasks_of(name: str) -> list[str]:
    """The job ids that a row of sacct stands for: 12, 12_3, or 12_[0,2-5%4] for tasks that never started."""
    match = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", name)
    if match is None:
        return [name]
    tasks: list[str] = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        tasks += [f"{match[1]}_{task}" for task in range(int(first), int(last or first) + 1)]
    return tasks


def shown_job(job_id: str) -> dict[str, str]:
    """What `scontrol show job` says of a job that Slurm still knows: JobState, PreemptTime, ..."""
    return dict(re.findall(r"(\S+?)=(\S*)", ask("scontrol", "--oneliner", "show", "job", job_id)))


def time_left_s(job_id: str) -> float:
    """Until a running job's time limit, in seconds; for ever where it has none."""
    end = shown_job(job_id)["EndTime"]
    if end == "Unknown":
        return math.inf
    # Slurm writes local time.
    return (datetime.fromisoformat(end).astimezone() - datetime.now().astimezone()).total_seconds()


def host_list(nodes: list[str]) -> str:
    """Nodes as Slurm writes them: node[01-04,07]."""
    return ask("scontrol", "show", "hostlist", ",".join(nodes)).strip()


def requeue(job_id: str) -> None:
    """Put a running job back into the queue, which ends its batch script."""
    ask("scontrol", "requeue", job_id)


def postpone(job_id: str, *, pause_s: int, avoid: list[str]) -> None:
    """Let a job that is in the queue again wait, and run on other nodes than these."""
    wanted = [f"StartTime=now+{pause_s}"] if pause_s else []
    if avoid:
        wanted.append(f"ExcNodeList={','.join(avoid)}")
    if wanted:
        ask("scontrol", "update", f"JobId={job_id}", *wanted)


def cancel(job_ids: list[str]) -> None:
    """scancel; jobs that are over already are not an error."""
    if job_ids:
        ask("scancel", "--quiet", *job_ids)
