"""The ledger of hosts: failing, slow and good ones with their evidence, and the share of variance that hosts explain.

A host fails if its share of faults is higher than chance allows at the rate of the other hosts (one-sided binomial
test): a program that is killed everywhere blames no host. A host is slow by the compute times of ranks, which do not
contain waiting, in at least two runs.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from jobs.errors import SubmitError
from jobs.schema import Run
from jobs.submit.hosts.evidence import Evidence, Facts, Speed, facts_of
from jobs.submit.requeue import FAULTS_OF_A_BAD_NODE
from jobs.submit.slurm import commands as slurm_commands

# Probability of as many faults on a host like the others, below which it is called failing.
CHANCE = 0.01
# Compute time over that of the others, and the number of runs in which it was so, from which a host is called slow.
SLOW = 1.1
RUNS_OF_A_SLOW_HOST = 2
STARTS_OF_A_GOOD_HOST = 3
MOST_NAMED = 3


class Standing(Enum):
    """The judgement of a host."""

    failing = "failing"
    slow = "slow"
    good = "good"
    unknown = "unknown"
    """Too little evidence."""

    @property
    def is_bad(self) -> bool:
        """True if runs do better without it."""
        return self in {Standing.failing, Standing.slow}


@dataclass(frozen=True)
class Host:
    """A row of the ledger."""

    name: str
    standing: Standing
    starts: int
    faults: int
    reason: str
    """The evidence in words."""


@dataclass(frozen=True)
class Explained:
    """The share of the variance of the logarithm of throughput, among repeats, that their hosts explain.

    From 0 to 1: epsilon squared (Kelley, 1935), which is that of a one-way analysis of variance without its bias.
    """

    share: float
    runs: int
    places: int
    """Different sets of hosts."""


@dataclass(frozen=True)
class Ledger:
    """All hosts on which recent runs of a cluster started, the worst first."""

    hosts: Sequence[Host]
    starts: int
    explained: Explained | None
    """None with too few repeats on different hosts."""

    @property
    def bad(self) -> list[Host]:
        """The hosts without which runs do better, the worst first."""
        return [host for host in self.hosts if host.standing.is_bad]


def ledger_of(runs_dir: Path, cluster: str, now_s: float | None = None) -> Ledger:
    """Return the ledger of the hosts of a cluster, from the runs below a directory."""
    facts = facts_of(runs_dir, cluster, now_s)
    hosts = [judged(each, facts) for each in facts.hosts.values()]
    order = list(Standing)
    hosts.sort(key=lambda host: (order.index(host.standing), -host.faults, host.name))
    return Ledger(hosts, facts.runs, explained(facts.speeds))


def judged(host: Evidence, facts: Facts) -> Host:
    """Return the row of a host."""
    faults = len(host.faults)
    slow = {run: ratio for run, ratio in host.slowness.items() if ratio >= SLOW}
    if faults >= FAULTS_OF_A_BAD_NODE and chance(host, facts) < CHANCE:
        standing, reason = Standing.failing, failing_words(host, facts)
    elif len(slow) >= RUNS_OF_A_SLOW_HOST and 2 * len(slow) > len(host.slowness):
        ratio = statistics.median(slow.values())
        standing = Standing.slow
        reason = (
            f"computes {ratio:.2f} times as long as the others, in {len(slow)} of {len(host.slowness)} runs with it "
            f"({named(slow)})"
        )
    elif not faults and host.starts >= STARTS_OF_A_GOOD_HOST:
        standing, reason = Standing.good, f"no fault in {host.starts} starts"
    else:
        standing, reason = Standing.unknown, f"{faults} faults in {host.starts} starts"
    return Host(host.host, standing, host.starts, faults, reason)


def chance(host: Evidence, facts: Facts) -> float:
    """Return P(X >= faults) of a binomial distribution with the starts of a host and the fault rate of the others.

    One half is added to the faults of the others, and one to their starts: no fault in few starts proves no low rate.
    """
    others = [each for each in facts.hosts.values() if each.host != host.host]
    rate = (0.5 + sum(len(each.faults) for each in others)) / (1 + sum(each.starts for each in others))
    rate, starts, faults = min(rate, 1.0), max(host.starts, len(host.faults)), len(host.faults)
    return math.fsum(math.comb(starts, k) * rate**k * (1 - rate) ** (starts - k) for k in range(faults, starts + 1))


def failing_words(host: Evidence, facts: Facts) -> str:
    """Return the faults of a host in words: causes, runs, the latest time, and the others' faults."""
    causes = ", ".join(f"{count} {cause}" for cause, count in Counter(each.cause for each in host.faults).most_common())
    others = [each for each in facts.hosts.values() if each.host != host.host]
    faults, starts = sum(len(each.faults) for each in others), sum(each.starts for each in others)
    latest = max(each.time for each in host.faults)[:10]
    return (
        f"{len(host.faults)} faults in {host.starts} starts ({causes}; {named(each.run for each in host.faults)}), the "
        f"latest on {latest}; the other hosts {faults} in {starts}"
    )


