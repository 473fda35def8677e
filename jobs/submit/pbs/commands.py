"""The commands of PBS, each called once for many jobs: submission, states, limits, nodes."""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jobs.errors import SubmitError
from jobs.submit.pbs.call import PBS, document, known_and_unknown, message
from jobs.submit.pbs.states import dependencies, state_of
from jobs.submit.scheduler_call import NoAnswerError

# The id that qsub prints, among lines that wrappers of a site print: 14.pbshead
JOB = re.compile(r"^(\d+)(?:\.[\w.-]+)?$", re.MULTILINE)
# Operands of one qstat: a command line has room for more, and servers answer in seconds.
MOST_ASKED = 500
# The keys of the configuration that set the resources of the job of a run.
KEYS_OF_RUN = {
    "partition": "cluster.partition",
    "walltime": "wall_time_min",
    "nodect": "nodes",
    "ncpus": "cluster.cpus_per_rank or nodes",
    "ngpus": "nodes",
}
NO_HISTORY = re.compile(r"histor", re.IGNORECASE)
# By Getopt::Long of Slurm's wrapper, and by getopt of Torque.
NO_JSON = re.compile(r"Unknown option: F|invalid option -- '?F")
ELSEWHERE = (
    "Log in to the login node of the cluster (or load its PBS module), or set launcher=local cluster=local to run "
    "here, launcher=pbs_script to write scripts for later."
)


def require() -> None:
    """Raise SubmitError if the commands of PBS are not installed or no server answers."""
    if shutil.which("qsub") is None:
        raise SubmitError(f"launcher=pbs and pbs_pilot need qsub, which is not on this machine's PATH. {ELSEWHERE}")
    try:
        server()
    except SubmitError as error:
        if NO_JSON.search(str(error)):
            slurm = "Slurm is here: set launcher=slurm" if shutil.which("sbatch") else "Set launcher=pbs_script"
            raise SubmitError(
                "launcher=pbs needs PBS Pro or OpenPBS. The qstat of this machine has no option -F: it is Torque's, or "
                f"what Slurm brings for users of Torque (slurm-torque). {slurm}."
            ) from error
        raise SubmitError(f"launcher=pbs: no PBS server answers here ({error}). {ELSEWHERE}") from error


def submit(script: Path) -> str:
    """Submit a script with qsub; return the job id without its server.

    Raises NoAnswerError if the job may be in the queue.
    """
    printed = PBS.answered_or_unknown("qsub", str(script)).stdout
    job_id = JOB.search(printed)
    if job_id is None:
        raise NoAnswerError(f"qsub printed no job id: {message(printed)}", "PBS")
    return job_id[1]


