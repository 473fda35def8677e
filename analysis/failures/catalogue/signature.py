"""A signature: a text by which one line of a log proves why its run ended, with its source and its advice.

A signature decides with its weight: see analysis.failures.verdict. Its markers are texts of which one is in every line
that it matches, so that other lines of a log never become Python strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from jobs.failures import FailureCause


class Weight(Enum):
    """Strength of the proof by a match; the lowest value in a log decides. `finished` is the proof of the contrary."""

    fault = 0
    """A fault of the machine; it decides wherever the line stands in the log."""
    end = 1
    """Ends a run by itself."""
    raised = 2
    """An exception whose text the catalogue does not know: its type or its frame alone names the cause."""
    possible = 3
    """An exception whose type and frame fit several causes: a hint, by which no cause is named."""
    consequence = 4
    """Also follows from a failure elsewhere."""
    signal = 5
    """A signal or an exit code; the sender or the reason is not known."""
    finished = 6
    """The work was done: a consequence or a signal after it is part of the shutdown."""
    unexplained = 7
    """Reads like an error and is not in the catalogue: it decides nothing, and makes a signal after it a hint."""


@dataclass(frozen=True)
class Signature:
    """A text by which one line proves a cause."""

    cause: FailureCause
    weight: Weight
    pattern: re.Pattern[str]
    """It may match anywhere in a line."""
    markers: tuple[str, ...]
    source: str
    """The document or the program that defines the text."""
    advice: str
    """The remedy for this text; else that for its cause."""

    def matches(self, text: str) -> bool:
        """Return True if the line with this text proves the cause."""
        return any(marker in text for marker in self.markers) and self.pattern.search(text) is not None


def signatures(
    source: str, *rows: tuple[FailureCause, Weight, str, tuple[str, ...]], advice: str = ""
) -> Iterator[Signature]:
    """Yield the signatures of one source; without `advice` each has that of its cause."""
    for cause, weight, pattern, markers in rows:
        yield Signature(cause, weight, re.compile(pattern), markers, source, advice or cause.advice)
