"""What the nodes told of themselves and of each other, judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.doctor.node_job import NodeJob
from jobs.doctor.report import Finding, Verdict
from jobs.ranks import RENDEZVOUS_PORTS
from jobs.schema import Run

MOST_CLOCK_OFFSET_S = 1.0
# Checkpoints and heartbeats are read by other nodes within seconds.
MOST_FILE_LAG_S = 5.0
HOTTEST_C = 85
# Of a broken switch or file system every pair of nodes tells.
MOST_NAMED = 8

Report = dict[str, Any]


def judged(run: Run, job: NodeJob) -> list[Finding]:
    """Every finding about the nodes of the doctor's job."""
    if not job.reports:
        return [silent(run, job, job.nodes)]
    told = {report["node"] for report in job.reports}
    missing = [name for name in job.nodes if name not in told]
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
        *gpus(run, reports),
    ]


def is_emulated(reports: list[Report]) -> bool:
    """Whether fewer machines booted than there are nodes."""
    return len({report["boot_id"] for report in reports}) < len(reports)


def met(reports: list[Report]) -> Finding:
    """How many nodes told something."""
    emulated = "emulated: fewer machines booted than nodes; " if is_emulated(reports) else ""
    return Finding("nodes", f"{emulated}{len(reports)} looked around")


def silent(run: Run, job: NodeJob, missing: list[str]) -> Finding:
    """Nodes that left nothing where everything should be."""
    who = listed(missing) if missing else "The job"
    words = f"; its last words: {job.last_words}" if job.last_words else ""
    return Finding(
        "nodes",
        f"{who} left nothing in {job.directory} (job {job.job_id}){words}",
        Verdict.wrong,
        f"Is {run.runs_dir} the same directory there, and writable? Else type runs_dir=PATH of a shared file system. "
        "And is Python there (cluster.python, modules, setup)?",
    )


def names(reports: list[Report]) -> Finding:
    """Every node resolves every node's name."""
    unknown = [f"{name} on {r['node']}" for r in reports for name, address in r["addresses"].items() if address is None]
    if unknown:
        advice = "Ranks meet by these names: the site's DNS or /etc/hosts must have them on all nodes."
        return Finding("names", f"not resolved: {listed(unknown)}", Verdict.wrong, advice)
    return Finding("names", "every node resolves all of them")


def loopback(reports: list[Report]) -> Iterator[Finding]:
    """A node whose own name means 127.x to itself tells other ranks to find it there."""
    turned = [r["node"] for r in reports if str(r["addresses"].get(r["node"])).startswith(("127.", "::1"))]
    if turned and not is_emulated(reports):
        advice = "gloo then listens where others cannot reach it: type cluster.env.GLOO_SOCKET_IFNAME=INTERFACE."
        yield Finding("own name", f"a loopback address to itself: {listed(turned)}", Verdict.warning, advice)


def ports(reports: list[Report]) -> Finding:
    """Every node reaches every other one where ranks would meet."""
    numbers = sorted(report["port"] for report in reports)
    span = f"{numbers[0]} to {numbers[-1]}" if len(set(numbers)) > 1 else f"{numbers[0]}"
    taken = [f"{r['port']} of {r['node']} ({r['listen_error']})" for r in reports if r["listen_error"]]
    if taken:
        advice = "Something else listens there; try again, with another job id the ports are others."
        return Finding("ports", f"taken: {listed(taken)}", Verdict.wrong, advice)
    closed = [
        f"{r['node']} to {peer} ({seen['error']})"
        for r in reports
        for peer, seen in r["peers"].items()
        if "error" in seen
    ]
    if closed:
        span = f"{RENDEZVOUS_PORTS[0]} to {RENDEZVOUS_PORTS[-1]}"
        advice = f"Ranks meet at ports {span}: a firewall between nodes must let TCP through there."
        return Finding("ports", f"no connection: {listed(closed)}", Verdict.wrong, advice)
    return Finding("ports", f"every pair connects ({span})")


def clocks(reports: list[Report]) -> Finding:
    """How far each clock is off the first node's, the way there and back taken out."""
    first = reports[0]
    ahead = {name: seen["ahead_s"] for name, seen in first["peers"].items() if "ahead_s" in seen}
    if not ahead:
        return Finding("clocks", "no other node to compare with")
    off = [f"{name} by {value:+.1f} s" for name, value in ahead.items() if abs(value) > MOST_CLOCK_OFFSET_S]
    if off:
        advice = "Times in records of several nodes will not fit together: the site's NTP or chrony has to."
        return Finding("clocks", f"off {first['node']}'s: {listed(off)}", Verdict.warning, advice)
    return Finding("clocks", f"within {max(map(abs, ahead.values())) * 1e3:.1f} ms of {first['node']}'s")


