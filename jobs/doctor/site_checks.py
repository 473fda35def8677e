"""Checks of a cluster, independent of the run: one finding for each property that matters to runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jobs.doctor.cluster import Node, Site
from jobs.doctor.report import Finding, Verdict

# Slurm's default. Between SIGTERM and SIGKILL a run must reach a step boundary and save.
USUAL_KILL_WAIT_S = 30


def site_checks(site: Site) -> list[Finding]:
    """Return every finding about the site."""
    return [
        Finding("Slurm", f"{site.config.get('SLURM_VERSION')}, cluster {site.config.get('ClusterName')}"),
        *(partition(site, name) for name in sorted(name for name in site.partitions if name)),
        *unusable_nodes(site),
        sweeps(site),
        accounting(site),
        *limits(site),
        preemption(site),
        requeue(site),
        part_limits(site),
        kill_wait(site),
    ]


def partition(site: Site, name: str) -> Finding:
    """Check one partition: its nodes, hardware and limits."""
    settings, nodes = site.partitions[name], site.nodes.get(name, [])
    states = ", ".join(f"{count} {state}" for state, count in Counter(node.state for node in nodes).most_common())
    parts = [
        "the default" if settings.get("Default") == "YES" else "",
        f"{len(nodes)} nodes ({states})" if nodes else "no nodes",
        *hardware(nodes),
        f"a job gets at most {settings['MaxNodes']}" if settings.get("MaxNodes", "").isdigit() else "",
        f"up to {settings.get('MaxTime')}",
    ]
    found = "; ".join(filter(None, parts))
    if settings.get("State") != "UP":
        return Finding(
            f"partition {name}",
            f"{settings.get('State')}; {found}",
            Verdict.warning,
            "No job starts there until an administrator opens it; set another with cluster.partition=NAME.",
        )
    if not any(node.is_usable for node in nodes):
        return Finding(f"partition {name}", found, Verdict.warning, "None of its nodes accepts jobs now.")
    return Finding(f"partition {name}", found)


def hardware(nodes: list[Node]) -> Iterator[str]:
    """Yield a text for each kind of node."""
    kinds = Counter((node.gpus, node.cpus, node.memory_mib) for node in nodes)
    for (gpus, cpus, memory_mib), count in kinds.most_common():
        of = f"{count} with " if len(kinds) > 1 else ""
        yield f"{of}{gpus or 'no'} GPU{'' if gpus == 1 else 's'}, {cpus} CPUs, {memory_mib // 1024} GiB a node"


def unusable_nodes(site: Site) -> Iterator[Finding]:
    """Check for nodes that accept no jobs; Slurm gives the reason."""
    broken = {node.name: node for nodes in site.nodes.values() for node in nodes if not node.is_usable}
    if broken:
        found = ", ".join(f"{name} {node.state} ({node.reason or 'no reason given'})" for name, node in broken.items())
        yield Finding(
            "unusable nodes", found, Verdict.warning, "They accept no jobs; an administrator can resume them."
        )


def sweeps(site: Site) -> Finding:
    """Check the limits on jobs that are submitted at once."""
    tasks = int(site.config.get("MaxArraySize", "1001"))
    queued = site.config.get("MaxJobCount")
    found = f"arrays of at most {tasks} runs (MaxArraySize), {queued} jobs of all users (MaxJobCount)"
    if tasks < 2:
        return Finding(
            "sweeps", found, Verdict.warning, "Each run is a job of its own; launcher.max_running needs arrays."
        )
    return Finding("sweeps", found)


def accounting(site: Site) -> Finding:
    """Check whether Slurm records how jobs ended."""
    kind = site.config.get("AccountingStorageType", "none")
    if not site.has_accounting:
        advice = "The end of a job that recorded nothing itself stays unknown; other runs record their own end."
        return Finding("accounting", kind, Verdict.warning, advice)
    if site.accounting_error is not None:
        return Finding(
            "accounting",
            f"{kind}; sacctmgr reports: {site.accounting_error}",
            Verdict.warning,
            "The limits of your account are not known; `sbatch --test-only` below tests them all together.",
        )
    return Finding("accounting", kind)


def limits(site: Site) -> Iterator[Finding]:
    """Yield the limits of the user's accounts and QOS."""
    for row in site.associations:
        where = f" in partition {row['Partition']}" if "Partition" in row else ""
        yield Finding(f"account {row.get('Account', '?')}", f"QOS {row.get('QOS', 'none')}{where}{set_limits(row)}")
    allowed = {name for row in site.associations for name in row.get("QOS", "").split(",")}
    for name, row in site.qos.items():
        if name in allowed and set_limits(row):
            yield Finding(f"QOS {name}", set_limits(row).removeprefix("; "))


