"""The nodes of each step of a program, and the ranks that start its processes."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from jobs.schema import Run
from jobs.settings.program import StartMode
from jobs.work.program import placeholders as names
from jobs.work.program.placeholders import program_of
from jobs.work.program.substitution import text_of
from jobs.work.work import Component


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


def components(run: Run, every: Component) -> list[Component]:
    """Return the nodes in groups of what they are asked for, in their order; `every` is what the run itself asks for.

    Raise ValueError as `nodes_of` does.
    """
    nodes = [every] * every.nodes
    for name, step in program_of(run).steps.items():
        if step.nodes is None:
            continue
        own = Component(
            nodes=1,
            partition=every.partition if step.partition is None else step.partition,
            gpus=every.gpus if step.gpus is None else step.gpus,
            memory_gb=every.memory_gb if step.memory_gb is None else step.memory_gb,
            key=every.key if step.partition is None else f"program.steps.{name}.partition",
            nodes_key=f"program.steps.{name}.nodes",
        )
        for node in nodes_of(run, name):
            nodes[node] = own
    groups = [list(group) for _, group in groupby(nodes, attrgetter("asks_for"))]
    # Only of several components is one the step's: the nodes of a whole job are set by the run.
    return [replace(group[0], nodes=len(group)) for group in groups] if len(groups) > 1 else [every]


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
