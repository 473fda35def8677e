"""Findings about the hosts of a cluster, from the records of the runs of this user there."""

from __future__ import annotations

from pathlib import Path

from jobs.doctor.report import Finding, Verdict
from jobs.schema import Run
from jobs.submit.hosts.evidence import EVIDENCE_DAYS
from jobs.submit.hosts.ledger import Ledger, Standing, ledger_of


def host_findings(run: Run) -> list[Finding]:
    """Return what recent runs below `runs_dir` say about hosts: a summary, and a row for each bad one; else nothing."""
    ledger = ledger_of(Path(run.runs_dir), run.cluster.name)
    if not ledger.hosts:
        return []
    advice = "Set launcher.exclude_known_bad=true to leave it out, and report it to the site."
    return [
        Finding("hosts", summary(ledger)),
        *(
            Finding(f"host {host.name}", f"{host.standing.name}: {host.reason}", Verdict.warning, advice)
            for host in ledger.bad
        ),
    ]


def summary(ledger: Ledger) -> str:
    """Return the number of hosts of each standing, and the share of variance that hosts explain."""
    counts = [(standing, sum(host.standing is standing for host in ledger.hosts)) for standing in Standing]
    standings = ", ".join(f"{count} {standing.name}" for standing, count in counts if count)
    words = f"{len(ledger.hosts)} in {ledger.starts} starts of the last {EVIDENCE_DAYS} days: {standings}"
    found = ledger.explained
    if found is None:
        return words
    share = (
        f"{found.share:.0%} of the variance of throughput among {found.runs} repeats on {found.places} sets of hosts"
    )
    return f"{words}; hosts explain {share}"
