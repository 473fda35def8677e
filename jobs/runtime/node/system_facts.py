"""The facts of a node as text, and the kinds of nodes that differ in them: for the doctor and for reports.

A fact is a text, a number, a list (equal items are counted: `8 x NVIDIA H200`) or a mapping of names to texts. Records
may have been written by somebody else: what is none of these is absent.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

TITLES: Mapping[str, str] = {
    "server": "Server",
    "cpu": "CPU",
    "sockets": "Sockets",
    "cores": "Cores",
    "hardware_threads": "Hardware threads",
    "memory_gib": "Memory (GiB)",
    "gpus": "GPUs",
    "gpu_driver": "GPU driver",
    "gpu_limits": "Limits of the GPUs",
    "adapters": "Network adapters",
    "os": "Operating system",
    "kernel": "Kernel",
    "scheduler": "Scheduler",
    "toolkit": "GPU toolkit of torch",
    "versions": "Packages of the ranks",
    "server_versions": "Packages of the server",
    "container": "Container",
    "file_systems": "File systems",
    "environment": "Environment",
}
"""The name of each fact in a record -> its title, in the order of a table."""
OF_A_RUN = frozenset(TITLES[name] for name in ("gpu_limits", "container", "file_systems", "environment"))
"""Titles of facts that a run brings: they make no other kind of node."""
MOST_ITEMS = 60
LONGEST_ITEM = 300
MOST_NAMES = 3
PARTS = re.compile(r"[;,] ")

Described = Mapping[str, str]
"""The facts of a node as text, by title."""


def described(record: Mapping[str, Any]) -> Described:
    """Return the facts in the record of a node as text, by title in the order of TITLES."""
    return {title: text for name, title in TITLES.items() if (text := as_text(record.get(name)))}


def as_text(fact: Any) -> str:
    """Return a fact as text; empty if it is none."""
    match fact:
        case bool():
            return ""
        case int():
            return f"{fact:,}"
        case str():
            return fact[:LONGEST_ITEM]
        case list():
            counts = Counter(each[:LONGEST_ITEM] for each in fact if isinstance(each, str))
            return "; ".join(
                f"{count} x {text}" if count > 1 else text for text, count in counts.most_common(MOST_ITEMS)
            )
        case dict():
            known = [(str(name), text) for name, text in fact.items() if isinstance(text, str)]
            return ", ".join(f"{name} {text[:LONGEST_ITEM]}" for name, text in known[:MOST_ITEMS])
    return ""


def kinds(nodes: Iterable[tuple[str, Described]]) -> dict[tuple[tuple[str, str], ...], list[str]]:
    """Return the kinds of nodes: what they share, by title, with the names of their nodes; the most frequent first."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for name, facts in nodes:
        names = found[tuple((title, text) for title, text in facts.items() if title not in OF_A_RUN)]
        if name not in names:
            names.append(name)
    return dict(sorted(found.items(), key=lambda kind: -len(kind[1])))


def differences(nodes: Iterable[tuple[str, Described]]) -> dict[str, dict[str, list[str]]]:
    """Return the facts in which nodes differ: by title, each text with the names of its nodes.

    A text is what not all nodes have of a list.
    """
    found = [(dict(facts), names) for facts, names in kinds(nodes).items()]
    apart: dict[str, dict[str, list[str]]] = {}
    for title in dict.fromkeys(title for facts, _ in found for title in facts):
        parts = [PARTS.split(facts.get(title, "unknown")) for facts, _ in found]
        shared = set.intersection(*map(set, parts))
        texts: dict[str, list[str]] = defaultdict(list)
        for own, (_, names) in zip(parts, found, strict=True):
            texts[", ".join(part for part in own if part not in shared) or "nothing else"] += names
        if len(texts) > 1:
            apart[title] = dict(texts)
    return apart


def in_words(apart: Mapping[str, Mapping[str, list[str]]]) -> str:
    """Return differences as text: `Kernel (5.14 on node01, node02; 5.15 on node03)`."""
    return ", ".join(
        f"{title} ({'; '.join(f'{text[:LONGEST_ITEM]} on {names_of(names)}' for text, names in texts.items())})"
        for title, texts in apart.items()
    )


def names_of(names: list[str]) -> str:
    """Return the first names of nodes, and the number of the others."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
