"""Checks of a PBS cluster and of a run on it: what the server, its queues and its nodes report to this user."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.doctor.report import Finding, Verdict
from jobs.doctor.run_checks import layout_and_batch, split_remedy
from jobs.errors import SubmitError
from jobs.schema import PbsStart, Run
from jobs.submit.pbs import commands
from jobs.submit.pbs.resources import options, per_job, per_node

# States of a node on which no job starts, whoever asks.
UNUSABLE = {"down", "offline", "stale", "state-unknown", "unresolvable", "initializing", "provisioning"}
GIB = {"kb": 1 / 1024**2, "mb": 1 / 1024, "gb": 1.0, "tb": 1024.0}


@dataclass(frozen=True)
class PbsSite:
    """A PBS complex as it describes itself to this user."""

    server: Mapping[str, Any]
    queues: Mapping[str, Mapping[str, Any]]
    nodes: Mapping[str, Mapping[str, Any]]


def ask_pbs() -> PbsSite:
    """Return the description of the cluster: each command is called once, and none changes anything."""
    return PbsSite(commands.server(), commands.queues(), commands.nodes())


def pbs_site_checks(site: PbsSite) -> list[Finding]:
    """Return every finding about the site."""
    return [
        server(site),
        *(queue(site, name) for name in sorted(site.queues)),
        nodes(site),
        *unusable_nodes(site),
        history(site),
        node_failures(site),
    ]


def server(site: PbsSite) -> Finding:
    """Check that the server schedules jobs."""
    version, state = site.server.get("pbs_version", "?"), site.server.get("server_state", "?")
    found = f"{version}, server {site.server['name']}: {state}"
    if site.server.get("scheduling") == "False":
        advice = "No job starts until an administrator turns scheduling on; jobs can be submitted."
        return Finding("PBS", f"{found}, scheduling=False", Verdict.warning, advice)
    return Finding("PBS", found)


def queue(site: PbsSite, name: str) -> Finding:
    """Check one queue: its limits, its jobs, and that it starts them."""
    settings = site.queues[name]
    limits = ", ".join(f"{key}={value}" for key, value in settings.get("resources_max", {}).items())
    jobs = re.findall(r"(Queued|Running):(\d+)", str(settings.get("state_count", "")))
    per_user = [f"{key}={settings[key]}" for key in ("max_queued", "max_run") if key in settings]
    parts = [
        "the default" if name == site.server.get("default_queue") else "",
        str(settings.get("queue_type", "")),
        f"a job gets at most {limits}" if limits else "no limits of a job",
        *per_user,
        ", ".join(f"{number} {state.lower()}" for state, number in jobs),
    ]
    found = "; ".join(filter(None, parts))
    closed = [key for key in ("enabled", "started") if settings.get(key) == "False"]
    if closed:
        advice = "It accepts no jobs" if "enabled" in closed else "It accepts jobs and starts none"
        return Finding(f"queue {name}", f"{closed[0]}=False; {found}", Verdict.warning,
                       f"{advice}; set another with cluster.partition=NAME.")  # fmt: skip
    return Finding(f"queue {name}", found)


def nodes(site: PbsSite) -> Finding:
    """Describe the nodes: their kinds, and what of them is free now."""
    if not site.nodes:
        advice = "This user may not see them, so what a run asks for is not compared with them."
        return Finding("nodes", "pbsnodes shows none", Verdict.warning, advice)
    kinds = Counter(
        (amount(node, "ngpus"), amount(node, "ncpus"), round(memory_gib(node))) for node in site.nodes.values()
    )
    described = [
        f"{count} with {gpus or 'no'} GPUs, {cpus} CPUs, {memory} GiB"
        for (gpus, cpus, memory), count in kinds.most_common()
    ]
    usable = [node for node in site.nodes.values() if is_usable(node)]
    idle = sum(is_free(node) for node in usable)
    gpus = sum(free(node, "ngpus") for node in usable)
    total = sum(amount(node, "ngpus") for node in site.nodes.values())
    found = f"{'; '.join(described)}; free now: {idle} of {len(site.nodes)} nodes, {gpus} of {total} GPUs"
    return Finding("nodes", found)


def unusable_nodes(site: PbsSite) -> Iterator[Finding]:
    """Check for nodes that accept no jobs; PBS gives the reason as a comment."""
    broken = {name: node for name, node in site.nodes.items() if not is_usable(node)}
    if broken:
        found = ", ".join(
            f"{name} {node.get('state')} ({node.get('comment', 'no comment')})" for name, node in broken.items()
        )
        advice = "They accept no jobs; an administrator can bring them back."
        yield Finding("unusable nodes", found, Verdict.warning, advice)


def history(site: PbsSite) -> Finding:
    """Check that the server remembers how jobs ended."""
    if site.server.get("job_history_enable") != "True":
        advice = "The end of a job that recorded nothing itself stays unknown; other runs record their own end."
        return Finding("history", "job_history_enable=False", Verdict.warning, advice)
    return Finding("history", f"kept for {site.server.get('job_history_duration', 'the default time')}")


def node_failures(site: PbsSite) -> Finding:
    """Report how long a job of a lost node is shown as running."""
    seconds = site.server.get("node_fail_requeue", 310)
    if seconds == 0:
        advice = "A job of a lost node is shown as running for ever: cancel and resume it."
        return Finding("lost nodes", "node_fail_requeue=0", Verdict.warning, advice)
    return Finding("lost nodes", f"a job of a lost node is run again after {seconds} s (node_fail_requeue)")


def pbs_run_checks(site: PbsSite, run: Run) -> list[Finding]:
    """Return the findings of a run on the cluster."""
    return [
        *queue_of_run(site, run),
        *nodes_of_run(site, run),
        *cpus_are_asked(run),
        starts_nodes(run),
        *qsub_options(run),
        *layout_and_batch(run),
    ]


def queue_of_run(site: PbsSite, run: Run) -> Iterator[Finding]:
    """Check nodes, resources and time limit of a run against its queue."""
    default = site.server.get("default_queue")
    name = run.cluster.partition or default
    beyond = list(commands.beyond_queue(site.queues, default, run.cluster.partition, per_job(run)))
    for sentence in beyond:
        found, advice = split_remedy(sentence)
        yield Finding("queue", found, Verdict.wrong, advice)
    if name is None:
        listed = ", ".join(sorted(site.queues))
        yield Finding("queue", f"no default queue; the queues are {listed}", Verdict.wrong,
                      "Set cluster.partition=NAME.")  # fmt: skip
    elif not beyond:
        yield Finding("queue", f"{name}: nodes={run.nodes}, wall_time_min={run.wall_time_min}")


def nodes_of_run(site: PbsSite, run: Run) -> Iterator[Finding]:
    """Check that enough nodes have what a run asks for on each, now or when they are free."""
    if not site.nodes:
        return
    asked = per_node(run)
    shown = ", ".join(f"{name}={number}" for name, number in asked.items()) or "the defaults"

    def holds(node: Mapping[str, Any]) -> bool:
        return (
            amount(node, "ncpus") >= asked.get("ncpus", 1)
            and amount(node, "ngpus") >= asked.get("ngpus", 0)
            and memory_gib(node) >= asked.get("mem", 0)
        )

    fitting = [node for node in site.nodes.values() if holds(node)]
    usable = [node for node in fitting if is_usable(node)]
    now = sum(all(free(node, name) >= asked.get(name, 0) for name in ("ncpus", "ngpus")) for node in usable)
    found = f"{len(fitting)} of {len(site.nodes)} have {shown}; {now} of them free now"
    if len(fitting) < run.nodes:
        key = "cluster.cpus_per_rank, ranks_per_node or cluster.memory_gb_per_node"
        yield Finding("nodes", f"{found}, and the run asks for {run.nodes}", Verdict.wrong,
                      f"PBS accepts such a job and never starts it. Set fewer nodes, or a smaller {key}.")  # fmt: skip
    elif len(usable) < run.nodes:
        yield Finding("nodes", f"{found}; {len(usable)} accept jobs", Verdict.warning,
                      "The run waits until more nodes are back.")  # fmt: skip
    else:
        yield Finding("nodes", found)


def cpus_are_asked(run: Run) -> Iterator[Finding]:
    """Check that a job asks for CPUs: the default of PBS is one for each chunk, here a node."""
    if run.cluster.cpus_per_rank is None:
        yield Finding("CPUs", "not requested, so most sites give one CPU a node", Verdict.warning,
                      "Set cluster.cpus_per_rank to the CPUs of a node / ranks_per_node.")  # fmt: skip


def starts_nodes(run: Run) -> Finding:
    """Check that the program which starts the shells of the nodes is there; on the nodes it may be another one."""
    program = run.cluster.pbs_start.value
    where = shutil.which(program)
    if where is not None:
        return Finding("start of nodes", f"cluster.pbs_start={program}: {where}")
    others = " or ".join(each.value for each in PbsStart if shutil.which(each.value)) or "ssh"
    by_module = " A module may bring it: cluster.modules." if program == "mpirun" else ""
    advice = f"Set cluster.pbs_start={others}, unless the nodes have it.{by_module}"
    return Finding("start of nodes", f"cluster.pbs_start={program} is not on the PATH here", Verdict.warning, advice)


def qsub_options(run: Run) -> Iterator[Finding]:
    """Show the options of qsub, or why PBS has none for a setting."""
    try:
        lines = options(run)
    except SubmitError as error:
        found, advice = split_remedy(str(error))
        yield Finding("qsub", found, Verdict.wrong, advice)
        return
    yield Finding("qsub", " ".join(line for line in lines if not line.startswith(("-N", "-o", "-j"))))


def is_usable(node: Mapping[str, Any]) -> bool:
    """Return True if jobs run on a node, now or when it is free; its state is a list such as down,job-exclusive."""
    return UNUSABLE.isdisjoint(str(node.get("state", "")).replace(" ", "").split(","))


def is_free(node: Mapping[str, Any]) -> bool:
    """Return True if nothing runs on a node."""
    return str(node.get("state")) == "free" and not node.get("jobs")


def amount(node: Mapping[str, Any], resource: str) -> int:
    """Return how many of a resource a node has."""
    return number(node.get("resources_available", {}).get(resource))


def free(node: Mapping[str, Any], resource: str) -> int:
    """Return how many of a resource no job on a node holds; none if it is a job's alone."""
    if "job-exclusive" in str(node.get("state")):
        return 0
    return max(0, amount(node, resource) - number(node.get("resources_assigned", {}).get(resource)))


def number(value: object) -> int:
    """Return a count; 0 for a resource that a node does not have."""
    return int(str(value)) if str(value).isdigit() else 0


def memory_gib(node: Mapping[str, Any]) -> float:
    """Return the memory of a node in GiB, of a text such as 440gb."""
    match = re.fullmatch(r"(\d+)([kmgt]b)", str(node.get("resources_available", {}).get("mem", "")))
    return int(match[1]) * GIB[match[2]] if match else 0.0
