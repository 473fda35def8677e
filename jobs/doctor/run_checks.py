"""Checks of a composed run against the cluster: each rule yields findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from jobs.doctor.cluster import Node, Site, tres
from jobs.doctor.report import Finding, Verdict
from jobs.errors import SubmitError
from jobs.plan.legality import problems
from jobs.plan.time_limit import limit_min
from jobs.schema import Run
from jobs.submit import scheduler_call
from jobs.submit.slurm import commands as slurm_commands
from jobs.work.work import work_of


def run_checks(site: Site, run: Run) -> list[Finding]:
    """Return the findings of every rule; of a partition that does not exist only that."""
    parts = asked_alike(run)
    of_nodes = [finding for each in parts for finding in node_checks(site, each)]
    if any(chosen_partition(site, each) is None for each in parts):
        return of_nodes
    return [*of_nodes, *account_and_qos(site, run), *layout_and_batch(run)]


def asked_alike(run: Run) -> list[Run]:
    """Return a run for each component of the job of a run; the run itself where there is only one."""
    components = work_of(run).components(run)
    if len(components) == 1:
        return [run]
    return [
        replace(
            run,
            nodes=each.nodes,
            cluster=replace(run.cluster, partition=each.partition, gpus=each.gpus, memory_gb_per_node=each.memory_gb),
        )
        for each in components
    ]


def node_checks(site: Site, run: Run) -> list[Finding]:
    """Return the findings about nodes, most important first; only the first if the partition does not exist."""
    name = run.cluster.partition
    settings = chosen_partition(site, run)
    spares = run.launcher.spare_nodes
    size = run.nodes, run.wall_time_min
    beyond = list(slurm_commands.beyond_partition(site.partitions, name, *size, spares=spares))
    if settings is None:
        none = f"there is no default partition; the partitions are {', '.join(sorted(site.partitions))}"
        choose = "Set cluster.partition=NAME, or partition in your cluster file."
        return [Finding("partition", " ".join(beyond) or none, Verdict.wrong, choose)]
    partition = settings["PartitionName"]
    nodes = site.nodes.get(partition, [])
    return [
        *partition_takes_jobs(settings, run, nodes),
        *nodes_and_time(settings, run, beyond),
        *capacities(run, partition, nodes),
        *gpus_are_used(run, nodes),
        *memory_is_asked(site, settings, run),
    ]


def chosen_partition(site: Site, run: Run) -> dict[str, str] | None:
    """Return the settings of the first partition of the run that can run it; of the first one if none can."""
    names = (run.cluster.partition or "").split(",")
    size = run.nodes, run.wall_time_min
    fitting = [each for each in names if not any(slurm_commands.beyond_partition(site.partitions, each or None, *size))]
    return site.partitions.get([*fitting, *names][0])


def partition_takes_jobs(settings: dict[str, str], run: Run, nodes: list[Node]) -> Iterator[Finding]:
    """Check that the partition is open and enough of its nodes accept jobs."""
    name = settings["PartitionName"]
    usable = sum(node.is_usable for node in nodes)
    if settings.get("State") != "UP":
        yield Finding(
            "partition", f"{name} is {settings.get('State')}", Verdict.wrong, "Set cluster.partition=ANOTHER."
        )
    elif usable < run.job_nodes <= len(nodes):
        late = "The run waits until more nodes are back" + (f"; or set nodes={usable} or less." if usable else ".")
        yield Finding("partition", f"{usable} of {len(nodes)} nodes of {name} accept jobs now", Verdict.warning, late)
    else:
        yield Finding("partition", f"{name}: {usable} of {len(nodes)} nodes accept jobs now")


def nodes_and_time(settings: dict[str, str], run: Run, beyond: list[str]) -> Iterator[Finding]:
    """Check nodes and time limit of the run, and the limits in the cluster file."""
    spares = f", launcher.spare_nodes={run.launcher.spare_nodes}" if run.launcher.spare_nodes else ""
    wanted = f"nodes={run.nodes}{spares}, wall_time_min={run.wall_time_min}"
    for sentence in beyond:
        found, advice = split_remedy(sentence)
        yield Finding("nodes and time", found, Verdict.wrong, advice)
    if not beyond:
        yield Finding("nodes and time", wanted)
    for key, value, most in (
        ("max_nodes", run.cluster.max_nodes, settings.get("TotalNodes", "")),
        ("max_wall_time_min", run.cluster.max_wall_time_min, limit_min(settings.get("MaxTime", ""))),
    ):
        if value is not None and str(most).isdigit() and value > int(str(most)):
            found = f"cluster.{key}={value}, but partition {settings['PartitionName']} allows {most}"
            yield Finding("cluster file", found, Verdict.warning, f"Set {key}: {most} in your cluster file.")


def capacities(run: Run, partition: str, nodes: list[Node]) -> Iterator[Finding]:
    """Check that enough nodes have the GPUs, CPUs and memory that the run needs on each."""
    cluster, ranks = run.cluster, run.ranks_per_node
    cpus = ranks * (cluster.cpus_per_rank or 1)
    rules: tuple[tuple[str, int | None, Callable[[Node], int], Callable[[int], str]], ...] = (
        ("GPUs", ranks if cluster.gpus else None, lambda node: node.gpus, fewer_gpus),
        ("CPUs", cpus, lambda node: node.cpus, lambda most: fewer_cpus(run, most)),
        ("GiB of memory", cluster.memory_gb_per_node, lambda node: node.memory_mib // 1024,
         lambda most: f"Set cluster.memory_gb_per_node={most} or less."),
    )  # fmt: skip
    for what, wanted, has, advice in rules:
        if wanted is None or not nodes:
            continue
        amounts = sorted(map(has, nodes), reverse=True)
        # The amount that at least run.job_nodes nodes have.
        most = amounts[min(run.job_nodes, len(nodes)) - 1]
        if most >= wanted:
            yield Finding(f"{what} a node", f"{wanted} of {most}")
            continue
        enough = sum(amount >= wanted for amount in amounts)
        found = f"{wanted} needed; {enough} of {len(nodes)} nodes of {partition} have them, others have {most}"
        yield Finding(f"{what} a node", found, Verdict.wrong, advice(most))


def fewer_gpus(most: int) -> str:
    """Return the remedy if nodes have fewer GPUs than ranks."""
    if not most:
        return "Set cluster.gpus=false for a run on CPUs, or cluster.partition=ONE_WITH_GPUS."
    return f"Set ranks_per_node={most} or less; ranks_per_node in a cluster file is the number of GPUs of a node."


def fewer_cpus(run: Run, most: int) -> str:
    """Return the remedy if nodes have fewer CPUs than the ranks need."""
    each = most // run.ranks_per_node
    if run.cluster.cpus_per_rank is None or not each:
        return f"Set ranks_per_node={most} or less."
    return f"Set cluster.cpus_per_rank={each} or less."


def gpus_are_used(run: Run, nodes: list[Node]) -> Iterator[Finding]:
    """Check that no GPU of a node stays unused, which is rarely intended."""
    gpus = min((node.gpus for node in nodes), default=0)
    if gpus and not run.cluster.gpus:
        found = f"cluster.gpus=false, but nodes have {gpus} GPUs"
        yield Finding("GPUs in use", found, Verdict.warning, "Set gpus: true and ranks_per_node in your cluster file.")
    elif run.cluster.gpus and run.cluster.exclusive and run.ranks_per_node < gpus:
        found = f"{run.ranks_per_node} of {gpus}, on exclusive nodes"
        yield Finding("GPUs in use", found, Verdict.warning, f"Set ranks_per_node={gpus}, or cluster.exclusive=false.")


def memory_is_asked(site: Site, settings: dict[str, str], run: Run) -> Iterator[Finding]:
    """Check that memory is requested: the default of a site is rarely enough for training."""
    if run.cluster.memory_gb_per_node is not None or run.cluster.sbatch.keys() & {"mem", "mem-per-cpu", "mem-per-gpu"}:
        return
    for key in ("DefMemPerCPU", "DefMemPerNode"):
        default = settings.get(key) or site.config.get(key, "")
        if default.isdigit() and int(default):
            yield Finding(
                "memory",
                f"not requested, so a job gets {key}={default} (MiB)",
                Verdict.warning,
                "Set cluster.memory_gb_per_node=N to the memory that a run needs on a node.",
            )
            return


def account_and_qos(site: Site, run: Run) -> Iterator[Finding]:
    """Check that the user may use this account and QOS, and that the run keeps their limits."""
    cluster = run.cluster
    if not site.associations:
        return
    mine = [row for row in site.associations if cluster.account in {None, row.get("Account")}]
    if not mine:
        accounts = ", ".join(sorted({row.get("Account", "?") for row in site.associations}))
        found = f"cluster.account={cluster.account} is not one of your accounts ({accounts})"
        yield Finding("account", found, Verdict.wrong, f"Set cluster.account={accounts.split(', ')[0]}.")
        return
    allowed = sorted({name for row in mine for name in row.get("QOS", "").split(",") if name})
    defaults = {row.get("DefaultQOS") for row in mine}
    qos = cluster.qos or (defaults.pop() if len(defaults) == 1 else None)
    if cluster.qos is not None and cluster.qos not in allowed:
        found = f"cluster.qos={cluster.qos} is not one of your QOS ({', '.join(allowed)})"
        yield Finding("QOS", found, Verdict.wrong, f"Set cluster.qos={allowed[0] if allowed else 'null'}.")
        return
    yield Finding("account and QOS", f"{cluster.account or 'your default account'}, {qos or 'its default QOS'}")
    # With several associations and no choice Slurm decides which one applies; sbatch --test-only below shows it.
    limits = [("account", mine[0])] if len(mine) == 1 else []
    limits += [(f"QOS {qos}", site.qos[qos])] if qos in site.qos else []
    for whose, row in limits:
        yield from within_limits(whose, row, run)


def within_limits(whose: str, row: dict[str, str], run: Run) -> Iterator[Finding]:
    """Check the limits on one job of an account or a QOS."""
    most = limit_min(row.get("MaxWall", ""))
    if most is not None and run.wall_time_min > most:
        found = f"wall_time_min={run.wall_time_min}, but MaxWall={row['MaxWall']}"
        yield Finding(f"limits of {whose}", found, Verdict.wrong, f"Set wall_time_min={most} or less.")
    gpus = run.ranks_per_node * sum(each.nodes for each in work_of(run).components(run) if each.gpus)
    wanted = {"node": run.job_nodes, "gres/gpu": gpus}
    for key in ("MaxTRES", "MaxTRESPerJob", "MaxTRESPerUser", "GrpTRES"):
        for name, limit in tres(row.get(key, "")).items():
            if wanted.get(name, 0) > limit:
                found = f"{wanted[name]} of {name} needed, but {key}={row[key]}"
                yield Finding(f"limits of {whose}", found, Verdict.wrong, "Set fewer nodes, or another cluster.qos.")


def layout_and_batch(run: Run) -> Iterator[Finding]:
    """Check what `submit` refuses on any cluster."""
    for sentence in problems(run):
        found, advice = split_remedy(sentence)
        yield Finding("layout and batch", found, Verdict.warning, advice)


def split_remedy(sentence: str) -> tuple[str, str]:
    """Split the message of a refusal into problem and remedy; the remedy begins with an imperative."""
    found, *advice = re.split(r" (?=(?:Set|Use|Type|Choose) )", sentence, maxsplit=1)
    return found, "".join(advice)


def judged_by_sbatch(script: str, partition: str | None) -> Finding:
    """Test the batch script with sbatch, without submitting it."""
    try:
        start = slurm_commands.test_script(script, 1, partition)
    except scheduler_call.QueueFullError as limit:
        return Finding(
            "sbatch --test-only",
            f"your queue is full now ({limit})",
            Verdict.warning,
            "`submit` keeps the runs that Slurm does not accept yet, and submits them when your earlier jobs end.",
        )
    except SubmitError as error:
        return Finding(
            "sbatch --test-only",
            f"refused: {error}",
            Verdict.wrong,
            "Fix the findings above, or ask the administrators.",
        )
    return Finding("sbatch --test-only", f"expected start {start}" if start else "accepted")
