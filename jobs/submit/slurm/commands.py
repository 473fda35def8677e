"""The commands of Slurm, each called once for many jobs: limits, tests, states.

Works without accounting: the state of a job that only sacct knows is then GONE.
"""

from __future__ import annotations

import math
import os
import pwd
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from jobs.errors import SubmitError
from jobs.event_fields import JOB_TASKS
from jobs.plan.rules.slurm_options import newer
from jobs.plan.time_limit import limit_min
from jobs.schema import Run
from jobs.submit.job_state import ENDED, UNKNOWN, JobState
from jobs.submit.scheduler_call import COMMAND_TIMEOUT_S, AwayError, NoAnswerError, QueueFullError, patiently
from jobs.submit.slurm.call import answered, answered_once, answered_or_unknown, ask, message
from jobs.submit.sweeps.submissions import tasks_of

# The rows of squeue and sacct, among lines that wrappers of a site print. Names and paths may contain anything.
# A heterogeneous job has a row for each component, 12+0, 12+1: the first one is the job, and has its script.
QUEUED = re.compile(
    r"(?P<id>[0-9]+(?:_[0-9]+)?)(?:\+0)?\|(?P<state>[A-Z_]+)\|(?P<start>[^|]*)\|(?P<reason>[^|]*)"
    r"(?:\|(?P<own>[0-9]+))?(?:\|(?P<described>.*))?"
)
# --parsable prints ID, or ID;CLUSTER; some wrappers leave that option out.
SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?\s*$", re.MULTILINE)
# The fields of a job that are free text, before the next one of Slurm. Until 22.05 Command had the arguments as well.
TYPED = re.compile(r" Command=(.*?)(?: SubmitLine=.*?)?(?= WorkDir=)")
# The GPUs of a node of a job.
GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:(\d+)")
DEFAULT_ARRAY_SIZE = 1001
# Jobs that are looked up one by one, since squeue does not list them.
MOST_ASKED_ALONE = 20
# sbatch --test-only expects a job on idle nodes within seconds.
STARTS_NOW = timedelta(minutes=2)
# Messages of sbatch --test-only for a job that no set of available nodes can run.
NO_NODES = re.compile(r"node configuration is not available|nodes are busy|Required node not available|not \w+ now")
ELSEWHERE = (
    "Log in to the login node of the cluster (or load its Slurm module), or set launcher=local cluster=local to run "
    "here, launcher=script to write scripts for later."
)


def require() -> None:
    """Raise SubmitError if the commands of Slurm are not installed or no controller answers."""
    if shutil.which("sbatch") is None:
        pbs = "PBS is here: set launcher=pbs or pbs_pilot. " if shutil.which("qsub") else ""
        raise SubmitError(f"launcher=slurm needs sbatch, which is not on this machine's PATH. {pbs}{ELSEWHERE}")
    try:
        ask("scontrol", "ping")
    except SubmitError as error:
        raise SubmitError(f"launcher=slurm: no Slurm controller answers here ({error}). {ELSEWHERE}") from error


def release() -> str:
    """Return the release of the commands of Slurm here, such as 25.11: sbatch itself reads the options of a script."""
    found = re.search(r"\b\d\d\.\d\d\b", printed := ask("sbatch", "--version"))
    if found is None:
        raise SubmitError(f"sbatch --version printed no release of Slurm: {message(printed)}")
    return found[0]


def refuse_newer_options(runs: Iterable[Run]) -> None:
    """Raise SubmitError for an option of sbatch that the Slurm here does not have yet."""
    wanted = {option: since for run in runs for option, since in newer(run).items()}
    here = release() if wanted else ""
    for option, since in wanted.items():
        if here < since:
            raise SubmitError(
                f"{option} needs Slurm {since} or newer, and sbatch is of {here} here. Remove the option from "
                "cluster.sbatch."
            )