def jobs(job_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the attributes of those of these jobs that the server has, with its history, by their ids."""
    asked = sorted(set(job_ids), key=int)
    found: dict[str, dict[str, Any]] = {}
    for first in range(0, len(asked), MOST_ASKED):
        some = asked[first : first + MOST_ASKED]
        shown, unknown = with_history(some)
        found |= shown
        # Releases of OpenPBS print only the first of several jobs as JSON (openpbs issue 2672).
        for left in some:
            if left not in found and left not in unknown:
                found |= with_history([left])[0]
    return found


def with_history(job_ids: list[str]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return the jobs that qstat shows, by id, and the ids that it says are unknown.

    Finished jobs are not among them if the server keeps no history.
    """
    try:
        found, unknown = known_and_unknown("qstat", "-x", "-f", "-F", "json", *job_ids)
    except SubmitError as error:
        if not NO_HISTORY.search(str(error)):
            raise
        found, unknown = known_and_unknown("qstat", "-f", "-F", "json", *job_ids)
    return {full.partition(".")[0]: job for full, job in found.get("Jobs", {}).items()}, unknown


def named(names: Iterable[str], _since: datetime) -> dict[str, str]:
    """Return the ids of this user's jobs by name, also of finished ones if the server keeps their history."""
    found = {}
    for name in names:
        wanted = ("-u", getpass.getuser(), "-N", name)
        try:
            printed = PBS.ask("qselect", "-x", *wanted)
        except SubmitError as error:
            if not NO_HISTORY.search(str(error)):
                raise
            printed = PBS.ask("qselect", *wanted)
        if listed := JOB.findall(printed):
            found[name] = listed[-1]
    return found


def wait_instead(instead: Mapping[str, Iterable[str]], waiting: Iterable[str]) -> None:
    """Let those of these waiting jobs that wait for the end of a key of `instead` wait for its jobs instead.

    Raises SubmitError if PBS refuses; a job that is over is not an error.
    """
    for job_id, job in jobs(waiting).items():
        if not state_of(job).is_alive:
            continue
        parts = {kind: ids for kind, ids in dependencies(job).items() if kind.startswith("after")}
        ends = [new for each in parts.get("afterany", ()) for new in instead.get(each, [each])]
        altered = parts | {"afterany": list(dict.fromkeys(ends))}
        if altered["afterany"] != parts.get("afterany", []):
            words = [":".join([kind, *ids]) for kind, ids in altered.items() if ids]
            document("qalter", "-W", f"depend={','.join(words)}", job_id)


def delete(job_ids: Iterable[str]) -> None:
    """Run qdel once for these jobs; one that is over is not an error."""
    some = list(job_ids)
    if some:
        document("qdel", *some)


def server() -> dict[str, Any]:
    """Return the attributes of the server."""
    return first_of(document("qstat", "-B", "-f", "-F", "json"), "Server", "qstat -B")


def first_of(found: Mapping[str, Any], section: str, command: str) -> dict[str, Any]:
    """Return the attributes of the first object in a section of a document; raises SubmitError without one."""
    objects = found.get(section) or {}
    if not objects:
        raise SubmitError(f"`{command}` shows no {section.lower()}")
    name, attributes = next(iter(objects.items()))
    return {"name": name, **attributes}


def queues() -> dict[str, dict[str, Any]]:
    """Return the attributes of each queue, by name."""
    return dict(document("qstat", "-Q", "-f", "-F", "json").get("Queue", {}))


def nodes() -> dict[str, dict[str, Any]]:
    """Return the attributes of each virtual node, by name."""
    return dict(document("pbsnodes", "-a", "-F", "json").get("nodes", {}))


def seconds(walltime: str) -> int | None:
    """Return a walltime of PBS in seconds: 24:00:00, 10:00, 90; None for another text."""
    if not re.fullmatch(r"\d+(:\d+){0,2}(\.\d+)?", walltime):
        return None
    total = 0
    for part in walltime.partition(".")[0].split(":"):
        total = 60 * total + int(part)
    return total


def beyond_queue(
    known: Mapping[str, Mapping[str, Any]],
    default: str | None,
    name: str | None,
    wanted: Mapping[str, int],
    keys: Mapping[str, str] = KEYS_OF_RUN,
) -> Iterator[str]:
    """Yield a sentence for each limit of a queue that a job exceeds, with the remedy.

    `wanted` has nodect, ncpus, ngpus and walltime (s) of the whole job, as far as they are known; `keys` are those of
    the configuration that set them.
    """
    queue = known.get(name or default or "")
    if queue is None:
        if name is not None:
            yield f"{keys['partition']}={name} does not exist here; the queues are {', '.join(sorted(known))}."
        return
    where = f"queue {name or default}"
    if queue.get("enabled") == "False":
        yield f"{where} accepts no jobs (enabled=False). Set another {keys['partition']}."
    most = queue.get("resources_max", {})
    limit = seconds(str(most.get("walltime", "")))
    if limit is not None and limit < 60:
        yield f"{where} allows a job {limit} s (resources_max.walltime). Set another {keys['partition']}."
    elif limit is not None and wanted.get("walltime", 0) > limit:
        yield (
            f"{keys['walltime']}={wanted['walltime'] // 60}, but {where} allows {limit // 60} (resources_max.walltime="
            f"{most['walltime']}). Set {keys['walltime']}={limit // 60} or less."
        )
    for resource in ("nodect", "ncpus", "ngpus"):
        if str(most.get(resource, "")).isdigit() and wanted.get(resource, 0) > int(most[resource]):
            yield (
                f"The job asks for {wanted[resource]} {resource}, but {where} allows a job {most[resource]} "
                f"(resources_max.{resource}). Set a smaller {keys[resource]}."
            )
