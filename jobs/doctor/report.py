"""What the doctor found: one row a fact or rule, shown as a table and written as data."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from jobs.rundir import now
from jobs.secrets import redacted


class Verdict(Enum):
    """How a finding is judged."""

    ok = "ok"
    warning = "warning"
    """Runs can go on, but not as well, or not as safely, as they might."""
    wrong = "wrong"
    """Runs cannot start, or will fail."""


COLOURS = {Verdict.ok: "green", Verdict.warning: "yellow", Verdict.wrong: "red"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    found: str
    verdict: Verdict = Verdict.ok
    advice: str = ""
    """What to do about it."""


def table(title: str, findings: list[Finding]) -> Table:
    """One row a finding, with what to do below what was found."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("", no_wrap=True)
    shown.add_column(title, no_wrap=True)
    shown.add_column("found", overflow="fold")
    for finding in findings:
        colour = COLOURS[finding.verdict]
        # Text: what nodes and Slurm say is no markup.
        found = Text(finding.found)
        if finding.advice:
            found.append(f"\n{finding.advice}", colour)
        shown.add_row(Text(finding.verdict.value, colour), Text(finding.what), found)
    return shown


def summary(findings: list[Finding]) -> str:
    """How many findings of each verdict, in words."""
    counts = Counter(finding.verdict for finding in findings)
    return f"{len(findings)} checks: " + ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])


def exit_code(findings: list[Finding]) -> int:
    """1 where something is wrong, else 0: warnings are for a person to judge."""
    return int(any(finding.verdict is Verdict.wrong for finding in findings))


def write(path: Path, findings: list[Finding], **data: Any) -> None:
    """Write the findings, and the measurements that they were made from, as JSON."""
    rows = [asdict(finding) | {"verdict": finding.verdict.value} for finding in findings]
    path.write_text(json.dumps(redacted({"time": now(), "findings": rows, **data}), indent=1, allow_nan=False) + "\n")
