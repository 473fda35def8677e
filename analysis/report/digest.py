"""The digest of a report: what was read, and what several of its sections and figures need of it, computed once.

Sections, figures and sentences are functions of the digest. Each part is computed when it is first asked for, so a
table that is made alone costs no more than it needs; a part that only one of them uses is computed there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from analysis.compare.attempt_labels import labelled_by_attempt
from analysis.compare.campaign import Leaderboard, leaderboards
from analysis.compare.choices import Comparison, comparisons
from analysis.compare.loss import loss_doubts
from analysis.compare.study import Study, studies
from analysis.load.discover import Found
from analysis.logs.file import LogFile
from analysis.logs.measurements import Measurement, Series, measurements, series_of
from analysis.metrics.side_files import SideRecord, side_records, with_counters
from analysis.metrics.storage import Storage, total
from analysis.run import RunResult
from analysis.scaling.cost import relative_costs
from analysis.scaling.groups import Group, scaling_groups
from analysis.scaling.laws import Fit, fits_of
from analysis.scaling.mlperf import System, systems_of
from analysis.scaling.serving import LoadLine, load_lines, order
from jobs import metrics as m

STORAGE_TESTS = ("checkpoint", "data", "fio")


@dataclass(frozen=True)
class Training:
    """The training whose cost is asked for."""

    tokens: float
    ranks: tuple[int, ...] = ()
    """Further numbers of ranks, measured or not."""


DEFAULT = Training(1e9)


@dataclass(frozen=True, eq=False)
class Digest:
    """The runs and logs of a report, and the results that its parts share."""

    runs: Sequence[RunResult] = ()
    """Ours, then those of logs; used or not."""
    groups: Sequence[Group] = ()
    """The lines of the used runs over their ranks, by label; in a campaign the labels are the names of its attempts."""
    doubts: Mapping[Path, str] = field(default_factory=dict)
    """The reason to doubt the loss of a run, by its path."""
    logs: Sequence[LogFile] = ()
    training: Training = DEFAULT
    running: Sequence[RunResult] = ()
    """Those that a live page finds running, with the steps that they recorded so far; never results."""

    @cached_property
    def used(self) -> list[RunResult]:
        """The runs that figures and headline may use: trainings that were measured."""
        return [run for run in self.runs if run.used]

    @cached_property
    def recorded(self) -> list[RunResult]:
        """The used runs and those that did other work: all that measured something."""
        return [run for run in self.runs if run.used or did_other_work(run)]

    @cached_property
    def boards(self) -> list[Leaderboard]:
        """The judged campaigns."""
        return leaderboards(self.runs)

    @cached_property
    def systems(self) -> list[list[System]]:
        """The systems of MLPerf Training, in lines."""
        return systems_of(self.runs)

    @cached_property
    def relative_costs(self) -> dict[Path, float]:
        """RELATIVE_COST of every run that has it, by path."""
        return relative_costs(self.groups)

    @cached_property
    def fits(self) -> dict[Group, list[Fit]]:
        """The scaling laws of each line, the best one first."""
        return {group: fits_of(group) for group in self.groups}

    @cached_property
    def stored(self) -> list[tuple[RunResult, Storage]]:
        """The runs that recorded their storage, those that moved the most bytes first."""
        known = [(run, run.storage) for run in self.recorded if run.storage is not None]
        return sorted(known, key=lambda each: (-sum(total(each[1].whole)), each[0].name))

    @cached_property
    def evaluations(self) -> list[RunResult]:
        """The runs that trained nothing and have a loss, the lowest loss first."""
        found = [run for run in self.runs if run.setting("job.train") is False and m.EVALUATION_LOSS in run.values]
        return sorted(found, key=lambda run: (run.values[m.EVALUATION_LOSS], run.name))

    @cached_property
    def served(self) -> list[RunResult]:
        """The runs that served: those without doubts first, then by rate."""
        return sorted((run for run in self.runs if run.state == "served"), key=order)

    @cached_property
    def load_lines(self) -> list[LoadLine]:
        """The served loads, in lines over concurrency or rate."""
        return load_lines(self.runs)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The values of swept choices, each against another one of its choice."""
        tested = [run for run in self.runs if run.state == "tested"]
        return comparisons(self.groups, self.load_lines, tested, self.side_records)

    @cached_property
    def side_records(self) -> list[SideRecord]:
        """The counters of other machines over the time of each run."""
        return side_records(self.recorded)

    @cached_property
    def studies(self) -> list[Study]:
        """The tables that experiment files ask for."""
        return studies(with_counters(self.recorded, self.side_records))

    @cached_property
    def storage_tests(self) -> dict[str, list[RunResult]]:
        """The runs that measured storage, by kind of test."""
        tested = [run for run in self.runs if run.state == "tested"]
        return {test: [run for run in tested if run.setting(f"storage.{test}") is not None] for test in STORAGE_TESTS}

    @cached_property
    def measurements(self) -> list[Measurement]:
        """The measurements in logs without training: collectives, storage, serving."""
        return measurements(self.logs)

    @cached_property
    def series(self) -> list[Series]:
        """These measurements, by test."""
        return series_of(self.measurements)


def digest_of(found: Found, training: Training = DEFAULT, running: Sequence[RunResult] = ()) -> Digest:
    """Return the digest of these runs and logs."""
    doubts = loss_doubts(found.runs)
    groups = labelled_by_attempt(scaling_groups(found.runs, doubts.keys()))
    return Digest(found.runs, groups, doubts, found.logs, training, running)


def did_other_work(run: RunResult) -> bool:
    """Return True for a run that trained nothing, and whose results are in a section of their own."""
    return run.state in {"served", "tested"} or (run.state == "evaluated" and m.EVALUATION_LOSS in run.values)
