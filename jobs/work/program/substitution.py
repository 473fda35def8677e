"""Commands as words with {names}, which are replaced when the program starts; names may be dotted keys of a run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

# Braces of JSON and of shells (${NAME}) are no names: they contain other characters, or follow a $. {{name}} stands for
# the text {name}, as in Python's own formats.
NAME = re.compile(r"(?<![${])\{(\w+(?:\.\w+)*)\}(?!\})")
ESCAPED = re.compile(r"\{(\{\w+(?:\.\w+)*\})\}")


def filled(words: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Return the words with each {name} replaced by its value; other braces, as of JSON, stay.

    A word is left out if the value of one of its names is None.
    """
    without = {name for name, value in values.items() if value is None}
    given = [word for word in words if without.isdisjoint(NAME.findall(word))]
    return [text_of(word, values) for word in given]


def text_of(text: str, values: Mapping[str, object]) -> str:
    """Return a text with each {name} replaced by its value, and {{name}} by {name}; a name without a value stays."""
    # In this order around one split: a value that looks like an escape stays as it is.
    pieces = ESCAPED.split(text)
    filled_in = (NAME.sub(lambda found: str(values.get(found[1], found[0])), piece) for piece in pieces[::2])
    return "".join(itertools.chain(*itertools.zip_longest(filled_in, pieces[1::2], fillvalue="")))


def names_in(words: Iterable[str]) -> set[str]:
    """Return the {names} in the words."""
    return {name for word in words for name in NAME.findall(word)}


def unknown_names(words: Sequence[str], known: frozenset[str]) -> list[str]:
    """Return the {names} in the words that nothing replaces."""
    return [name for word in words for name in NAME.findall(word) if name not in known]
