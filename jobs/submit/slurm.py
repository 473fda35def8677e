"""Slurm's commands, each asked once for many jobs: limits, test, states, cancel.

Works without accounting: what only sacct could tell is then GONE.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from jobs.errors import SubmitError

COMMAND_TIMEOUT_S = 60
# Accounting only adds to what is known without it.
SACCT_TIMEOUT_S = 10
ALIVE = {"PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED"}
# Our word beside Slurm's for a job that is not in the queue and whose end accounting does not tell.
GONE = "GONE"


@dataclass(frozen=True)
class JobState:
    """What Slurm says of one job or array task."""

    state: str
    """Slurm's word: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, ..."""
    reason: str | None = None
    """Why a pending job waits, or why nothing is known of one that is gone."""
    expected_start: str | None = None
    """When Slurm expects a pending job to start, where it has computed that."""


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


def ask(*command: str, text: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Output of a Slurm command; raises SubmitError with what it said when it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, input=text, timeout=timeout_s, check=False)
    except FileNotFoundError as error:
        raise SubmitError(f"{command[0]} is not on this machine's PATH.") from error
    except subprocess.TimeoutExpired as error:
        raise SubmitError(
            f"{command[0]} gave no answer in {timeout_s:.0f} s; is slurmctld up? (scontrol ping)"
        ) from error
    if answer.returncode != 0:
        raise SubmitError(spoken(answer.stderr or answer.stdout))
    return answer.stdout


def spoken(stderr: str) -> str:
    """What a Slurm command said, without its own name in front of every line."""
    lines = [re.sub(r"^(sbatch|scontrol|squeue|sacct|scancel): (error: )?", "", line) for line in stderr.splitlines()]
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


def refuse_beyond_partition(name: str | None, nodes: int, wall_time_min: int) -> None:
    """Raise SubmitError for what a partition can never run: Slurm itself may accept it and let it wait for ever."""
    known = partitions()
    settings = known.get(name or "")
    if settings is None:
        if name is None:
            return  # no default partition: sbatch will say so in its own words
        raise SubmitError(
            f"cluster.partition={name} does not exist here; there are {', '.join(sorted(p for p in known if p))}."
        )
    where = f"partition {settings['PartitionName']}"
    most = [int(settings[key]) for key in ("MaxNodes", "TotalNodes") if settings.get(key, "").isdigit()]
    if most and nodes > min(most):
        raise SubmitError(
            f"nodes={nodes}, but {where} gives a job at most {min(most)}. Type nodes={min(most)} or less."
        )
    limit = minutes(settings.get("MaxTime", ""))
    if limit is not None and wall_time_min > limit:
        raise SubmitError(
            f"wall_time_min={wall_time_min}, but {where} allows {limit} (MaxTime={settings['MaxTime']}). "
            f"Type wall_time_min={limit} or less."
        )


def minutes(text: str) -> int | None:
    """Slurm's [days-]hours:minutes:seconds in minutes; None for UNLIMITED and what is no time."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    if match is None:
        return None
    days, hours, mins, _ = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + mins


def test_script(script: str) -> None:
    """Let sbatch judge a script without submitting it; raises SubmitError with its words."""
    ask("sbatch", "--test-only", text=script)


def max_array_size() -> int:
    """Most tasks of one job array, plus one, as the site sets it."""
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"))
    return int(match[1]) if match else 1001


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
    for job_id in job_ids:
        word = words.get(job_id)
        if word is None:
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


def requeue(job_id: str, *, pause_s: int, avoid: list[str]) -> None:
    """Put a running job back into the queue, for later and for other nodes; ends the job's own batch script."""
    ask("scontrol", "requeue", job_id)
    wanted = [f"StartTime=now+{pause_s}"] if pause_s else []
    if avoid:
        wanted.append(f"ExcNodeList={','.join(avoid)}")
    if wanted:
        ask("scontrol", "update", f"JobId={job_id}", *wanted)


def cancel(job_ids: list[str]) -> None:
    """scancel; jobs that are over already are not an error."""
    if job_ids:
        ask("scancel", "--quiet", *job_ids)
