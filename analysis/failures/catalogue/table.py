"""The table of failure signatures, texts.toml: texts by which one line of a log proves why its run ended, in order.

A signature decides with its weight: see analysis.failures.verdict. gpu_errors.csv has the errors of CUDA and HIP, by
number of the interface, each with its text and its names.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from importlib import resources

from analysis.failures.catalogue.markers import markers_of
from jobs.failure_causes import FailureCause

PART = re.compile(r"\{([A-Z_]+)\}")


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
    """A text by which one line proves a cause: a row of the table."""

    cause: FailureCause
    weight: Weight
    expression: str
    """It may match anywhere in a line."""
    source: str
    """The document or the program that defines the text."""
    advice: str
    """The remedy for this text; else that for its cause."""

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """Each matching line contains one of these texts; other lines of a log never become Python strings."""
        try:
            return markers_of(self.expression)
        except (ValueError, re.error) as error:
            raise ValueError(f"failure signature {self.expression!r} of {self.source}: {error}.") from error

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled expression, which is needed only for a log with one of the markers."""
        return re.compile(self.expression)


def read(table: str) -> tuple[Mapping[str, str], list[Signature]]:
    """Return the parts of a table and its signatures. Raise ValueError, with the row, for one that is wrong."""
    sources = tomllib.loads(table)
    parts: dict[str, str] = {}
    for name, expression in sources.pop("parts", {}).items():
        parts[name] = written_out(expression, parts)
    return parts, [
        signature(row, source, group.get("advice", ""), parts)
        for source, group in sources.items()
        for row in (gpu_errors(group["table"]) if "table" in group else group["texts"])
    ]


def signature(row: Sequence[str], source: str, advice: str | Mapping[str, str], parts: Mapping[str, str]) -> Signature:
    """Return the signature of a row; its advice may differ by cause. Raise ValueError, with the row, if it is wrong."""
    try:
        cause, weight, expression = row
        remedy = advice if isinstance(advice, str) else advice.get(cause, "")
        known = FailureCause[cause]
        return Signature(known, Weight[weight], written_out(expression, parts), source, remedy or known.advice)
    except (KeyError, ValueError) as error:
        why = f"{error} is not known" if isinstance(error, KeyError) else "not a cause, a weight and an expression"
        raise ValueError(f"failure signature {list(row)} of {source}: {why}.") from error


def written_out(expression: str, parts: Mapping[str, str]) -> str:
    """Return an expression in one line, with parts in place of their names. Raise KeyError for an unknown name."""
    return PART.sub(lambda name: parts[name[1]], expression.replace("\n", ""))


def gpu_errors(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the rows for the errors of CUDA and HIP in this file: each error by its text and its names.

    A text that other programs print, too, counts only behind the name of an interface.
    """
    with (resources.files("analysis.failures.catalogue") / name).open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            names = rf"\b(?:cuda|hip)Error{row['name']}\b"
            if row["driver_name"]:
                names += rf"|\bCUDA_ERROR_{row['driver_name']}\b"
            behind = "" if row["alone"] == "yes" else "{BEHIND}"
            yield row["cause"], row["weight"], f"{behind}{re.escape(row['text'])}|{names}"
