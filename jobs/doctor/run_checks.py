"""Whether a run, as it is composed, fits the cluster: rules from both to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jobs.doctor.cluster import Node, Site, tres
from jobs.doctor.report import Finding, Verdict
from jobs.errors import SubmitError
from jobs.plan.legality import problems
from jobs.schema import Run
from jobs.submit import slurm_commands


def run_checks(site: Site, run: Run) -> list[Finding]:
    """Every rule, in the order in which a person would mend them; only the first where there is no such partition."""
    name = run.cluster.partition
    settings = site.partitions.get(name or "")
    beyond = list(slurm_commands.beyond_partition(site.partitions, name, run.nodes, run.wall_time_min))
    if settings is None:
        none = f"there is no default one; there are {', '.join(sorted(site.partitions))}"
        choose = "Type cluster.partition=NAME, or set it in your cluster file."
        return [Finding("partition", " ".join(beyond) or none, Verdict.wrong, choose)]
    partition = settings["PartitionName"]
    nodes = site.nodes.get(partition, [])
    return [
        *partition_takes_jobs(settings, run, nodes),
        *nodes_and_time(settings, run, beyond),
        *capacities(run, partition, nodes),
        *gpus_are_used(run, nodes),
        *memory_is_asked(site, settings, run),
        *account_and_qos(site, run),
        *layout_and_batch(run),
    ]


def partition_takes_jobs(settings: dict[str, str], run: Run, nodes: list[Node]) -> Iterator[Finding]:
    """The partition is open, and enough of its nodes are in use or idle."""
    name = settings["PartitionName"]
    usable = sum(node.is_usable for node in nodes)
    if settings.get("State") != "UP":
        yield Finding(
            "partition", f"{name} is {settings.get('State')}", Verdict.wrong, "Type cluster.partition=ANOTHER."
        )
    elif usable < run.nodes <= len(nodes):
        late = "The run waits until others are back, or type nodes=" + (f"{usable} or less." if usable else "later.")
        yield Finding("partition", f"{usable} of {len(nodes)} nodes of {name} take jobs now", Verdict.warning, late)
    else:
        yield Finding("partition", f"{name}: {usable} of {len(nodes)} nodes take jobs now")


def nodes_and_time(settings: dict[str, str], run: Run, beyond: list[str]) -> Iterator[Finding]:
    """The run's nodes and time limit, and the most that the cluster file says there are."""
    wanted = f"nodes={run.nodes}, wall_time_min={run.wall_time_min}"
    for sentence in beyond:
        found, _, advice = sentence.partition(" Type ")
        yield Finding("nodes and time", found, Verdict.wrong, f"Type {advice}")
    if not beyond:
        yield Finding("nodes and time", wanted)
    for key, value, most in (
        ("max_nodes", run.cluster.max_nodes, settings.get("TotalNodes", "")),
        ("max_wall_time_min", run.cluster.max_wall_time_min, slurm_commands.minutes(settings.get("MaxTime", ""))),
    ):
        if value is not None and str(most).isdigit() and value > int(str(most)):
            found = f"cluster.{key}={value}, but partition {settings['PartitionName']} allows {most}"
            yield Finding("cluster file", found, Verdict.warning, f"Set {key}: {most} in your cluster file.")


def capacities(run: Run, partition: str, nodes: list[Node]) -> Iterator[Finding]:
    """Enough nodes have the GPUs, CPUs and memory that the run asks of each."""
    cluster, ranks = run.cluster, run.ranks_per_node
    cpus = ranks * (cluster.cpus_per_rank or 1)
    rules: tuple[tuple[str, int | None, Callable[[Node], int], Callable[[int], str]], ...] = (
        ("GPUs", ranks if cluster.gpus else None, lambda node: node.gpus, fewer_gpus),
        ("CPUs", cpus, lambda node: node.cpus, lambda most: fewer_cpus(run, most)),
        ("GiB of memory", cluster.memory_gb_per_node, lambda node: node.memory_mib // 1024,
         lambda most: f"Type cluster.memory_gb_per_node={most} or less."),
    )  # fmt: skip
    for what, wanted, has, advice in rules:
        if wanted is None or not nodes:
            continue
        amounts = sorted(map(has, nodes), reverse=True)
        # What as many nodes as the run wants have.
        most = amounts[min(run.nodes, len(nodes)) - 1]
        if most >= wanted:
            yield Finding(f"{what} a node", f"{wanted} of {most}")
            continue
        enough = sum(amount >= wanted for amount in amounts)
        found = f"{wanted} wanted, which {enough} of {len(nodes)} nodes of {partition} have; others have {most}"
        yield Finding(f"{what} a node", found, Verdict.wrong, advice(most))


def fewer_gpus(most: int) -> str:
    """What to type where nodes have fewer GPUs than ranks."""
    if not most:
        return "Type cluster.gpus=false for a run on CPUs, or cluster.partition=ONE_WITH_GPUS."
    return f"Type ranks_per_node={most} or less; a cluster file's ranks_per_node is the GPUs of a node."


def fewer_cpus(run: Run, most: int) -> str:
    """What to type where nodes have fewer CPUs than ranks want."""
    each = most // run.ranks_per_node
    if run.cluster.cpus_per_rank is None or not each:
        return f"Type ranks_per_node={most} or less."
    return f"Type cluster.cpus_per_rank={each} or less."