def partitions() -> dict[str, dict[str, str]]:
    """Return the settings of each partition as `scontrol show partition` names them; the default one also under ''.

    Hidden ones are among them: sbatch takes jobs for them.
    """
    found = {}
    for line in ask("scontrol", "--all", "--oneliner", "show", "partition").splitlines():
        settings = dict(item.split("=", 1) for item in line.split() if "=" in item)
        if "PartitionName" in settings:
            found[settings["PartitionName"]] = settings
        if settings.get("Default") == "YES":
            found[""] = settings
    return found


def refuse_beyond_partition(
    name: str | None,
    nodes: int,
    wall_time_min: int,
    *,
    spares: int = 0,
    prefix: str = "",
    key: str = "cluster.partition",
    nodes_key: str | None = None,
) -> None:
    """Raise SubmitError for a job that a partition can never run; Slurm itself may accept it and never start it.

    By default (EnforcePartLimits=NO) such a job pends for ever, by PartitionNodeLimit or PartitionTimeLimit.
    `spares` are the nodes that it asks for besides; `key` is the configuration key of the partition, `prefix` that of
    nodes and time, and `nodes_key` that of the nodes where it has another one.
    """
    keys = {"prefix": prefix, "key": key, "nodes_key": nodes_key or f"{prefix}nodes"}
    for sentence in beyond_partition(partitions(), name, nodes, wall_time_min, spares=spares, **keys):
        raise SubmitError(sentence)


def beyond_partition(
    known: dict[str, dict[str, str]],
    name: str | None,
    nodes: int,
    wall_time_min: int,
    *,
    spares: int = 0,
    prefix: str = "",
    key: str = "cluster.partition",
    nodes_key: str = "nodes",
) -> Iterator[str]:
    """Yield a sentence for each limit that a job exceeds, with the remedy; of several partitions one is enough."""
    keys = {"prefix": prefix, "key": key, "nodes_key": nodes_key}
    found = [
        list(beyond_one(known, each, nodes, wall_time_min, spares=spares, **keys))
        for each in (name.split(",") if name else [None])
    ]
    # Slurm starts the job in whichever of its partitions can run it first.
    if all(found):
        yield from chain.from_iterable(found)


def beyond_one(
    known: dict[str, dict[str, str]],
    name: str | None,
    nodes: int,
    wall_time_min: int,
    *,
    spares: int,
    prefix: str,
    key: str,
    nodes_key: str,
) -> Iterator[str]:
    """Yield a sentence for each limit of one partition that a job exceeds, with the remedy."""
    settings = known.get(name or "")
    if settings is None:
        if name is not None:  # without a default partition sbatch refuses the job itself
            listed = sorted(each for each, its in known.items() if each and its.get("Hidden") != "YES")
            yield f"{key}={name} does not exist here; the partitions are {', '.join(listed)}."
        return
    where = f"partition {settings['PartitionName']}"
    # Either may be the word UNLIMITED.
    most = [int(settings[each]) for each in ("MaxNodes", "TotalNodes") if settings.get(each, "").isdigit()]
    another = f"Set another {key}, or ask the administrators."
    if most and min(most) == 0:
        found = ", ".join(f"{each}={settings[each]}" for each in ("MaxNodes", "TotalNodes") if each in settings)
        yield f"{where} gives a job no nodes ({found}). {another}"
    elif most and nodes > min(most):
        yield (
            f"{nodes_key}={nodes}, but {where} gives a job at most {min(most)}. Set {nodes_key}={min(most)} or less."
        )
    elif most and nodes + spares > min(most):
        yield (
            f"nodes={nodes} and launcher.spare_nodes={spares}, but {where} gives a job at most {min(most)}. "
            f"Set launcher.spare_nodes={min(most) - nodes}, or fewer nodes."
        )
    limit = limit_min(settings.get("MaxTime", ""))
    if limit == 0:
        yield f"{where} allows a job no time (MaxTime={settings['MaxTime']}). {another}"
    elif limit is not None and wall_time_min > limit:
        yield (
            f"{prefix}wall_time_min={wall_time_min}, but {where} allows {limit} (MaxTime={settings['MaxTime']}). "
            f"Set {prefix}wall_time_min={limit} or less."
        )


