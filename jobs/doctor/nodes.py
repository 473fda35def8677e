"""Checks of the reports that the nodes wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.doctor.node_job import NodeJob
from jobs.doctor.report import Finding, Verdict
from jobs.runtime.node.system_facts import TITLES, described, differences, in_words
from jobs.schema import Run

MOST_CLOCK_OFFSET_S = 1.0
# Other nodes read checkpoints and heartbeats within seconds.
MOST_FILE_LAG_S = 5.0
HOTTEST_C = 85
# A broken switch or file system affects every pair of nodes.
MOST_NAMED = 8

CHECKED = {TITLES["versions"], TITLES["gpu_driver"]}
SHOWN = [TITLES[name] for name in ("server", "cpu", "cores", "memory_gib", "adapters", "kernel")]

Report = dict[str, Any]


def judged(run: Run, job: NodeJob) -> list[Finding]:
    """Return every finding about the nodes of the job."""
    if not job.reports:
        return [silent(run, job, job.nodes)]
    reported = {report["node"] for report in job.reports}
    missing = [name for name in job.nodes if name not in reported]
    reports = job.reports
    return [
        met(reports),
        *([silent(run, job, missing)] if missing else []),
        names(reports),
        *loopback(reports),
        ports(reports),
        clocks(reports),
        files(reports),
        versions(reports),
        *systems(reports),
        *gpus(run, reports),
        *products(run, reports),
    ]


def is_emulated(reports: list[Report]) -> bool:
    """Return True if there are fewer machines, by boot id, than nodes."""
    return len({report["boot_id"] for report in reports}) < len(reports)


def met(reports: list[Report]) -> Finding:
    """Count the nodes that wrote a report."""
    emulated = "emulated: fewer machines booted than nodes; " if is_emulated(reports) else ""
    return Finding("nodes", f"{emulated}{len(reports)} reported")


def silent(run: Run, job: NodeJob, missing: list[str]) -> Finding:
    """Name the nodes that wrote no report."""
    who = listed(missing) if missing else "The job"
    output = f"; its last output: {job.last_output}" if job.last_output else ""
    return Finding(
        "nodes",
        f"{who} wrote nothing to {job.directory} (job {job.job_id}){output}",
        Verdict.wrong,
        f"Check that {run.runs_dir} is the same directory there and writable, otherwise set runs_dir=PATH on a shared "
        "file system; and that Python exists there (cluster.python, modules, setup).",
    )


def names(reports: list[Report]) -> Finding:
    """Check that every node resolves the names of all nodes."""
    unknown = [f"{name} on {r['node']}" for r in reports for name, address in r["addresses"].items() if address is None]
    if unknown:
        advice = "Ranks connect by these names: DNS or /etc/hosts must contain them on all nodes."
        return Finding("names", f"not resolved: {listed(unknown)}", Verdict.wrong, advice)
    return Finding("names", "every node resolves all of them")


def loopback(reports: list[Report]) -> Iterator[Finding]:
    """Check that no node resolves its own name to a loopback address, which it would announce to other ranks."""
    turned = [r["node"] for r in reports if str(r["addresses"].get(r["node"])).startswith(("127.", "::1"))]
    if turned and not is_emulated(reports):
        advice = "Other ranks cannot reach gloo at this address: set cluster.env.GLOO_SOCKET_IFNAME=INTERFACE."
        yield Finding("own name", f"a loopback address to itself: {listed(turned)}", Verdict.warning, advice)


def ports(reports: list[Report]) -> Finding:
    """Check that every node reaches every other one at a port that is free there, as ranks do."""
    deaf = [f"{r['node']} ({r['listen_error']})" for r in reports if r["listen_error"]]
    if deaf:
        advice = "Ranks listen at free ports, and rank 0 writes its own into the directory of the run."
        return Finding("ports", f"cannot listen: {listed(deaf)}", Verdict.wrong, advice)
    closed = [
        f"{r['node']} to {peer} ({seen['error']})"
        for r in reports
        for peer, seen in r["peers"].items()
        if "error" in seen
    ]
    if closed:
        advice = (
            "Ranks connect at the ports of sysctl net.ipv4.ip_local_port_range: a firewall between nodes must allow "
            "TCP there."
        )
        return Finding("ports", f"no connection: {listed(closed)}", Verdict.wrong, advice)
    return Finding("ports", "every pair connects")


def clocks(reports: list[Report]) -> Finding:
    """Check the offset of each clock against that of the first node, corrected for the round trip."""
    first = reports[0]
    ahead = {name: seen["ahead_s"] for name, seen in first["peers"].items() if "ahead_s" in seen}
    if not ahead:
        return Finding("clocks", "no other node to compare with")
    off = [f"{name} by {value:+.1f} s" for name, value in ahead.items() if abs(value) > MOST_CLOCK_OFFSET_S]
    if off:
        advice = "Times in the records of several nodes will not agree: check NTP or chrony."
        return Finding("clocks", f"off {first['node']}'s: {listed(off)}", Verdict.warning, advice)
    return Finding("clocks", f"within {max(map(abs, ahead.values())) * 1e3:.1f} ms of {first['node']}'s")


def files(reports: list[Report]) -> Finding:
    """Check that files of one node in runs_dir become visible on the others within MOST_FILE_LAG_S."""
    unseen, lags = [], {}
    for report in reports:
        for peer, seen in report["files"].items():
            if seen is None:
                unseen.append(f"{peer}'s on {report['node']}")
                continue
            # Both times on the clock of this node.
            written = seen["written"] - report["peers"][peer].get("ahead_s", 0.0)
            lags[f"{peer}'s on {report['node']}"] = max(0.0, seen["seen"] - written)
    if unseen:
        advice = "Set runs_dir=PATH on a file system that all nodes share."
        return Finding("runs_dir", f"files not seen: {listed(unseen)}", Verdict.wrong, advice)
    late = [f"{which} after {lag:.0f} s" for which, lag in lags.items() if lag > MOST_FILE_LAG_S]
    if late:
        advice = "The clients of this file system cache for long; a run may find a checkpoint late."
        return Finding("runs_dir", f"files seen late: {listed(late)}", Verdict.warning, advice)
    seen_within = f"; a node's file is seen by the others within {max(lags.values()):.1f} s" if lags else ""
    return Finding("runs_dir", f"writable everywhere{seen_within}")


def versions(reports: list[Report]) -> Finding:
    """Check that all nodes have the same Python and packages."""
    groups: dict[str, list[str]] = {}
    for report in reports:
        found = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        groups.setdefault(found, []).append(report["node"])
    if len(groups) > 1:
        differing = "; ".join(f"{listed(nodes)}: {found}" for found, nodes in groups.items())
        advice = (
            "Ranks of different versions fail, or give wrong results: set cluster.python=PATH on a shared file system."
        )
        return Finding("versions", differing, Verdict.wrong, advice)
    (found,) = groups
    if "torch" not in reports[0]["versions"]:
        advice = "Ranks need it: install it, or set a container or cluster.python that has it."
        return Finding("versions", f"{found}; no torch", Verdict.wrong, advice)
    return Finding("versions", found)


def systems(reports: list[Report]) -> Iterator[Finding]:
    """Describe the nodes, and check that they are of one kind; packages and GPU drivers have checks of their own."""
    nodes = [
        (report["node"], {title: text for title, text in described(report["system"]).items() if title not in CHECKED})
        for report in reports
        if "system" in report
    ]
    apart = differences(nodes)
    if apart:
        advice = "The slowest node sets the pace of a run: set cluster.constraint, or cluster.sbatch.exclude=NODE."
        yield Finding("system", in_words(apart), Verdict.warning, advice)
    elif nodes:
        known = [f"{title} {nodes[0][1][title]}" for title in SHOWN if title in nodes[0][1]]
        yield Finding("system", ", ".join(known))


# --- GPUs ----------------------------------------------------------------------------------------------------


def gpus(run: Run, reports: list[Report]) -> Iterator[Finding]:
    """Check number, kind and health of the GPUs of the job."""
    if not run.cluster.gpus:
        yield Finding("GPUs", "none requested (cluster.gpus=false)")
        return
    blind = [report["node"] for report in reports if report["gpus"] is None]
    if blind:
        found = f"no answer from nvidia-smi on {listed(blind)}"
        yield Finding("GPUs", found, Verdict.warning, "Their health is not known; AMD GPUs are not checked.")
    seeing = [report for report in reports if report["gpus"] is not None]
    few = [f"{r['node']} has {len(r['gpus'])}" for r in seeing if len(r["gpus"]) < run.ranks_per_node]
    if few:
        found = f"{run.ranks_per_node} a node requested, but {listed(few)}"
        yield Finding(
            "GPUs",
            found,
            Verdict.wrong,
            "Exclude these nodes (cluster.sbatch.exclude=NODE); inform the administrators.",
        )
    kinds: dict[str, list[str]] = {}
    for report in seeing:
        for gpu in report["gpus"]:
            kinds.setdefault(f"{gpu['name']}, driver {gpu['driver_version']}", []).append(report["node"])
    if len(kinds) > 1:
        found = "; ".join(f"{kind} on {listed(sorted(set(nodes)))}" for kind, nodes in kinds.items())
        yield Finding("GPUs", found, Verdict.warning, "The slowest one limits the run; set cluster.constraint.")
    elif kinds and not few:
        yield Finding("GPUs", f"{run.ranks_per_node} a node: {next(iter(kinds))}")
    ill = [f"GPU {gpu['index']} of {r['node']}: {what}" for r in seeing for gpu in r["gpus"] for what in ailments(gpu)]
    if ill:
        found = listed(ill)
        yield Finding("GPU health", found, Verdict.warning, "Exclude these nodes (cluster.sbatch.exclude=NODE).")
    elif seeing:
        yield Finding("GPU health", "no ECC errors, no retired pages or rows pending, none hot")


def products(run: Run, reports: list[Report]) -> Iterator[Finding]:
    """Check that the torch of the ranks multiplies matrices on the GPUs of each node; on the CPU without GPUs."""
    seen = {report["node"]: report["product"] for report in reports if report["product"] is not None}
    wrong = {node: found["error"] for node, found in seen.items() if found["error"]}
    if run.cluster.gpus:
        wrong |= {node: found["no_gpu"] for node, found in seen.items() if node not in wrong and found["no_gpu"]}
    if wrong:
        node, problem = next(iter(wrong.items()))
        found = f"{listed(list(wrong))}: {problem} ({seen[node].get('installed', 'torch did not start')})"
        yield Finding("matrix product", found, Verdict.wrong, "Ranks would end at their start: see INSTALL.md.")
    elif seen:
        where = {f"{found['gpus']} GPUs" if found["gpus"] else "the CPU" for found in seen.values()}
        yield Finding("matrix product", f"right on {' or '.join(sorted(where))} of every node")


def ailments(gpu: dict[str, str]) -> Iterator[str]:
    """Yield the faults of a GPU in the output of nvidia-smi."""
    errors = gpu["ecc.errors.uncorrected.volatile.total"]
    if errors.isdigit() and int(errors):
        yield f"{errors} uncorrected ECC errors"
    if gpu["retired_pages.pending"] == "Yes":
        yield "page retirement pending"
    for key, what in (
        ("remapped_rows.pending", "row remapping pending"),
        ("remapped_rows.failure", "row remapping failed"),
    ):
        if gpu.get(key, "0") in {"1", "Yes"}:
            yield what
    if gpu["temperature.gpu"].isdigit() and int(gpu["temperature.gpu"]) >= HOTTEST_C:
        yield f"{gpu['temperature.gpu']} C"


def listed(items: list[str]) -> str:
    """Return the first items as text, and the number of others."""
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return ", ".join(items[:MOST_NAMED]) + more
