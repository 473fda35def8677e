"""Real pairs of equal runs: train them one after the other on this CPU and append them to a file.

A pair is two directories of one campaign, in the order in which campaigns run them. Each trains through `jobs.run` in a
process of its own, and its time is the one that a leaderboard compares. A pair is written once both are measured, so a
collection that is cut off goes on where it was.
"""

from __future__ import annotations

import csv
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from analysis.compare.campaign import leaderboards, repeat_of
from analysis.load.discover import read_runs
from analysis.run import RunResult
from jobs import metrics as m
from jobs.rundir import BASELINE
from tests.support.real_run import make_run, train

TRIAL = "again"
# About a second of training on an idle core.
TASK = ("model.layers=6", "ranks_per_node=1", "job.steps=40", "job.unmeasured_steps=5")


@dataclass(frozen=True)
class PairedRun:
    """A run of a pair, as a row of the file."""

    pair: int
    role: str
    time_s: float
    """As a leaderboard compares it: from the first step to the last."""
    other_load: float | None
    """Share of the machine's processors that other work took, as the run recorded it."""


def collect(file: Path, pairs: int, minutes: float) -> list[PairedRun]:
    """Train pairs until the file has as many or the time is over; return all rows of the file."""
    begin = time.monotonic()
    rows = kept_pairs(file) if file.exists() else []
    while len(rows) < 2 * pairs and time.monotonic() - begin < 60 * minutes:
        found = list(trained(len(rows) // 2 + 1))
        append(file, found)
        rows += found
    return rows


def roles(pair: int) -> tuple[str, str]:
    """Return the roles of a pair in their order: every second one begins with the trial, as in a campaign."""
    return (BASELINE, "attempt") if pair % 2 else ("attempt", BASELINE)


def trained(pair: int) -> Iterator[PairedRun]:
    """Train a pair and yield its rows in the order of training; raise AssertionError if it does not count."""
    with tempfile.TemporaryDirectory() as where:
        for role in roles(pair):
            run = make_run(Path(where), *TASK, f"name={role}", f"repeat={pair}", small=True)
            run.plan.write_text("{}")
            part = {"name": TRIAL, "role": role, "repeat": pair, "changes": []}
            run.provenance.write_text(json.dumps({"attempt": part}))
            assert train(run) == [0], (run.path / "rank0.log").read_text()
        (board,) = leaderboards(read_runs([Path(where)]))
        (entry,) = board.entries
        assert not entry.reasons
        by_role = {BASELINE: board.baseline_runs[0], "attempt": entry.trial.first}
        for role in roles(pair):
            yield row(by_role[role], role, board.rules.value(by_role[role]))


def row(run: RunResult, role: str, time_s: float | None) -> PairedRun:
    """Return the row of a run that was measured."""
    assert time_s is not None
    load = run.values.get(m.OTHER_LOAD)
    return PairedRun(repeat_of(run), role, round(time_s, 4), None if load is None else round(load, 3))


def append(file: Path, rows: list[PairedRun]) -> None:
    """Append rows, below a header if the file is new."""
    is_new = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, [each.name for each in fields(PairedRun)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(each) for each in rows)


def kept_pairs(file: Path) -> list[PairedRun]:
    """Return the rows of a file."""
    with file.open(newline="") as text:
        return [
            PairedRun(
                int(each["pair"]),
                each["role"],
                float(each["time_s"]),
                float(each["other_load"]) if each["other_load"] else None,
            )
            for each in csv.DictReader(text)
        ]
