"""The system of each node of a run, from the records of jobs.runtime.node.system, and nodes that differ.

Values in files are untrusted: what does not fit is absent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from analysis.formatting import one_line, short
from analysis.run import RunResult, last_event
from analysis.untrusted import lookup
from jobs.files import read_object
from jobs.rundir import RunDir
from jobs.runtime.node.system_facts import TITLES, Described, described, differences

MOST_NODES = 10_000
LONGEST_NAME = 40
LIBRARY = "Communication library"
CONTAINER = TITLES["container"]


@dataclass(frozen=True)
class NodeSystem:
    """A node of a run."""

    node: str
    facts: Described


def read_systems(run: RunDir) -> tuple[NodeSystem, ...]:
    """Return the nodes whose systems a run recorded, by number; a start on other nodes replaced those before."""
    found = []
    for file in run.system_records[:MOST_NODES]:
        with suppress(OSError, ValueError):
            record = read_object(file)
            facts = {title: one_line(text) for title, text in described(record).items()}
            found.append(NodeSystem(short(str(record.get("node", "unnamed")), LONGEST_NAME), facts))
    return tuple(found)


def facts_of(run: RunResult) -> list[NodeSystem]:
    """Return the nodes of a run with facts of its other records: container image and communication library."""
    image, identity = run.setting("cluster.container"), lookup(run.provenance, "container")
    library = last_event(run.events, "transport").get("library")
    more: dict[str, str] = {}
    if isinstance(library, str):
        more[LIBRARY] = one_line(library)
    found = []
    for each in run.system:
        container = each.facts.get(CONTAINER) or (one_line(image) if isinstance(image, str) else None)
        known = {CONTAINER: f"{container} ({one_line(identity)})" if isinstance(identity, str) else container}
        found.append(NodeSystem(each.node, {**each.facts, **more, **{k: v for k, v in known.items() if v}}))
    return found


def differing(runs: Iterable[RunResult]) -> dict[str, Mapping[str, Mapping[str, list[str]]]]:
    """Return, for each cluster, the facts in which the nodes of its runs differ."""
    clusters: dict[str, list[tuple[str, Described]]] = defaultdict(list)
    for run in runs:
        clusters[str(run.setting("cluster.name"))] += [(each.node, each.facts) for each in run.system]
    return {name: apart for name, nodes in clusters.items() if (apart := differences(nodes))}
