"""The overrides that the text of a refusal proposes: `Set a=1 b=2, or c=3 or 4.` has three alternatives.

Texts are written for people. Every one ends with `Set KEY=VALUE` where a value mends it, and tests type each proposal
behind the overrides that were refused, so that a program can read them too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

REMEDY = re.compile(r"(?:^|[.;,] |or )(?:Set|set|Use) (.*?)(?:\.(?= |$)|;|$)")
ASSIGNMENT = re.compile(r"([a-z][a-z0-9_.]*)(?:=| to one of )('[^']*'|\[[^]]*\]|[^\s,;)]+)")
# A further value of the key before it.
BARE = re.compile(r"\d+|null|none|[a-z]+_[a-z0-9]+|[A-Z0-9][A-Za-z0-9]+")


def remedies(refusal: str) -> list[dict[str, str]]:
    """Return every alternative of a refusal of one line, as keys and values."""
    return [found for remedy in REMEDY.findall(refusal) for found in alternatives(remedy, refusal.partition("=")[0])]


def alternatives(remedy: str, key: str) -> Iterator[dict[str, str]]:
    """Yield the alternatives of a sentence; a bare value is one more of the key before it, else of the key refused."""
    for part in re.split(r", or |, | or ", remedy):
        # A shell takes the quotation marks away.
        given = {name: value.strip("'") for name, value in ASSIGNMENT.findall(part)}
        if given:
            *_, key = given
            yield given
        elif BARE.fullmatch(value := part.split(" ")[0]):
            yield {key: value}
