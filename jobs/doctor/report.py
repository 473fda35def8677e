"""The findings of the doctor: one row per check, shown as a table and written as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from jobs.console import plain
from jobs.fitted_table import FittedTable
from jobs.rundir import now, write_json
from jobs.secrets import redact


class Verdict(Enum):
    """The severity of a finding."""

    ok = "ok"
    warning = "warning"
    """Runs work, but slower or less safely than they could."""
    wrong = "wrong"
    """Runs cannot start, or will fail."""


COLOURS = {Verdict.ok: "green", Verdict.warning: "yellow", Verdict.wrong: "red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    found: str
    verdict: Verdict = Verdict.ok
    advice: str = ""
    """The remedy."""


def table(title: str, findings: list[Finding]) -> FittedTable:
    """Return a table with one row per finding, the advice below it."""
    shown = FittedTable(key=1)
    shown.whole("")
    shown.whole(title)
    shown.text("found")
    for finding in findings:
        colour = COLOURS[finding.verdict]
        found = plain(redact(finding.found))
        if finding.advice:
            found.append(f"\n{finding.advice}", colour)
        shown.add_row(plain(finding.verdict.value, colour), plain(finding.what), found)
    return shown


def summary(findings: list[Finding]) -> str:
    """Return the number of findings of each verdict as text."""
    counts = Counter(finding.verdict for finding in findings)
    return f"{len(findings)} checks: " + ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])


def exit_code(findings: list[Finding]) -> int:
    """Return 1 if something is wrong, else 0; warnings do not count."""
    return int(any(finding.verdict is Verdict.wrong for finding in findings))


def write(path: Path, findings: list[Finding], **data: Any) -> None:
    """Write the findings, and the measurements behind them, as JSON."""
    rows = [asdict(finding) | {"verdict": finding.verdict.value} for finding in findings]
    write_json(path, {"time": now(), "findings": rows, **data})
