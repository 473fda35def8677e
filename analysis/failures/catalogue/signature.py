"""A signature: a text by which one line of a log proves why its run ended, with its source.

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
    """Strength of the proof by a match; the lowest value in a log decides."""

    fault = 0
    """A fault of the machine; it decides wherever the line stands in the log."""
    end = 1
    """Ends a run by itself."""
    consequence = 2
    """Also follows from a failure elsewhere."""
    signal = 3
    """A signal or an exit code; the sender or the reason is not known."""


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


def signatures(source: str, *rows: tuple[FailureCause, Weight, str, tuple[str, ...]]) -> Iterator[Signature]:
    """Yield the signatures of one source."""
    for cause, weight, pattern, markers in rows:
        yield Signature(cause, weight, re.compile(pattern), markers, source)
