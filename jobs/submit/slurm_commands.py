"""The commands of Slurm, each called once for many jobs: limits, tests, states.

Works without accounting: the state of a job that only sacct knows is then GONE.
"""

from __future__ import annotations

import math
import pwd
import re
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from jobs.errors import SubmitError
from jobs.event_fields import JOB_ID
from jobs.plan.time_limit import limit_min
from jobs.submit.environment import clean_environment
from jobs.submit.job_state import ENDED, GONE, JobState
from jobs.submit.submissions import tasks_of

COMMAND_TIMEOUT_S = 60
# Accounting only adds details, so it may fail soon.
SACCT_TIMEOUT_S = 10
# Exit codes of a command that `timeout` killed.
KILLED = {128 + signal.SIGKILL, -signal.SIGKILL}


class QueueFullError(SubmitError):
    """Slurm accepts no more jobs of this user until others have ended."""


class NoAnswerError(SubmitError):
    """Slurm did not answer in time; it may have done what the command asked for."""


# Messages of commands whose request Slurm may have received.
NO_ANSWER = re.compile(r"timed out|Zero Bytes|\((?:send|receive|shutdown) failure\)")
# Names of the limits on jobs in the queue in Slurm's error messages, per user or per account.
FULL = re.compile(r"\b(?:Assoc|QOS)\w*Submit\w*Limit\b")
# Messages of sbatch --test-only for a job that no set of available nodes can run.
NO_NODES = re.compile(r"node configuration is not available|nodes are busy|Required node not available|not \w+ now")
ELSEWHERE = (
    "Log in to the login node of the cluster (or load its Slurm module), or set launcher=local cluster=local to run "
    "here, launcher=script to write scripts for later."
)


def require() -> None:
    """Raise SubmitError if the commands of Slurm are not installed or no controller answers."""
    if shutil.which("sbatch") is None:
        raise SubmitError(f"launcher=slurm needs sbatch, which is not on this machine's PATH. {ELSEWHERE}")
    try:
        ask("scontrol", "ping")
    except SubmitError as error:
        raise SubmitError(f"launcher=slurm: no Slurm controller answers here ({error}). {ELSEWHERE}") from error


