"""The table of the system: one row per fact, one column per kind of node; and the warning of nodes that differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from analysis.formatting import ABSENT, counted, one_line, plural
from analysis.metrics.systems import LIBRARY, differing, facts_of
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import RunResult
from jobs.runtime.node.system_facts import OF_A_RUN, TITLES, Described, in_words, kinds, names_of

HEADING = "System"
OF_RUNS = OF_A_RUN | {LIBRARY}
MOST_KINDS = 6
# Values of the runs of one kind of node.
MOST_VALUES = 6


def system_section(digest: Digest) -> Section | None:
    """Return the facts of the nodes that recorded them, a column for each kind of node; None without a record."""
    found = [(run, node.node, node.facts) for run in digest.runs for node in facts_of(run)]
    if not found:
        return None
    of_nodes = [(node, {k: v for k, v in facts.items() if k != LIBRARY}) for _, node, facts in found]
    columns = list(kinds(of_nodes).items())
    of_runs: dict[tuple[tuple[str, str], ...], list[tuple[RunResult, Described]]] = defaultdict(list)
    for (run, _, facts), (_, own) in zip(found, of_nodes, strict=True):
        of_runs[next(iter(kinds([("", own)])))].append((run, facts))
    shown = columns[:MOST_KINDS]
    rows = [["Nodes", *(f"{len(names):,}: {names_of(names)}" for _, names in shown)]]
    for title in (*TITLES.values(), LIBRARY):
        cells = [
            of_the_runs(title, of_runs[facts]) if title in OF_RUNS else dict(facts).get(title, "") for facts, _ in shown
        ]
        if any(cells):
            rows.append([title, *(cell or ABSENT for cell in cells)])
    rows.append(["Runs", *(f"{len({run.path for run, _ in of_runs[facts]}):,}" for facts, _ in shown)])
    more = (
        f" {plural(len(columns) - MOST_KINDS, 'further kind')} of nodes are not shown." if columns[MOST_KINDS:] else ""
    )
    note = (
        "What the first rank of each node found when it began, in the container if there is one. A kind of node is "
        "nodes that share all facts but those of their runs: container, file systems, environment and communication "
        "library. Memory is what the kernel has, a little less than what is installed. Firmware, switches and storage "
        f"servers cannot be seen from a node.{more}"
    )
    headings = ("Fact", *("Value" if len(shown) == 1 else f"Kind {i}" for i in range(1, len(shown) + 1)))
    return Section(HEADING, note, headings, rows, of_text=True)


def of_the_runs(title: str, runs: Sequence[tuple[RunResult, Described]]) -> str:
    """Return the distinct values of a fact of these runs, each with its number of runs unless all share it."""
    values = {(run.path, facts[title]) for run, facts in runs if title in facts}
    return "; ".join(counted([text for _, text in sorted(values)], len({run.path for run, _ in runs}), MOST_VALUES))


def systems_differ(runs: Sequence[RunResult]) -> list[str]:
    """Warn of nodes of one cluster that are of several kinds."""
    found = differing(runs)
    if not found:
        return []
    within = [run for run in runs if differing([run])]
    mixed = (
        f" {plural(len(within), 'run')} computed on several kinds at once: the slowest node set the pace."
        if within
        else ""
    )
    return [
        one_line(
            f"Nodes of cluster {cluster} differ: {in_words(apart)}.{mixed} Differences in speed may be theirs. Section "
            f"{HEADING} has all facts."
        )
        for cluster, apart in found.items()
    ]