def test_script(script: str, jobs: int, partition: str | None) -> str | None:
    """Test an array of this size with sbatch, without submitting it; raises SubmitError with the message of sbatch.

    Returns expected start and nodes for the queue as it is, such as `14:05 on node[01-02]`; None if sbatch does not
    report them.
    """
    # Limits such as MaxSubmitJobs count the tasks of an array, so the test needs its size.
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
    if closed := closed_partitions(partition):
        return f"not known while {closed} is down"
    start, now = datetime.fromisoformat(expected[1]), datetime.now()  # noqa: DTZ005 (Slurm writes local time)
    later = start - now > STARTS_NOW
    if later and not re.search(r"^#SBATCH --begin", script, flags=re.MULTILINE) and are_idle(expected[2]):
        return None
    day = "" if start.date() == now.date() else f"{start:%Y-%m-%d} "
    return f"{day}{start:%H:%M} on {expected[2]}"


def are_idle(nodes: str) -> bool:
    """Return True if nodes run nothing: then a test that expects a job on them later is in doubt."""
    states = ask("sinfo", "-a", "-h", "-n", nodes, "-o", "%T").split()
    return bool(states) and set(states) == {"idle"}


def closed_partitions(partition: str | None) -> str:
    """Return the partitions of a job if none of them starts jobs now; sbatch --test-only does not look at that."""
    known = partitions()
    named = [known.get(name, {}) for name in (partition or "").split(",")]
    open_ones = [each for each in named if each.get("State", "UP") == "UP"]
    return "" if open_ones else f"partition {','.join(each['PartitionName'] for each in named)}"


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
    printed = answered_or_unknown("sbatch", "--parsable", str(script)).stdout
    found = set(SUBMITTED.findall(printed))
    if len(found) != 1:
        # Among several numbers the job is known by its name, as after an interruption.
        raise NoAnswerError(f"sbatch printed {'several job ids' if found else 'no job id'}: {message(printed)}")
    return str(found.pop())


def jobs_named(names: set[str], since: datetime) -> dict[str, str]:
    """Return the ids of this user's jobs by name, of arrays the array's id: squeue, then sacct for ended jobs.

    Raises SubmitError if squeue does not answer. Without accounting, jobs that ended some minutes ago are missing.
    """
    # By default sacct begins at midnight. An hour earlier than the intent: the controller's clock may be behind ours.
    begin = (since - timedelta(hours=1)).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    listed = ask("squeue", "--me", "-a", "-h", "-t", "all", "-o", "%i|%j").splitlines()
    if not names <= {line.partition("|")[2] for line in listed}:
        with suppress(SubmitError):
            listed += ask("sacct", "-X", "-n", "-P", "-o", "JobID,JobName", "-S", begin).splitlines()
    rows = (line.partition("|") for line in listed)
    # 12_3 is a task of an array, 12+1 a component of a heterogeneous job.
    return {name: re.split(r"[_+]", job_id)[0] for job_id, _, name in rows if name in names}


def most_tasks() -> int:
    """Return the most tasks of a job array of the site; 1 where it has none (MaxArraySize of 0 or 1)."""
    # The indices of its tasks are below MaxArraySize, and begin with 0 here.
    size = configuration().get("MaxArraySize", "").strip()
    return max(1, int(size)) if size.isdigit() else DEFAULT_ARRAY_SIZE


def queue() -> dict[str, JobState]:
    """Return the state of every job of this user in the queue, by id (array tasks as 12_3): one squeue.

    Also jobs in hidden partitions, which an ordinary user does not see by default.
    """
    held = {}
    # -r: one row for each task of an array. Name and command come last, since both may contain the separator.
    for line in ask("squeue", "--me", "-a", "-r", "-h", "-o", "%i|%T|%S|%r|%A|%j|%o").splitlines():
        row = QUEUED.fullmatch(line)
        if row is None:  # a line that a site's wrapper prints, or a warning
            continue
        waits = row["state"] == "PENDING"
        job = JobState(
            row["state"],
            row["reason"] if waits else None,
            row["start"] if waits and row["start"] != "N/A" else None,
            described=row["described"] or "",
        )
        held[row["id"]] = job
        # The ranks of an array that was submitted by hand know only this number.
        held.setdefault(row["own"] or row["id"], job)
    return held


