"""False alarms of `report --reference` over simulated histories of unchanged runs, with shifts of level and hosts.

Each history has reports one after the other, of three repeats on one host; the next report is unchanged (false alarms)
or truly slower (power). Logarithms of tokens/s vary between reports and, less, within one; a shift changes the level of
all reports since then, and hosts differ by a constant. Beside the rule of `analysis.compare.history` stands the former
one, which took all repeats of the history as repeats of one report.

    python -m tests.benchmarks.reference_history --histories 2000
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from analysis.compare.reference import DEVICE, HOSTS, IDENTITY, NEEDED, SOURCE, RunsTable
from analysis.compare.regression import regression_of
from jobs import metrics as m

REPEATS = 3
BETWEEN, WITHIN = 0.01, 0.004
"""Standard deviations of logarithms between reports, and between repeats of one."""
SLOWER = 0.05
COLUMNS = list(dict.fromkeys([*IDENTITY, *DEVICE, *NEEDED, HOSTS]))


@dataclass(frozen=True)
class Case:
    """A kind of history."""

    name: str
    reports: int
    shift: float = 0.0
    """Change of the logarithm at a random place, at least three reports from both ends."""
    hosts: Sequence[float] = (0.0,)
    """Levels of the hosts; each report is on one, at random."""
    elsewhere: float | None = None
    """Level of a further host, on which the next report is; None: on one of `hosts`."""


CASES = (
    Case("steady, 5 reports", 5),
    Case("steady, 10 reports", 10),
    Case("steady, 30 reports", 30),
    Case("level falls by 5 %, 10 reports", 10, shift=-0.05),
    Case("level falls by 5 %, 30 reports", 30, shift=-0.05),
    Case("level rises by 5 %, 30 reports", 30, shift=0.05),
    Case("level falls by 1.5 %, 30 reports", 30, shift=-0.015),
    Case("2 hosts, 5 % apart, 30 reports", 30, hosts=(0.0, 0.05)),
    Case("2 hosts, 5 % apart, level falls by 5 %, 30 reports", 30, shift=-0.05, hosts=(0.0, 0.05)),
    Case("4 hosts, +- 3 %, next on a fifth 3 % below their mean, 30 reports", 30, hosts=(-0.03, -0.01, 0.01, 0.03),
         elsewhere=-0.03),
)  # fmt: skip


def rows(report: int, level: float, host: str, chosen: np.random.Generator) -> list[Mapping[str, str]]:
    """Return the runs of a report."""
    here = level + BETWEEN * chosen.standard_normal()
    values = np.exp(here + WITHIN * chosen.standard_normal(REPEATS))
    fixed = dict.fromkeys(COLUMNS, "") | {"name": "r", "model": "m", "parallelism": "ddp", "nodes": "1", "ranks": "8"}
    return [{**fixed, HOSTS: host, SOURCE: f"{report:04d}", m.TOKENS_PER_S.name: repr(1e4 * float(v))} for v in values]


def tables(case: Case, slower: float, chosen: np.random.Generator) -> tuple[RunsTable, RunsTable]:
    """Return a history and the report after it."""
    place = int(chosen.integers(3, case.reports - 2)) if case.shift else case.reports
    found: list[list[Mapping[str, str]]] = []
    for report in range(case.reports + 1):
        host = int(chosen.integers(len(case.hosts)))
        level, name = case.hosts[host], f"node{host}"
        if report == case.reports and case.elsewhere is not None:
            level, name = case.elsewhere, "another"
        level += case.shift * (report >= place) + (math.log1p(-slower) if report == case.reports else 0.0)
        found.append(rows(report, level, name, chosen))
    history = [row for report in found[:-1] for row in report]
    return RunsTable(COLUMNS, history), RunsTable(COLUMNS, found[-1])


def as_one_report(table: RunsTable) -> RunsTable:
    """Return a history as the former rule saw it: repeats of one report on one host."""
    return replace(table, rows=[{**row, SOURCE: "", HOSTS: ""} for row in table.rows])


def alarms(case: Case, slower: float, histories: int, seed: int) -> tuple[int, int]:
    """Return how many of the next reports fail by this rule and by the former one."""
    chosen, counts = np.random.default_rng(seed), [0, 0]
    for _ in range(histories):
        history, now = tables(case, slower, chosen)
        for place, table in enumerate((history, as_one_report(history))):
            found = regression_of(table, now, Path("kept"), None, allow_missing=False)
            counts[place] += not found.passed
    return counts[0], counts[1]


def share(count: int, of: int) -> str:
    """Return a rate with its 95 % interval (Wilson)."""
    interval = binomtest(count, of).proportion_ci(method="wilson")
    return f"{100 * count / of:.1f} % ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def main() -> None:
    """Print a row per kind of history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=500)
    histories = parser.parse_args().histories
    print(f"{histories:,} histories a row; reports vary by {BETWEEN:.1%}, repeats of one by {WITHIN:.1%}")
    print(f"| history | false alarms | former rule | {SLOWER:.0%} slower: found | former rule |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for seed, case in enumerate(CASES):
        cells = [share(n, histories) for slower in (0.0, SLOWER) for n in alarms(case, slower, histories, seed)]
        print(f"| {case.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
