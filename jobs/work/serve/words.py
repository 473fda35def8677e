"""Commands as values: words with {names} that are replaced when the program starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NAME = re.compile(r"\{(\w+)\}")
OVER_NODES = frozenset(("nodes", "node_rank", "head", "head_port", "headless"))
"""Names that have a value only where a replica spans nodes."""
SERVER = OVER_NODES | {
    "python", "model", "host", "port", "tensor", "pipeline", "precision", "max_length", "output_tokens",
    "memory_fraction",
}  # fmt: skip
"""Names in `engine.server.command` and `arguments`."""
CLIENT = frozenset(
    ("python", "url", "endpoint", "model", "prompts", "body", "result", "requests", "concurrency", "rate",
     "output_tokens", "limits", "seed", "directory", "name")
)  # fmt: skip
"""Names in `serving.client_command`."""


def filled(words: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Return the words with each {name} replaced by its value; other braces, as of JSON, stay.

    A word is left out if the value of one of its names is None.
    """
    without = {name for name, value in values.items() if value is None}
    given = [word for word in words if without.isdisjoint(NAME.findall(word))]
    return [NAME.sub(lambda found: str(values.get(found[1], found[0])), word) for word in given]


def names_in(words: Sequence[str]) -> set[str]:
    """Return the {names} in the words."""
    return {name for word in words for name in NAME.findall(word)}


def unknown_names(words: Sequence[str], known: frozenset[str]) -> list[str]:
    """Return the {names} in the words that nothing replaces."""
    return [name for word in words for name in NAME.findall(word) if name not in known]