def unlisted(late: Mapping[str, JobState]) -> dict[str, JobState]:
    """Return the states of jobs that squeue does not list and accounting has not ended, given as accounting has them.

    squeue may list less than Slurm has. The controller's own record of each job decides.
    """
    found = {job_id: JobState(UNKNOWN, job.reason) for job_id, job in late.items()}
    for array in sorted({job_id.partition("_")[0] for job_id in late})[:MOST_ASKED_ALONE]:
        own = {job_id: job for job_id, job in late.items() if job_id.partition("_")[0] == array}
        try:
            shown = shown_tasks(array)
        except AwayError as error:
            found |= dict.fromkeys(own, JobState(UNKNOWN, f"Slurm does not answer here: {error}"))
        except SubmitError:
            # No longer in its memory, some minutes after its end. Or it never was, and accounting was left behind.
            found |= {job_id: replace(job, is_unknown_to_controller=True) for job_id, job in own.items()}
        else:
            held = {each: JobState(job["JobState"], job.get("Reason")) for each, job in shown.items() if each in own}
            found |= own | {job_id: job for job_id, job in held.items() if job.state not in ENDED}
    return found


def shown_tasks(job_id: str) -> dict[str, dict[str, str]]:
    """Return the fields of a job, or of each task of an array, in the memory of the controller, by id."""
    found: dict[str, dict[str, str]] = {}
    for line in ask("scontrol", "--all", "--oneliner", "show", "job", job_id).splitlines():
        job = fields_of(line)
        if "JobState" not in job:  # a line that a site's wrapper prints
            continue
        tasks = f"{job['ArrayJobId']}_{job['ArrayTaskId']}" if "ArrayTaskId" in job else job.get("JobId", "")
        several = f"{job.get('ArrayJobId')}_[{job.get('ArrayTaskId')}]"
        found |= dict.fromkeys(tasks_of(several if JOB_TASKS.fullmatch(several) else tasks), job)
    return found


@dataclass(frozen=True)
class QueuedJob:
    """A job of this user in the queue, or a task of an array, with what identifies it besides its id."""

    job_id: str
    array: str
    """The job id of its array; its own where it is not in one."""
    own_id: str
    """The number that the job has in its environment as SLURM_JOB_ID."""
    name: str
    work_dir: str
    command: str
    """The path of its script; until Slurm 22.05 with the arguments."""


def queued_jobs(job_ids: Iterable[str]) -> list[QueuedJob]:
    """Return those of these jobs, and of the tasks of these arrays, that are this user's and not over.

    One squeue; jobs that it does not list are looked up one by one.
    """
    arrays = {job_id.partition("_")[0] for job_id in job_ids}
    rows = ask("squeue", "--me", "-a", "-r", "-h", "-o", "%i\t%F\t%A\t%j\t%Z\t%o").splitlines()
    listed = [QueuedJob(row[0].removesuffix("+0"), *row[1:]) for line in rows if len(row := line.split("\t", 5)) == 6]
    found = [job for job in listed if {job.array, job.own_id} & arrays]
    known = {number for job in found for number in (job.array, job.own_id)}
    for array in sorted(arrays - known)[:MOST_ASKED_ALONE]:
        try:
            shown = shown_tasks(array)
        except AwayError:
            raise
        except SubmitError:  # an id that the controller no longer knows
            continue
        for task, job in shown.items():
            mine = job.get("UserId", "").endswith(f"({os.getuid()})")
            if mine and job["JobState"] not in ENDED:
                own, name, command = job["JobId"], job["JobName"], job.get("Command", "")
                found.append(QueuedJob(task, array, own, name, job.get("WorkDir", ""), command))
    return found


