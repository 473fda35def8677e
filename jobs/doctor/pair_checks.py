"""Checks of the bandwidths between pairs of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from jobs.doctor.nodes import is_emulated, listed
from jobs.doctor.outliers import SLOW, Pairs, slow_nodes, slow_pairs
from jobs.doctor.report import Finding, Verdict
from jobs.network import GPU_DIRECT_ADVICE, SOCKETS, copies_through_host
from jobs.runtime.transport import SOCKETS_ADVICE
from jobs.schema import Run


def bandwidths(run: Run, reports: list[dict[str, Any]], measured: dict[str, dict[str, Any]]) -> Iterator[Finding]:
    """Yield every finding about the pairs; `measured` has the results of each node."""
    if len(reports) < 2 or not all("torch" in report["versions"] for report in reports):
        return
    failed = [report["node"] for report in reports if "gb_per_s" not in measured.get(report["node"], {})]
    if failed:
        errors = {str(measured[node]["error"]) for node in failed if node in measured} or {"it wrote nothing"}
        advice = "The ranks of a run could not connect either; fix the findings above first."
        yield Finding("all-reduce", f"failed on {listed(failed)}: {listed(sorted(errors))}", Verdict.wrong, advice)
        return
    pairs = pairs_of(measured)
    usual = median(pairs.values())
    backend = next(iter(measured.values()))["backend"]
    of = f"{len(pairs)} pairs: median {usual:.3g}, slowest {min(pairs.values()):.3g} GB/s" if len(pairs) > 1 else (
        f"{usual:.3g} GB/s"
    )  # fmt: skip
    # Nodes that share the cores of one machine disturb each other, which would look like a slow node.
    emulated = is_emulated(reports)
    which = "nccl with one GPU a node" if backend == "nccl" else backend
    yield against_data_sheet(run, usual, f"{'emulated: ' if emulated else ''}{which}, {of}")
    if not emulated:
        yield from outliers(pairs)
    yield transport(backend, {name for results in measured.values() for name in results["transports"]})


def pairs_of(measured: dict[str, dict[str, Any]]) -> Pairs:
    """Return the GB/s of each pair: the slower of the measurements of its two nodes."""
    found: Pairs = {}
    for node, results in measured.items():
        for other, speed in results["gb_per_s"].items():
            pair = (min(node, other), max(node, other))
            found[pair] = min(speed, found.get(pair, speed))
    return found


def against_data_sheet(run: Run, usual: float, found: str) -> Finding:
    """Compare the usual bandwidth with that of the network in the cluster file."""
    promised = run.cluster.network_gb_per_s
    if promised is None:
        return Finding("all-reduce", f"{found} (cluster.network_gb_per_s is not set)")
    found = f"{found}, {usual / promised:.0%} of cluster.network_gb_per_s={promised:g}"
    if usual < SLOW * promised:
        advice = "Check the transport below: the usual cause is a wrong interface."
        return Finding("all-reduce", found, Verdict.warning, advice)
    return Finding("all-reduce", found)


def outliers(pairs: Pairs) -> Iterator[Finding]:
    """Check for nodes and pairs that are far slower than the others."""
    slow = slow_nodes(pairs)
    if slow:
        found = [f"{node}: {speed:.3g} GB/s at most" for node, speed in sorted(slow.items(), key=lambda item: item[1])]
        names = ",".join(sorted(slow))
        advice = f"Runs on them are as slow: set 'cluster.sbatch.exclude=\"{names}\"', and inform the administrators."
        yield Finding("slow nodes", listed(found), Verdict.warning, advice)
    single = slow_pairs(pairs)
    if single:
        found = [f"{a} and {b}: {speed:.3g} GB/s" for (a, b), speed in sorted(single.items(), key=lambda item: item[1])]
        advice = "The network between these nodes is slower; cluster.constraint or sbatch --switches avoids it."
        yield Finding("slow pairs", listed(found), Verdict.warning, advice)


def transport(backend: str, transports: set[str]) -> Finding:
    """Report the transports of the measurements; sockets under nccl, and RDMA without GPUDirect, are warnings."""
    found = f"{backend}: {listed(sorted(transports)) or 'unknown'}"
    if any(each.startswith(SOCKETS) for each in transports):
        return Finding("transport", found, Verdict.warning, SOCKETS_ADVICE)
    if copies_through_host(sorted(transports)):
        return Finding("transport", found, Verdict.warning, GPU_DIRECT_ADVICE)
    return Finding("transport", found)