def set_limits(row: dict[str, str]) -> str:
    """Return the limits in a row of sacctmgr, for an account or QOS."""
    return "".join(f"; {key}={value}" for key, value in row.items() if key.startswith(("Max", "Grp")))


def preemption(site: Site) -> Finding:
    """Check which jobs may be preempted, and their grace time."""
    kind, mode = site.config.get("PreemptType", "preempt/none"), site.config.get("PreemptMode", "OFF")
    if kind in {"preempt/none", "(null)"}:  # (null) since Slurm 23.11
        return Finding("preemption", "off")
    user_signal = "preempt_send_user_signal" in site.config.get("SlurmctldParameters", "")
    victims = preempted_partitions(site) if kind == "preempt/partition_prio" else preempted_qos(site)
    who = ", ".join(f"{name} with {grace} s of grace" for name, grace in victims.items()) or "nobody now"
    found = f"{kind}, {mode}: {who}, after {'SIGUSR2' if user_signal else 'SIGTERM'}"
    if "0" in victims.values():
        return Finding(
            "preemption",
            found,
            Verdict.warning,
            "Without grace there is no time to save: set job.checkpoint_every_steps=N, to lose at most N steps.",
        )
    return Finding("preemption", found)


def preempted_partitions(site: Site) -> dict[str, str]:
    """Return the partitions that share nodes with one of a higher tier, each with its grace time in seconds."""
    named = {name: settings for name, settings in site.partitions.items() if name}
    nodes = {name: {node.name for node in site.nodes.get(name, [])} for name in named}
    tier = {name: int(settings.get("PriorityTier", "1")) for name, settings in named.items()}
    return {
        f"partition {name}": settings.get("GraceTime", "0")
        for name, settings in named.items()
        if settings.get("PreemptMode") != "OFF"
        and any(tier[other] > tier[name] and nodes[other] & nodes[name] for other in named)
    }


def preempted_qos(site: Site) -> dict[str, str]:
    """Return the QOS that another one may preempt, each with its grace time as Slurm prints it."""
    victims = {name for row in site.qos.values() for name in row.get("Preempt", "").split(",") if name}
    return {f"QOS {name}": site.qos.get(name, {}).get("GraceTime", "0") for name in sorted(victims)}


def requeue(site: Site) -> Finding:
    """Check whether Slurm requeues jobs by itself."""
    if site.config.get("JobRequeue") == "0":
        return Finding("requeue", "JobRequeue=0; our batch scripts request it with --requeue")
    return Finding("requeue", "JobRequeue=1")


def part_limits(site: Site) -> Finding:
    """Check whether Slurm refuses jobs that a partition can never run."""
    value = site.config.get("EnforcePartLimits", "NO")
    if value == "NO":
        return Finding("EnforcePartLimits", "NO: Slurm accepts jobs that can never run; `submit` refuses them")
    return Finding("EnforcePartLimits", value)


def kill_wait(site: Site) -> Finding:
    """Check the time between SIGTERM and SIGKILL of a cancelled job."""
    seconds = site.seconds("KillWait")
    if seconds is not None and seconds < USUAL_KILL_WAIT_S:
        return Finding(
            "KillWait",
            f"{seconds} s",
            Verdict.warning,
            "A cancelled run whose step and checkpoint take longer loses them: set job.checkpoint_every_steps=N.",
        )
    return Finding("KillWait", f"{seconds} s")
