"""The nodes of each step of a program, and the ranks that start its processes."""

from __future__ import annotations

from jobs.schema import Run
from jobs.settings.program import StartMode
from jobs.work.program import names
from jobs.work.program.names import program_of
from jobs.work.program.words import text_of


def nodes_of(run: Run, name: str) -> range:
    """Return the nodes of a step: all, or as many as it has, the next ones after those of the steps before.

    Raise ValueError if one of the steps until then has a number of nodes that is not a whole number above 0.
    """
    begin, known = 0, names.known_values(run)
    for each, step in program_of(run).steps.items():
        if step.nodes is None:
            places = range(run.nodes)
        else:
            places = range(begin, begin + count(text_of(step.nodes, known)))
            begin = places.stop
        if each == name:
            return places
    raise KeyError(name)


def count(text: str) -> int:
    """Return a number of nodes. Raise ValueError for a text that is not a whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def ranks_of(run: Run, name: str) -> list[int]:
    """Return the ranks that start a process in a step, in their order."""
    nodes, start = nodes_of(run, name), program_of(run).steps[name].start
    if start is StartMode.rank:
        return list(range(nodes.start * run.ranks_per_node, nodes.stop * run.ranks_per_node))
    first = [node * run.ranks_per_node for node in nodes]
    return first if start is StartMode.node else first[:1]


def first_rank(run: Run, name: str) -> int:
    """Return the rank whose output of a step is repeated in the log of the job, and is read for metrics."""
    return ranks_of(run, name)[0]
