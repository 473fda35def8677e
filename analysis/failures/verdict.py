"""Why a run ended: a cause, the line that proves it, and what to do.

Most of a failed job's log is collateral: one rank dies, the others time out, Slurm and torchrun kill what is left, and
every one of them prints. Evidence is therefore weighed before it is ordered: what the machine says of its own fault,
then what ends a run by itself, then what a death elsewhere causes too, then bare signals. Of equal weight the earliest
counts. Where nothing proves a cause it is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from analysis.failures.signatures import SEARCH, Ending, Evidence, Weight, evidence
from analysis.parsers.search import blocks

TIMEOUT = re.compile(r"WorkNCCL\(SeqNum=(?P<number>\d+)")


@dataclass(frozen=True)
class Verdict:
    """Why a run ended."""

    ending: Ending
    line: int | None = None
    proof: str | None = None
    """The text of that line."""
    rank: int | None = None
    """Which rank it began with, where the log says so."""
    host: str | None = None
    weight: Weight | None = field(default=None, compare=False)
    """How much its proof proves; None without one."""
    file: str | None = field(default=None, compare=False)
    """The name of the file that the line is in, where that is not the log itself."""

    @property
    def advice(self) -> str:
        """What to do, in one sentence."""
        return self.ending.value


def ending_of(path: Path, *, last_progress: int = 0, finished: bool = False) -> Verdict:
    """Why the run that wrote this log ended.

    `last_progress` is the last line on which it made a step: what an exception before it says did not end the run.
    `finished`: the log holds what its program prints at its end. Raises OSError where the file cannot be read.
    """
    return verdict(evidence(SEARCH.lines(blocks(path))), last_progress=last_progress, finished=finished)


def verdict(found: Iterable[Evidence], *, last_progress: int = 0, finished: bool = False) -> Verdict:
    """The cause that the evidence proves."""
    counted = [each for each in found if each.line.number > last_progress or each.weight is Weight.fault]
    if not counted:
        return Verdict(Ending.succeeded if finished else Ending.unknown)
    weight = min((each.weight for each in counted), key=lambda each: each.value)
    equal = [each for each in counted if each.weight is weight]
    first = min(equal, key=lambda each: (each.when or "~", each.line.number))
    if first.ending is Ending.collective_timeout:
        first = laggard(equal, first)
    line = first.line
    rank = line.rank if isinstance(line.rank, int) else None
    return Verdict(first.ending, line.number, line.text.strip(), rank, line.host, first.weight)


def laggard(waiting: list[Evidence], first: Evidence) -> Evidence:
    """Of ranks whose collectives timed out, the one that was behind: its number is the lowest, if one is."""
    numbers = {each: int(found["number"]) for each in waiting if (found := TIMEOUT.search(each.line.text))}
    behind = [each for each, number in numbers.items() if number == min(numbers.values())]
    if len(behind) == 1 and len(set(numbers.values())) > 1:
        return behind[0]
    # All of them wait at the same place: the one that does not speak is missing, and this log does not say who.
    return Evidence(first.ending, first.weight, first.line._replace(rank=None))
