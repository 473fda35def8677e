r"""Markers: each match of an expression contains one of these texts, for the cheap search that comes first.

They are derived from the tree into which `re` parses an expression. `[Nn]o space left on (?:device|disk)` has four
texts and no others, so they are its markers; `killed by \S+ on node` has the longer one of the texts around the gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

Texts = frozenset[str]
# Of the empty text only: known of any part.
EMPTY = frozenset({""})
SHORTEST = 3
# Longer markers select no fewer lines, so fewer markers are better.
ENOUGH = 20
# Alternatives are multiplied out up to this number of texts.
MOST = 24
NUMBERS = " :0123456789"
PLAIN = re.compile(r"[^\\.^$*+?{}\[\]|()]{3,}")
parser: Any = import_module("re._parser")
END = (parser.AT, None)


class Part(NamedTuple):
    """The known properties of the text that a part of an expression matches."""

    whole: Texts | None
    """All that it can be; None if it can be more than a few texts."""
    inside: Texts
    """It contains one of these."""


UNKNOWN = Part(None, EMPTY)
POSITION = Part(EMPTY, EMPTY)


def markers_of(expression: str) -> tuple[str, ...]:
    """Return the markers of an expression; raise ValueError if it has none, re.error if it is wrong."""
    if PLAIN.fullmatch(expression):
        return (expression,)
    tree = parser.parse(expression)
    markers = of_sequence(tree, ignores_case=bool(tree.state.flags & re.IGNORECASE)).inside
    if len(min(markers, key=len)) < SHORTEST:
        raise ValueError(
            f"a match need not contain a fixed text of {SHORTEST} characters; write [Nn]o instead of (?i:no), or words "
            f"instead of a class"
        )
    return tuple(sorted(markers))


def of_sequence(tree: Any, *, ignores_case: bool) -> Part:
    """Return what is known about a sequence: of the texts between its gaps, the best ones."""
    found = run = EMPTY
    literal = ""
    has_gap = False
    for operation, argument in (*tree.data, END):
        if operation is parser.LITERAL and not ignores_case:
            literal += chr(argument)
            continue
        if literal:
            run, literal = frozenset([text + literal for text in run]), ""
        whole, inside = of_item(operation, argument, ignores_case=ignores_case)
        if whole is EMPTY:
            continue
        found = better(found, run)
        if whole is not None and len(run) * len(whole) <= MOST:
            run = frozenset([first + second for first in run for second in whole])
        else:
            found = better(found, inside)
            run, has_gap = whole or EMPTY, True
    return Part(None if has_gap else run, better(found, run))


def better(one: Texts, other: Texts) -> Texts:
    """Return the set whose shortest text selects fewer lines; among long ones the smaller set."""
    if other is EMPTY or one is EMPTY:
        return one if other is EMPTY else other
    return other if rank(other) > rank(one) else one


def rank(texts: Texts) -> tuple[float, int]:
    """Return the key by which sets of texts are compared as markers: numbers are in every line."""
    return min(ENOUGH, *[len(text.strip(NUMBERS)) + len(text) / 100 for text in texts]), -len(texts)


def of_item(operation: Any, argument: Any, *, ignores_case: bool) -> Part:
    """Return what is known about an item of the parsed tree, which is an operation with its argument."""
    match operation.name:
        case "LITERAL":
            return exactly([argument], ignores_case=ignores_case)
        case "IN" if all(kind is parser.LITERAL for kind, _ in argument):
            return exactly([code for _, code in argument], ignores_case=ignores_case)
        case "AT" | "ASSERT" | "ASSERT_NOT":
            return POSITION
        case "SUBPATTERN":
            _, added, removed, body = argument
            ignores = (ignores_case or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE
            return of_sequence(body, ignores_case=ignores)
        case "BRANCH":
            parts = [of_sequence(each, ignores_case=ignores_case) for each in argument[1]]
            wholes = [part.whole for part in parts if part.whole is not None]
            whole = frozenset().union(*wholes) if len(wholes) == len(parts) else None
            inside = frozenset().union(*[part.inside for part in parts])
            return Part(whole if whole is not None and len(whole) <= MOST else None, inside)
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, body = argument
            whole, inside = of_sequence(body, ignores_case=ignores_case)
            if most == 1 and whole is not None:
                return Part(whole if least else whole | EMPTY, EMPTY)
            return Part(None, inside) if least else UNKNOWN
    return UNKNOWN


def exactly(codes: Iterable[int], *, ignores_case: bool) -> Part:
    """Return the part that is one of these characters; unknown for a letter whose case is ignored."""
    texts = frozenset(map(chr, codes))
    return UNKNOWN if ignores_case and any(map(str.isalpha, texts)) else Part(texts, texts)