def files(reports: list[Report]) -> Finding:
    """What one node writes into runs_dir the others see, and soon."""
    unseen, lags = [], {}
    for report in reports:
        for peer, seen in report["files"].items():
            if seen is None:
                unseen.append(f"{peer}'s on {report['node']}")
                continue
            # Both times by this node's clock.
            written = seen["written"] - report["peers"][peer].get("ahead_s", 0.0)
            lags[f"{peer}'s on {report['node']}"] = max(0.0, seen["seen"] - written)
    if unseen:
        advice = "Type runs_dir=PATH on a file system that all nodes share."
        return Finding("runs_dir", f"files not seen: {listed(unseen)}", Verdict.wrong, advice)
    late = [f"{which} after {lag:.0f} s" for which, lag in lags.items() if lag > MOST_FILE_LAG_S]
    if late:
        advice = "Its clients cache for long; a run may find a checkpoint late."
        return Finding("runs_dir", f"files seen late: {listed(late)}", Verdict.warning, advice)
    seen_within = f"; a node's file is seen by the others within {max(lags.values()):.1f} s" if lags else ""
    return Finding("runs_dir", f"writable everywhere{seen_within}")


def versions(reports: list[Report]) -> Finding:
    """Every node has the same Python and packages."""
    groups: dict[str, list[str]] = {}
    for report in reports:
        found = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        groups.setdefault(found, []).append(report["node"])
    if len(groups) > 1:
        told = "; ".join(f"{listed(nodes)}: {found}" for found, nodes in groups.items())
        advice = "Ranks of different versions fail or, worse, do not: type cluster.python=PATH on a shared file system."
        return Finding("versions", told, Verdict.wrong, advice)
    (found,) = groups
    if "torch" not in reports[0]["versions"]:
        advice = "Ranks need it: install it, or name a container or cluster.python that has it."
        return Finding("versions", f"{found}; no torch", Verdict.wrong, advice)
    return Finding("versions", found)


# --- GPUs ----------------------------------------------------------------------------------------------------


def gpus(run: Run, reports: list[Report]) -> Iterator[Finding]:
    """The GPUs that the job got are there, of one kind, and well."""
    if not run.cluster.gpus:
        yield Finding("GPUs", "none asked for (cluster.gpus=false)")
        return
    blind = [report["node"] for report in reports if report["gpus"] is None]
    if blind:
        found = f"no answer from nvidia-smi on {listed(blind)}"
        yield Finding("GPUs", found, Verdict.warning, "Their health is not known; AMD's are not looked at.")
    seeing = [report for report in reports if report["gpus"] is not None]
    few = [f"{r['node']} has {len(r['gpus'])}" for r in seeing if len(r["gpus"]) < run.ranks_per_node]
    if few:
        found = f"{run.ranks_per_node} a node asked for, but {listed(few)}"
        yield Finding(
            "GPUs", found, Verdict.wrong, "Leave these nodes out (cluster.sbatch.exclude=NODE); tell the site."
        )
    kinds: dict[str, list[str]] = {}
    for report in seeing:
        for gpu in report["gpus"]:
            kinds.setdefault(f"{gpu['name']}, driver {gpu['driver_version']}", []).append(report["node"])
    if len(kinds) > 1:
        told = "; ".join(f"{kind} on {listed(sorted(set(nodes)))}" for kind, nodes in kinds.items())
        yield Finding("GPUs", told, Verdict.warning, "The slowest one sets the pace; choose by cluster.constraint.")
    elif kinds and not few:
        yield Finding("GPUs", f"{run.ranks_per_node} a node: {next(iter(kinds))}")
    ill = [f"GPU {gpu['index']} of {r['node']}: {what}" for r in seeing for gpu in r["gpus"] for what in ailments(gpu)]
    if ill:
        found = listed(ill)
        yield Finding("GPU health", found, Verdict.warning, "Leave out such nodes (cluster.sbatch.exclude=NODE).")
    elif seeing:
        yield Finding("GPU health", "no ECC errors, no retired pages or rows pending, none hot")


def ailments(gpu: dict[str, str]) -> Iterator[str]:
    """What nvidia-smi says of a GPU that it would not say of a healthy one."""
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
    """Items, or the first of them and how many more."""
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return ", ".join(items[:MOST_NAMED]) + more
