"""Servers for a number of users: the highest concurrency within limits of a search, spread over further replicas."""

from __future__ import annotations

import math

from analysis.formatting import plural
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult, hardware
from analysis.scaling.serving import degrees, replica_ranks, replicas
from jobs import metrics as m

USERS = (64, 256, 1024, 4096)


def sizing_section(digest: Digest) -> Section | None:
    """Return a row for each search that found a concurrency, the fewest servers first; None without any."""
    found = [run for run in digest.served if users_of_replica(run) >= 1]
    listed = sorted(found, key=lambda run: (servers(run, USERS[-1])[1], -users_of_replica(run), run.name))
    rows = [
        [
            run.name,
            " x ".join(map(str, degrees(run))),
            f"{users_of_replica(run):,.0f}",
            *(needs(run, users) for users in USERS),
            f"{hardware([run])}: {run.setting('model.name')}; {plural(server_ranks(run), 'rank')} a server",
        ]
        for run in listed
    ]
    note = (
        "Replicas, and servers of as many ranks as a node of the cluster has, for users with one request under way "
        "each. Users of a replica: the highest concurrency within limits (above), divided by the replicas that shared "
        "it; more replicas are taken to serve as many users each, which is not measured. A model must fit its replica "
        "as it did there, and requests and limits are those of the search."
    )
    headings = ("Run", "TP x PP", "Users of a replica", *(f"{users:,} users" for users in USERS), "Model and server")
    return Section("Servers for users", note, headings, rows) if rows else None


def users_of_replica(run: RunResult) -> float:
    """Return the users that a replica serves within the limits; 0 without a search."""
    return math.floor(run.values.get(m.HIGHEST_CONCURRENCY, 0) / max(1, replicas(run)))


def server_ranks(run: RunResult) -> int:
    """Return the ranks of a server: of a node of the cluster, else of the run."""
    known = run.setting("cluster.ranks_per_node") or run.setting("ranks_per_node")
    return known if isinstance(known, int) and known > 0 else run.ranks or 1


def servers(run: RunResult, users: int) -> tuple[int, int]:
    """Return replicas and servers for a number of users; a replica that is larger than a server takes whole ones."""
    count, ranks, own = math.ceil(users / users_of_replica(run)), replica_ranks(run), server_ranks(run)
    if ranks > own:
        return count, count * math.ceil(ranks / own)
    return count, math.ceil(count / (own // ranks))


def needs(run: RunResult, users: int) -> str:
    """Return replicas and servers as text: `12 on 3`."""
    count, hosts = servers(run, users)
    return f"{count:,} on {hosts:,}"
