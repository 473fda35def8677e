"""The bandwidths that pairs of nodes reached, judged."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from jobs.doctor.nodes import is_emulated, listed
from jobs.doctor.outliers import SLOW, Pairs, slow_nodes, slow_pairs
from jobs.doctor.report import Finding, Verdict
from jobs.runtime.transport import SOCKETS, SOCKETS_ADVICE
from jobs.schema import Run


def bandwidths(run: Run, reports: list[dict[str, Any]], measured: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    """Every finding about the pairs; `measured` holds what each node wrote of its own."""
    if len(reports) < 2 or not all("torch" in report["versions"] for report in reports):
        return
    failed = [report["node"] for report in reports if "gb_per_s" not in measured.get(report["node"], {})]
    if failed:
        errors = {str(measured[node]["error"]) for node in failed if node in measured} or {"it wrote nothing"}
        advice = "A run's ranks would not meet either; what is wrong above comes first."
        yield Finding("all-reduce", f"failed on {listed(failed)}: {listed(sorted(errors))}", Verdict.wrong, advice)
        return
    pairs = pairs_of(measured)
    usual = median(pairs.values())
    backend = next(iter(measured.values()))["backend"]
    of = f"{len(pairs)} pairs: median {usual:.3g}, slowest {min(pairs.values()):.3g} GB/s" if len(pairs) > 1 else (
        f"{usual:.3g} GB/s"
    )  # fmt: skip
    # Of nodes that share one machine's cores, noise would be taken for a slow node.
    emulated = is_emulated(reports)
    which = "nccl with one GPU a node" if backend == "nccl" else backend
    yield against_data_sheet(run, usual, f"{'emulated: ' if emulated else ''}{which}, {of}")
    if not emulated:
        yield from outliers(pairs)
    yield transport(backend, {way for told in measured.values() for way in told["transports"]})


def pairs_of(measured: dict[str, dict[str, Any]]) -> Pairs:
    """Each pair once; of what its two nodes measured the slower."""
    found: Pairs = {}
    for node, told in measured.items():
        for other, speed in told["gb_per_s"].items():
            pair = (min(node, other), max(node, other))
            found[pair] = min(speed, found.get(pair, speed))
    return found


def against_data_sheet(run: Run, usual: float, found: str) -> Finding:
    """The usual pair beside what the cluster file says the network gives."""
    promised = run.cluster.network_gb_per_s
    if promised is None:
        return Finding("all-reduce", f"{found} (cluster.network_gb_per_s is not set)")
    found = f"{found}, {usual / promised:.0%} of cluster.network_gb_per_s={promised:g}"
    if usual < SLOW * promised:
        advice = "Look at the transport below: the wrong interface is the usual cause."
        return Finding("all-reduce", found, Verdict.warning, advice)
    return Finding("all-reduce", found)


def outliers(pairs: Pairs) -> Iterator[Finding]:
    """The nodes, or else the pairs, that are far slower than the others."""
    slow = slow_nodes(pairs)
    if slow:
        told = [f"{node}: {speed:.3g} GB/s at most" for node, speed in sorted(slow.items(), key=lambda item: item[1])]
        names = ",".join(sorted(slow))
        advice = f"Every run on them goes at their pace: type 'cluster.sbatch.exclude=\"{names}\"'; tell the site."
        yield Finding("slow nodes", listed(told), Verdict.warning, advice)
    single = slow_pairs(pairs)
    if single:
        told = [f"{a} and {b}: {speed:.3g} GB/s" for (a, b), speed in sorted(single.items(), key=lambda item: item[1])]
        advice = "The network between these is slower; cluster.constraint or sbatch's --switches keeps a run together."
        yield Finding("slow pairs", listed(told), Verdict.warning, advice)


def transport(backend: str, transports: set[str]) -> Finding:
    """What the bytes went over."""
    found = f"{backend}: {listed(sorted(transports)) or 'not told'}"
    if any(each.startswith(SOCKETS) for each in transports):
        return Finding("transport", found, Verdict.warning, SOCKETS_ADVICE)
    return Finding("transport", found)
