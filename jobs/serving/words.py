"""Commands as values: words with {names} that are replaced when the program starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NAME = re.compile(r"\{(\w+)\}")
SERVER = frozenset(
    ("python", "model", "host", "port", "tensor", "precision", "max_length", "output_tokens", "memory_fraction")
)
"""Names in `engine.server.command` and `arguments`."""
CLIENT = frozenset(
    ("python", "url", "endpoint", "model", "prompts", "body", "result", "requests", "concurrency", "rate",
     "output_tokens", "limits", "seed", "directory", "name")
)  # fmt: skip
"""Names in `serving.client_command`."""


def filled(words: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Return the words with each {name} replaced by its value; other braces, as of JSON, stay."""
    return [NAME.sub(lambda found: str(values.get(found[1], found[0])), word) for word in words]


def unknown_names(words: Sequence[str], known: frozenset[str]) -> list[str]:
    """Return the {names} in the words that nothing replaces."""
    return [name for word in words for name in NAME.findall(word) if name not in known]
