"""Identity of a configuration and of a repeat, for our runs and for logs of other programs.

A *configuration* is everything that is equal along a line over ranks. A *repeat* measures one configuration on as many
ranks and nodes, with the same global batch, on the same system. The name of a file does not
identify a run. Which logs are of one run: analysis.logs.identity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from analysis.run import RunResult
from analysis.untrusted import canonical

# Settings in which points of one line may differ: the axis itself, repeats, and how and where a run started. The global
# batch of weak scaling is not among them because it is not a setting: it follows from the ranks.
NOT_COMPARED = {
    "nodes",
    "ranks",
    "job.seed",
    "ranks_per_node",
    "repeat",
    "name",
    "sweep",
    "runs_dir",
    "wall_time_min",
    "data.cache_dir",
    "gpu.compute_capability",
    "cluster.service_units_per_node_hour",
    "cluster.price_per_gpu_hour",
    "cluster.price_per_kwh",
    # Bandwidths that predictions take.
    "cluster.network_gb_per_s",
    "network.gb_per_s",
    "cluster.pue",
    "cluster.currency",
    "engine.hang_timeout_s",
    "engine.startup_limit_s",
    "launcher.kind",
    "launcher.max_running",
    "launcher.pilot_nodes",
    "launcher.pilot_wall_time_min",
    "launcher.spare_nodes",
    "launcher.exclude_known_bad",
    "cluster.sbatch.exclude",
    "cluster.stage_environment",
    "job.checkpoint_copy_dir",
    # MLPerf's name of a system contains its size.
    "system.name",
}
# The section `report`: how runs are shown.
TABLE = "report"
# Settings of the network between nodes: a run on one node is a point of the line of every such network. A library of
# collectives and its variables act inside a node, too.
BETWEEN_NODES = frozenset(
    f"network.{key}" for key in ("name", "transport", "adapters", "interface", "gid_index", "plugin")
)


def compared(run: RunResult) -> dict[str, Any]:
    """Return the settings that are equal within a line, by dotted keys, and the device that was found."""
    settings = {
        key: value for key, value in run.settings.items() if key not in NOT_COMPARED and not key.startswith(TABLE)
    }
    return settings | {"device": run.started.get("device_name")}


def batch(run: RunResult) -> dict[str, Any]:
    """Return the global batch."""
    size = run.plan.get("global_batch_size")
    return {"global_batch_size": size if isinstance(size, int) else None}


def batch_per_rank(run: RunResult) -> dict[str, Any]:
    """Return the share of the global batch of one rank."""
    size = batch(run)["global_batch_size"]
    return {"batch_per_rank": str(Fraction(size, run.ranks)) if size is not None and run.ranks else None}


def system(run: RunResult) -> dict[str, Any]:
    """Return the name of the system that a submitter gave it."""
    return {"system.name": run.setting("system.name")}


def repeat(run: RunResult) -> dict[str, Any]:
    """Return what repeats of one point have in common beyond their configuration."""
    return batch(run) | system(run)


def place(run: RunResult) -> tuple[int, int]:
    """Return ranks and nodes; 0 where unknown."""
    return run.ranks or 0, run.setting("nodes") or 0


# What a line may have in common besides its configuration, in the order of preference.
COMMON: tuple[Callable[[RunResult], dict[str, Any]], ...] = (batch, batch_per_rank, system, repeat)


def lines_of(runs: Iterable[RunResult]) -> list[tuple[dict[str, Any], list[RunResult]]]:
    """Return the runs of each line with what they have in common.

    Runs on equal ranks and nodes of one line are repeats. Where those of a configuration are not, it has as few lines
    as separate them.
    """
    configurations: dict[bytes, list[RunResult]] = defaultdict(list)
    for run in runs:
        configurations[canonical(compared(run))].append(run)
    families: dict[bytes, list[list[RunResult]]] = defaultdict(list)
    for members in configurations.values():
        # Lines of a campaign are its attempts.
        alone = members[0].provenance.get("attempt") is not None
        families[canonical(compared(members[0]) if alone else without_network(members[0]))].append(members)
    return [line for family in families.values() for line in lines_of_family(family)]


def without_network(run: RunResult) -> dict[str, Any]:
    """Return the compared settings of a run except those of the network between nodes."""
    return {key: value for key, value in compared(run).items() if key not in BETWEEN_NODES}


def lines_of_family(family: Sequence[Sequence[RunResult]]) -> list[tuple[dict[str, Any], list[RunResult]]]:
    """Return the lines of configurations that differ in their network only.

    Configurations that ran on one node only are part of the line of each network that joined nodes, except at places
    where that network has runs of its own.
    """
    single = [members for members in family if all(run.setting("nodes") == 1 for run in members)]
    if not single or len(single) == len(family):
        return [line for members in family for line in separated(members)]
    lines = []
    for own in family:
        if own not in single:
            places = set(map(place, own))
            lent = [run for members in single for run in members if place(run) not in places]
            lines += [line for line in separated([*own, *lent]) if any(run in own for run in line[1])]
    taken = {run.path for _, members in lines for run in members}
    left = [[run for run in members if run.path not in taken] for members in single]
    return [*lines, *(line for members in left if members for line in separated(members))]


def separated(members: Sequence[RunResult]) -> list[tuple[dict[str, Any], list[RunResult]]]:
    """Return the runs of one configuration in as few lines as have repeats on equal ranks and nodes only."""
    settings = compared(members[0])
    if is_line(members):
        return [(settings, list(members))]
    ways = [(common, parts(members, common)) for common in COMMON]
    common, best = min((way for way in ways if all(map(is_line, way[1].values()))), key=lambda way: len(way[1]))
    return [(settings | common(own[0]), own) for own in best.values()]


def parts(runs: Sequence[RunResult], common: Callable[[RunResult], dict[str, Any]]) -> dict[str, list[RunResult]]:
    """Return the runs by what they have in common."""
    found: dict[str, list[RunResult]] = defaultdict(list)
    for run in runs:
        found[str(common(run))].append(run)
    return found


def is_line(runs: Sequence[RunResult]) -> bool:
    """Return True if runs on equal ranks and nodes are repeats of each other."""
    found: dict[tuple[int, int], set[str]] = defaultdict(set)
    for run in runs:
        found[place(run)].add(str(repeat(run)))
    return all(len(each) == 1 for each in found.values())
