"""Facts about hosts in the run directories below a `runs_dir`: starts, faults, compute times and throughput.

Nothing is stored: the records of the runs are the ledger. Only starts inside a job of a scheduler count, and only
records of the last EVIDENCE_DAYS, since a node that is repaired gets no notice of it here.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from jobs import metrics as m
from jobs.failure_causes import blames_node
from jobs.files import YAML_BYTES, parse_yaml, read_bytes
from jobs.run_events import run_events
from jobs.rundir import RunDir
from jobs.submit.sweeps.sweep_at import sweeps_in
from jobs.submit.watching.progress import latest_tokens_per_s

EVIDENCE_DAYS = 14
DAY_S = 86_400
# `submit` reads them: 1,000 runs take about two seconds.
MOST_RUNS = 1000
# Runs with equal settings but these are repeats of each other.
NOT_COMPARED = frozenset({"name", "sweep", "runs_dir", "launcher", "notify", "campaign", "budget", "stages", "report"})


@dataclass(frozen=True)
class Fault:
    """A failure of a run that blames a host."""

    run: Path
    cause: str
    time: str


@dataclass
class Evidence:
    """The records of one host in the runs of a cluster."""

    host: str
    starts: int = 0
    """Starts of ranks on it."""
    faults: list[Fault] = field(default_factory=list)
    slowness: dict[Path, float] = field(default_factory=dict)
    """By run: compute time of its slowest rank there over the median of the others, as median over the windows in which
    it was among the slowest (event `pace`)."""


@dataclass(frozen=True)
class Speed:
    """Throughput of a run on its hosts."""

    run: Path
    settings: str
    """Digest of the settings that repeats share."""
    hosts: tuple[str, ...]
    tokens_per_s: float


@dataclass
class Facts:
    """The facts of all runs of a cluster."""

    hosts: dict[str, Evidence] = field(default_factory=dict)
    speeds: list[Speed] = field(default_factory=list)
    runs: int = 0

    def of(self, host: str) -> Evidence:
        """Return the evidence of a host, to be added to."""
        return self.hosts.setdefault(host, Evidence(host))


def facts_of(runs_dir: Path, cluster: str, now_s: float | None = None) -> Facts:
    """Return what the recent runs of a cluster recorded; runs that cannot be read are left out."""
    since_s = (time.time() if now_s is None else now_s) - EVIDENCE_DAYS * DAY_S
    facts = Facts()
    for run in recent(runs_dir, since_s):
        # A run that is written, moved or damaged meanwhile says nothing.
        with suppress(OSError, ValueError):
            settings = parse_yaml(read_bytes(run.config, YAML_BYTES))
            if isinstance(settings, dict) and (settings.get("cluster") or {}).get("name") == cluster:
                add_run(facts, run, settings, since_s)
    return facts


def recent(runs_dir: Path, since_s: float) -> list[RunDir]:
    """Return the runs whose records changed since then, the latest MOST_RUNS, in the order of these changes."""
    found: list[tuple[float, RunDir]] = []
    with suppress(OSError):
        for run in (run for sweep in sweeps_in(runs_dir) for run in sweep.runs()):
            with suppress(OSError):
                found.append((run.status.stat().st_mtime, run))
    latest = heapq.nlargest(MOST_RUNS, found, key=lambda each: each[0])
    return [run for changed, run in reversed(latest) if changed >= since_s]


def add_run(facts: Facts, run: RunDir, settings: Mapping[str, Any], since_s: float) -> None:
    """Add the facts of a run."""
    hosts: tuple[str, ...] = ()
    slowness: dict[str, list[float]] = {}
    for event in run_events(run):
        at = event.get("time")
        if not isinstance(at, str) or datetime.fromisoformat(at).timestamp() < since_s:
            continue
        if event["event"] == "started" and event.get("job_id") and isinstance(event.get("nodes"), list):
            hosts = tuple(str(node) for node in event["nodes"])
            facts.runs += 1
            for host in set(hosts):
                facts.of(host).starts += 1
        elif event["event"] == "failed" and blames_node(event) and event.get("node") in hosts:
            facts.of(str(event["node"])).faults.append(Fault(run.path, str(event["cause"]), at))
        elif event["event"] == "pace":
            for host, ratio in slowest(event):
                slowness.setdefault(host, []).append(ratio)
    for host, ratios in slowness.items():
        if host in hosts:
            facts.of(host).slowness[run.path] = statistics.median(ratios)
    if hosts and (rates := latest_tokens_per_s(run)):
        shared = {key: value for key, value in settings.items() if key not in NOT_COMPARED}
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True, default=str).encode()).hexdigest()
        facts.speeds.append(Speed(run.path, digest, tuple(sorted(set(hosts))), statistics.median(rates)))


def slowest(pace: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the hosts of the slowest ranks of a window, each once, with the ratio to the median of the others."""
    seen = set()
    ranks = pace.get("slowest_ranks")
    for entry in ranks if isinstance(ranks, list) else []:
        with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
            host, ratio = str(entry["node"]), float(entry[m.OWN_TIME.name]) / float(entry[m.OTHERS_OWN_TIME.name])
            if host not in seen:
                seen.add(host)
                yield host, ratio