def stored_script(job_id: str) -> str:
    """Return the batch script of a job as Slurm keeps it."""
    return ask("scontrol", "write", "batch_script", job_id, "-")


def user_name(uid: str) -> str:
    """Return the name of a user id; the id itself if this machine does not know it."""
    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (KeyError, ValueError):
        return uid


def shown_job(job_id: str) -> dict[str, str]:
    """Return the fields of `scontrol show job` for a job in the memory of slurmctld: JobState, PreemptTime, ..."""
    return patiently(lambda: shown_job_once(job_id))


def shown_job_once(job_id: str) -> dict[str, str]:
    """Return the same after one call; raises AwayError if Slurm does not answer now."""
    printed = answered_once("scontrol", "--all", "--oneliner", "show", "job", job_id, timeout_s=COMMAND_TIMEOUT_S)
    jobs = [job for job in map(fields_of, printed.stdout.splitlines()) if "JobState" in job]
    if not jobs:
        raise AwayError(f"scontrol show job {job_id} printed no job: {message(printed.stdout)}")
    return jobs[0]


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a line of `scontrol --oneliner`; Command, which may have blanks, is whole.

    SubmitLine (since 25.11) is left out: it contains what the user typed, and so may contain the names of fields.
    """
    typed = TYPED.search(line)
    whole = {"Command": typed[1]} if typed else {}
    return dict(re.findall(r"(\S+?)=(\S*)", TYPED.sub("", line, count=1))) | whole


def time_left_s(job_id: str) -> float:
    """Return the seconds until the time limit of a running job; infinity without a limit."""
    end = shown_job(job_id)["EndTime"]
    if end == "Unknown":
        return math.inf
    # By the clock of the controller, which ends the job: that of this node may be ahead. Slurm writes local time.
    printed = re.match(r"Configuration data as of (\S+)", ask("scontrol", "show", "config"))
    now = datetime.fromisoformat(printed[1]) if printed else datetime.now()  # noqa: DTZ005
    return (datetime.fromisoformat(end).astimezone() - now.astimezone()).total_seconds()


def share_of_a_node(job_id: str) -> tuple[int | None, int | None]:
    """Return the CPUs and the GPUs that a job has on each of its nodes, at least; None for what Slurm does not show."""
    shown = ask("scontrol", "--all", "--oneliner", "--details", "show", "job", job_id)
    job = fields_of(shown)
    numbers = [job.get(name, "") for name in ("NumCPUs", "NumNodes")]
    cpus = int(numbers[0]) // int(numbers[1]) if all(map(str.isdigit, numbers)) else None
    # Of each group of equal nodes: GRES=gpu:a100:4(IDX:0-3),nic:1
    gpus = [sum(map(int, GPUS.findall(gres))) for gres in re.findall(r"(?<!\w)GRES=(\S*)", shown)]
    return cpus, min(gpus, default=None)


def host_list(nodes: list[str]) -> str:
    """Return nodes in Slurm's notation: node[01-04,07]."""
    return ask("scontrol", "show", "hostlist", ",".join(nodes)).strip()


def requeue(job_id: str, *, restart: int = 0) -> None:
    """Requeue a job that runs and was restarted `restart` times before; this ends its batch script.

    Slurm may requeue it and its answer may be lost: then it must not end the next start as well.
    """
    tries = 0

    def once() -> None:
        nonlocal tries
        tries += 1
        if tries > 1:
            job = shown_job_once(job_id)
            # The earlier try has reached Slurm.
            if job.get("Restarts", "0") != str(restart) or job["JobState"] == "PENDING":
                return
        answered_once("scontrol", "requeue", job_id, timeout_s=COMMAND_TIMEOUT_S)

    patiently(once)


def postpone(job_id: str, *, pause_s: int, avoid: list[str]) -> None:
    """Delay a requeued job, and exclude nodes from it."""
    wanted = [f"StartTime=now+{pause_s}"] if pause_s else []
    if avoid:
        wanted.append(f"ExcNodeList={','.join(avoid)}")
    if wanted:
        ask("scontrol", "update", f"JobId={job_id}", *wanted)