def named(runs: Iterable[Path]) -> str:
    """Return runs as SWEEP/NAME, the first few of many."""
    names = list(dict.fromkeys(f"{run.parent.name}/{run.name}" for run in runs))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def explained(speeds: Iterable[Speed]) -> Explained | None:
    """Return the share of variance that hosts explain; None unless repeats ran on different hosts, some of them twice.

    y = log(tokens/s) - mean over the repeats; SS_total = sum y^2, SS_hosts = sum over host sets n * mean(y)^2, and
    epsilon^2 = (SS_hosts - (k - 1) MS_within) / SS_total with k host sets.
    """
    repeats: dict[str, list[Speed]] = defaultdict(list)
    for speed in speeds:
        repeats[speed.settings].append(speed)
    places: dict[tuple[str, ...], list[float]] = defaultdict(list)
    groups = 0
    for same in repeats.values():
        if len({speed.hosts for speed in same}) < 2:
            continue
        groups += 1
        logs = [math.log(speed.tokens_per_s) for speed in same]
        for speed, value in zip(same, logs, strict=True):
            places[speed.hosts].append(value - statistics.fmean(logs))
    runs = sum(map(len, places.values()))
    within = runs - len(places) - (groups - 1)
    total = math.fsum(y * y for values in places.values() for y in values)
    if within < 1 or total == 0:
        return None
    between = math.fsum(len(values) * statistics.fmean(values) ** 2 for values in places.values())
    adjusted = between - (len(places) - 1) * (total - between) / within
    return Explained(min(1.0, max(0.0, adjusted / total)), runs, len(places))


# --- at submission -------------------------------------------------------------------------------------------------


def without_known_bad(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return runs that exclude the hosts on record as bad, where the key asks for it, and sentences for the user.

    Only Slurm chooses nodes by `--exclude`. Hosts that the partition cannot do without are not excluded, and a run
    whose nodes are named keeps them.
    """
    first = runs[0]
    if not first.starter.needs_slurm or first.launcher.kind.is_preview:
        return list(runs), []
    bad = ledger_of(Path(first.runs_dir), first.cluster.name).bad
    if not first.launcher.exclude_known_bad:
        remedy = "launcher.exclude_known_bad=true leaves such hosts out"
        return list(runs), [f"hosts: {host.name} is {host.standing.name}: {host.reason}; {remedy}" for host in bad]
    if not bad or "nodelist" in first.cluster.sbatch:
        return list(runs), []
    most = most_excluded(runs)
    out, kept = bad[:most], bad[most:]
    lines = [f"hosts: {host.name} is excluded ({host.standing.name}: {host.reason})" for host in out]
    lines += [f"hosts: {host.name} is {host.standing.name}, and the partition cannot do without it" for host in kept]
    return [excluding(run, [host.name for host in out]) for run in runs], lines


def most_excluded(runs: Sequence[Run]) -> int:
    """Return the hosts that the partitions of all runs can spare; 0 if Slurm does not say."""
    try:
        known = slurm_commands.partitions()
    except SubmitError:
        return 0
    left = []
    for run in runs:
        totals = [known.get(name, {}).get("TotalNodes", "") for name in (run.cluster.partition or "").split(",")]
        left.append(max((int(total) for total in totals if total.isdigit()), default=0))
        left[-1] -= run.launcher.pilot_nodes or run.job_nodes
    return max(0, min(left))


def excluding(run: Run, hosts: Sequence[str]) -> Run:
    """Return a run whose job excludes these hosts, too."""
    if not hosts:
        return run
    excluded = ",".join(filter(None, [run.cluster.sbatch.get("exclude"), *hosts]))
    return replace(run, cluster=replace(run.cluster, sbatch=run.cluster.sbatch | {"exclude": excluded}))