def gpus_are_used(run: Run, nodes: list[Node]) -> Iterator[Finding]:
    """GPUs that a node has and a run leaves alone are more often an oversight than a wish."""
    gpus = min((node.gpus for node in nodes), default=0)
    if gpus and not run.cluster.gpus:
        found = f"cluster.gpus=false, but nodes have {gpus} GPUs"
        yield Finding("GPUs in use", found, Verdict.warning, "Set gpus: true and ranks_per_node in your cluster file.")
    elif run.cluster.gpus and run.cluster.exclusive and run.ranks_per_node < gpus:
        found = f"{run.ranks_per_node} of {gpus}, on nodes that nobody else gets"
        yield Finding("GPUs in use", found, Verdict.warning, f"Type ranks_per_node={gpus}, or cluster.exclusive=false.")


def memory_is_asked(site: Site, settings: dict[str, str], run: Run) -> Iterator[Finding]:
    """Without a wish a site's default applies, which is seldom enough for training."""
    if run.cluster.memory_gb_per_node is not None or run.cluster.sbatch.keys() & {"mem", "mem-per-cpu", "mem-per-gpu"}:
        return
    for key in ("DefMemPerCPU", "DefMemPerNode"):
        default = settings.get(key) or site.config.get(key, "")
        if default.isdigit() and int(default):
            yield Finding(
                "memory",
                f"not asked for, so a job gets {key}={default} (MiB)",
                Verdict.warning,
                "Type cluster.memory_gb_per_node=N, what a run needs of a node.",
            )
            return


def account_and_qos(site: Site, run: Run) -> Iterator[Finding]:
    """The user may submit as this account with this QOS, whose limits the run keeps."""
    cluster = run.cluster
    if not site.associations:
        return
    mine = [row for row in site.associations if cluster.account in {None, row.get("Account")}]
    if not mine:
        accounts = ", ".join(sorted({row.get("Account", "?") for row in site.associations}))
        found = f"cluster.account={cluster.account} is none of yours ({accounts})"
        yield Finding("account", found, Verdict.wrong, f"Type cluster.account={accounts.split(', ')[0]}.")
        return
    allowed = sorted({name for row in mine for name in row.get("QOS", "").split(",") if name})
    defaults = {row.get("DefaultQOS") for row in mine}
    qos = cluster.qos or (defaults.pop() if len(defaults) == 1 else None)
    if cluster.qos is not None and cluster.qos not in allowed:
        found = f"cluster.qos={cluster.qos} is none of yours ({', '.join(allowed)})"
        yield Finding("QOS", found, Verdict.wrong, f"Type cluster.qos={allowed[0] if allowed else 'null'}.")
        return
    yield Finding("account and QOS", f"{cluster.account or 'your default account'}, {qos or 'its default QOS'}")
    # Several associations without a choice: which one counts is Slurm's to say, below.
    limits = [("account", mine[0])] if len(mine) == 1 else []
    limits += [(f"QOS {qos}", site.qos[qos])] if qos in site.qos else []
    for whose, row in limits:
        yield from within_limits(whose, row, run)


def within_limits(whose: str, row: dict[str, str], run: Run) -> Iterator[Finding]:
    """The limits on one job that an account or a QOS sets."""
    most = slurm_commands.minutes(row.get("MaxWall", ""))
    if most is not None and run.wall_time_min > most:
        found = f"wall_time_min={run.wall_time_min}, but MaxWall={row['MaxWall']}"
        yield Finding(f"limits of {whose}", found, Verdict.wrong, f"Type wall_time_min={most} or less.")
    wanted = {"node": run.nodes, "gres/gpu": run.ranks if run.cluster.gpus else 0}
    for key in ("MaxTRES", "MaxTRESPerJob", "MaxTRESPerUser", "GrpTRES"):
        for name, limit in tres(row.get(key, "")).items():
            if wanted.get(name, 0) > limit:
                found = f"{wanted[name]} of {name} wanted, but {key}={row[key]}"
                yield Finding(f"limits of {whose}", found, Verdict.wrong, "Type nodes=FEWER, or another cluster.qos.")


def layout_and_batch(run: Run) -> Iterator[Finding]:
    """What `submit` refuses whatever the cluster."""
    for sentence in problems(run):
        found, _, advice = sentence.partition(" Type ")
        yield Finding("layout and batch", found, Verdict.warning, f"Type {advice}" if advice else "")


def judged_by_sbatch(script: str) -> Finding:
    """What sbatch itself says of the batch script, without submitting it."""
    try:
        start = slurm_commands.test_script(script, jobs=1)
    except slurm_commands.QueueFullError as limit:
        return Finding(
            "sbatch --test-only",
            f"your queue is full now ({limit})",
            Verdict.warning,
            "`submit` keeps what Slurm does not take yet and sends it as your earlier jobs end.",
        )
    except SubmitError as error:
        return Finding(
            "sbatch --test-only", f"refused: {error}", Verdict.wrong, "Mend what is named above, or ask the site."
        )
    return Finding("sbatch --test-only", f"expected start {start}" if start else "accepted")