def ask(*command: str, text: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Return the output of a Slurm command; raises SubmitError with its message if it fails."""
    return answered(*command, text=text, timeout_s=timeout_s).stdout


def answered(
    *command: str, text: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S, outlives_caller: bool = True
) -> subprocess.CompletedProcess[str]:
    """Return stdout and stderr of a Slurm command; raises SubmitError with its message if it fails.

    With `outlives_caller=False` it ends after `timeout_s` also if this process was killed.
    """
    limit = () if outlives_caller else ("timeout", "--signal=KILL", str(timeout_s))
    try:
        answer = subprocess.run(
            [*limit, *command], capture_output=True, text=True, input=text, timeout=None if limit else timeout_s,
            check=False, env=clean_environment(),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SubmitError(f"{command[0]} is not on this machine's PATH.") from error
    except subprocess.TimeoutExpired as error:
        raise no_answer(command[0], timeout_s) from error
    if answer.returncode in KILLED:
        raise no_answer(command[0], timeout_s)
    if answer.returncode != 0:
        raise refusal(answer.stderr or answer.stdout)
    return answer


def no_answer(command: str, timeout_s: float) -> NoAnswerError:
    """Return the exception for a Slurm command that was ended after its time."""
    return NoAnswerError(f"{command} gave no answer in {timeout_s:.0f} s; is slurmctld up? (scontrol ping)")


def refusal(stderr: str) -> SubmitError:
    """Return the exception for an error message of a Slurm command."""
    if full := FULL.search(stderr):
        return QueueFullError(full[0])
    return (NoAnswerError if NO_ANSWER.search(stderr) else SubmitError)(message(stderr))


@contextmanager
def refusals_of(what: str) -> Iterator[None]:
    """Complete the errors of sbatch with the runs or the stage that it was called for."""
    try:
        yield
    except QueueFullError:
        raise
    except NoAnswerError as error:
        raise NoAnswerError(
            f"Slurm did not confirm the job of {what}: {error}. It may be in the queue: `slurmscale status` looks for "
            "it, and `slurmscale resume` submits what is missing."
        ) from error
    except SubmitError as error:
        raise SubmitError(f"sbatch refused {what}: {error}.") from error


def message(stderr: str) -> str:
    """Return the error message of a Slurm command, without the name of the command on each line."""
    lines = [
        re.sub(r"^\s*(sbatch|scontrol|squeue|sacct|sacctmgr|sinfo|scancel): (error: )?", "", line)
        for line in stderr.splitlines()
    ]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip())) or "no message"


def partitions() -> dict[str, dict[str, str]]:
    """Return the settings of each partition as `scontrol show partition` names them; the default one also under ''."""
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
    """Raise SubmitError for a job that a partition can never run; Slurm itself may accept it and never start it.

    `key` is the configuration key of the partition, `prefix` that of nodes and time.
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
    """Yield a sentence for each limit that a job exceeds, with the remedy; of several partitions one is enough."""
    found = [
        list(beyond_one(known, each, nodes, wall_time_min, prefix=prefix, key=key))
        for each in (name.split(",") if name else [None])
    ]
    if all(found):
        yield from chain.from_iterable(found)


def beyond_one(
    known: dict[str, dict[str, str]], name: str | None, nodes: int, wall_time_min: int, *, prefix: str, key: str
) -> Iterator[str]:
    """Yield a sentence for each limit of one partition that a job exceeds, with the remedy."""
    settings = known.get(name or "")
    if settings is None:
        if name is not None:  # without a default partition sbatch refuses the job itself
            yield f"{key}={name} does not exist here; the partitions are {', '.join(sorted(p for p in known if p))}."
        return
    where = f"partition {settings['PartitionName']}"
    most = [int(settings[key]) for key in ("MaxNodes", "TotalNodes") if settings.get(key, "").isdigit()]
    if most and nodes > min(most):
        yield (
            f"{prefix}nodes={nodes}, but {where} gives a job at most {min(most)}. "
            f"Set {prefix}nodes={min(most)} or less."
        )
    limit = limit_min(settings.get("MaxTime", ""))
    if limit is not None and wall_time_min > limit:
        yield (
            f"{prefix}wall_time_min={wall_time_min}, but {where} allows {limit} (MaxTime={settings['MaxTime']}). "
            f"Set {prefix}wall_time_min={limit} or less."
        )


def test_script(script: str, jobs: int, partition: str | None) -> str | None:
    """Test an array of this size with sbatch, without submitting it; raises SubmitError with the message of sbatch.

    Returns expected start and nodes for the queue as it is, such as `14:05 on node[01-02]`; None if sbatch does not
    report them.
    """
    array = [f"--array=0-{jobs - 1}"] if jobs > 1 else []
    try:
        output = answered("sbatch", "--test-only", *array, text=script).stderr
    except SubmitError as error:
        # A test gives the same answer for a job that can never run and for one that waits for a drained node, which a
        # submission accepts. A submission still refuses the former.
        away = unavailable_nodes(partition) if NO_NODES.search(str(error)) else ""
        if not away:
            raise
        return f"not known while {away} accept no jobs"
    expected = re.search(r"to start at (\S+) .*\bon nodes (\S+)", output)
    if expected is None:
        return None
    start = datetime.fromisoformat(expected[1])
    day = "" if start.date() == datetime.now().astimezone().date() else f"{start:%Y-%m-%d} "
    return f"{day}{start:%H:%M} on {expected[2]}"


def unavailable_nodes(partition: str | None) -> str:
    """Return the nodes of a partition, by default the default one, that are drained, down or in maintenance."""
    name = partition or partitions().get("", {}).get("PartitionName", "")
    return ",".join(ask("sinfo", "-h", "-p", name, "-t", "drain,down,fail,maint,unk,no_respond", "-o", "%N").split())


def room(script: str, wanted: int, partition: str | None) -> tuple[int, str]:
    """Return how many of the wanted jobs of a script Slurm accepts now, and the limit that keeps out the others.

    Needs no access to the accounting database, which many sites restrict: sbatch --test-only is called once if all or
    no jobs fit, otherwise about log2(wanted) times.
    """
    most, limit = 0, ""
    tried, refused = wanted, wanted + 1
    while most < refused - 1:
        try:
            test_script(script, tried, partition)
            most = tried
        except QueueFullError as full:
            refused, limit = tried, str(full)
        # A full queue mostly has no room at all.
        tried = 1 if refused == wanted and most == 0 else (most + refused) // 2
    return most, limit


def configuration() -> dict[str, str]:
    """Return the settings of Slurm as `scontrol show config` names them: SLURM_VERSION, MaxArraySize, KillWait, ..."""
    return dict(re.findall(r"^(\S+) *= *(.*)$", ask("scontrol", "show", "config"), flags=re.MULTILINE))


def submit_script(script: Path) -> str:
    """Submit a script with sbatch; return the job id, of an array the array's id.

    Lines that a site's wrapper of sbatch prints are skipped. Raises NoAnswerError if the job may be in the queue.
    """
    printed = answered("sbatch", "--parsable", str(script), outlives_caller=False).stdout
    job_id = re.search(r"^(\d+)(?:;\S+)?$", printed, flags=re.MULTILINE)
    if job_id is None:
        raise NoAnswerError(f"sbatch printed no job id: {message(printed)}")
    return job_id[1]


def jobs_named(names: set[str], since: datetime) -> dict[str, str]:
    """Return the ids of this user's jobs by name, of arrays the array's id: squeue, then sacct for ended jobs.

    Raises SubmitError if squeue does not answer. Without accounting, jobs that ended some minutes ago are missing.
    """
    begin = (since - timedelta(hours=1)).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    listed = ask("squeue", "--me", "-h", "-t", "all", "-o", "%F|%j").splitlines()
    if not names <= {line.partition("|")[2] for line in listed}:
        with suppress(SubmitError):
            listed += ask("sacct", "-X", "-n", "-P", "-o", "JobID,JobName", "-S", begin).splitlines()
    rows = (line.partition("|") for line in listed)
    return {name: job_id.partition("_")[0] for job_id, _, name in rows if name in names}


def most_tasks() -> int:
    """Return the most tasks of a job array of the site; 1 where it has none (MaxArraySize of 0 or 1)."""
    return max(1, int(configuration().get("MaxArraySize", "1001")) - 1)


def queue() -> dict[str, JobState]:
    """Return the state of every job of this user in the queue, by id (array tasks as 12_3): one squeue."""
    held = {}
    for line in ask("squeue", "--me", "-r", "-h", "-o", "%i|%T|%S|%r").splitlines():
        job_id, state, start, reason = line.split("|", 3)
        waits = state == "PENDING"
        held[job_id] = JobState(state, reason if waits else None, start if waits and start != "N/A" else None)
    return held


def accounted(job_ids: list[str]) -> dict[str, JobState]:
    """Return the final states of jobs that left the queue, GONE if accounting does not know them: one sacct."""
    # Whole arrays: for single tasks sacct omits those that were cancelled before they started. Options are no ids.
    arrays = sorted({job_id.partition("_")[0] for job_id in job_ids if JOB_ID.fullmatch(job_id)})
    if not arrays:
        return dict.fromkeys(job_ids, JobState(GONE, "its id is none of Slurm's"))
    command = ("sacct", "-X", "-D", "-n", "-P", "-o", "JobID,State,NodeList", "-j", ",".join(arrays))
    # One row per start, the latest last.
    starts: dict[str, list[JobState]] = defaultdict(list)
    unknown = "accounting has no record of it"
    try:
        for line in ask(*command, timeout_s=SACCT_TIMEOUT_S).splitlines():
            name, state, nodes = line.split("|")
            word, _, by = state.partition(" by ")  # "CANCELLED by 0"
            start = JobState(word, f"by user {user_name(by)} with scancel" if by else None, nodes=nodes)
            for task in tasks_of(name):
                starts[task].append(start)
    except SubmitError as error:
        unknown = f"accounting does not answer: {error}"
    found = {}
    known_arrays = {name.partition("_")[0] for name in starts}
    for job_id in job_ids:
        array = job_id.partition("_")[0]
        # An array that is cancelled before it starts has one row without tasks.
        own = starts.get(job_id) or starts.get(array)
        if own is None and array in known_arrays:
            # Accounting omits only tasks that were cancelled while they waited.
            found[job_id] = JobState("CANCELLED")
        elif own is None:
            found[job_id] = JobState(GONE, unknown)
        elif own[-1].state not in ENDED:  # sacct lags by seconds
            ends = [start for start in own if start.state in {"REQUEUED", *ENDED}]
            late = f"accounting still reports {own[-1].state}"
            found[job_id] = JobState(GONE, late, last_end=ends[-1] if ends else None)
        else:
            found[job_id] = own[-1]
    return found


def user_name(uid: str) -> str:
    """Return the name of a user id; the id itself if this machine does not know it."""
    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (KeyError, ValueError):
        return uid


def shown_job(job_id: str) -> dict[str, str]:
    """Return the fields of `scontrol show job` for a job in the memory of slurmctld: JobState, PreemptTime, ..."""
    return dict(re.findall(r"(\S+?)=(\S*)", ask("scontrol", "--oneliner", "show", "job", job_id)))


def time_left_s(job_id: str) -> float:
    """Return the seconds until the time limit of a running job; infinity without a limit."""
    end = shown_job(job_id)["EndTime"]
    if end == "Unknown":
        return math.inf
    # Slurm writes local time.
    return (datetime.fromisoformat(end).astimezone() - datetime.now().astimezone()).total_seconds()


def host_list(nodes: list[str]) -> str:
    """Return nodes in Slurm's notation: node[01-04,07]."""
    return ask("scontrol", "show", "hostlist", ",".join(nodes)).strip()


def requeue(job_id: str) -> None:
    """Requeue a running job; this ends its batch script."""
    ask("scontrol", "requeue", job_id)


def postpone(job_id: str, *, pause_s: int, avoid: list[str]) -> None:
    """Delay a requeued job, and exclude nodes from it."""
    wanted = [f"StartTime=now+{pause_s}"] if pause_s else []
    if avoid:
        wanted.append(f"ExcNodeList={','.join(avoid)}")
    if wanted:
        ask("scontrol", "update", f"JobId={job_id}", *wanted)
