"""A campaign: attempts against their baseline, judged. Derived from the run directories alone.

An attempt is as fast as the geometric mean of the ratios of its pairs says, each a repeat of it and the repeat of the
baseline that ran beside it. It is faster or slower only where the interval of that mean is on one side of 1, a tie
where it is not, and nothing with fewer than three pairs.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from analysis.compare.ab import CONFIDENCE, FEWEST_REPEATS, paired_interval, welch_interval
from analysis.compare.rules import Reference, Rules, breaches
from analysis.load.run_directory import RunResult
from analysis.scaling.groups import differing_keys
from analysis.untrusted import as_list, lookup
from jobs.submit.submissions import kind_of

BASELINE = "baseline"
# What tells repeats apart, and how they were started: no difference between attempts.
NO_CHANGE = ("name", "repeat", "sweep", "runs_dir", "launcher.")


class Verdict(Enum):
    """What may be said of an attempt; the value is said."""

    faster = "faster"
    tie = "tie"
    slower = "slower"
    too_few = "too few repeats"
    invalid = "does not count"


@dataclass(frozen=True)
class Attempt:
    """The repeats of a configuration, and those of the baseline beside them, by number of the repeat."""

    name: str
    runs: Mapping[int, RunResult]
    beside: Mapping[int, RunResult]

    @property
    def first(self) -> RunResult:
        """The run that stands for its configuration."""
        return self.runs[min(self.runs)]

    @property
    def used(self) -> list[RunResult]:
        """Repeats that finished and were measured."""
        return [run for run in self.runs.values() if run.used]


@dataclass(frozen=True)
class Entry:
    """An attempt with its verdict."""

    attempt: Attempt
    verdict: Verdict
    ratios: Sequence[float] = ()
    """Time of the baseline divided by that of the attempt, of each whole pair: above 1 is faster."""
    interval: tuple[float, float] | None = None
    """Of their geometric mean, at CONFIDENCE."""
    reasons: Sequence[str] = ()
    """Why it does not count."""
    rank: int | None = None
    """Shared by those that cannot be told apart; None where nothing may be said."""
    holds: bool = False
    """Whether `faster` or `slower` stays when the interval is widened for all attempts (Bonferroni)."""

    @property
    def ratio(self) -> float | None:
        """Geometric mean of the ratios; None without a whole pair."""
        return statistics.geometric_mean(self.ratios) if self.ratios else None


@dataclass(frozen=True)
class Board:
    """A campaign, judged."""

    path: Path
    baseline: Sequence[RunResult]
    """All its repeats, beside attempts too."""
    attempts: Sequence[Attempt]
    """In the order in which they were submitted."""
    entries: Sequence[Entry]
    """The best first; those that do not count last."""
    rules: Rules
    reference: Reference | None
    """None while no repeat of the baseline has finished."""

    @property
    def compared(self) -> int:
        """How many attempts an interval decides about."""
        return sum(is_compared(entry) for entry in self.entries)

    @property
    def runs(self) -> list[RunResult]:
        """All runs."""
        return [*self.baseline, *(run for attempt in self.attempts for run in attempt.runs.values())]


def was_previewed(run: RunResult) -> bool:
    """Return True if a run was prepared to be shown, not to be started."""
    kind = kind_of(run.setting("launcher.kind"))
    return kind is not None and kind.is_preview


def boards(runs: Iterable[RunResult]) -> list[Board]:
    """The campaigns among some runs, each judged, in the order of their directories."""
    campaigns: dict[Path, list[RunResult]] = defaultdict(list)
    for run in runs:
        if part_of(run) and not (run.state == "not started" and was_previewed(run)):
            campaigns[run.path.parent].append(run)
    return [judged(path, members) for path, members in sorted(campaigns.items())]


def part_of(run: RunResult) -> Mapping[str, Any] | None:
    """What a run's provenance says of its attempt: name, role, repeat; None for a run of no campaign."""
    known = run.provenance.get("attempt")
    if not isinstance(known, Mapping) or not isinstance(known.get("name"), str) or type(known.get("repeat")) is not int:
        return None
    return known


def attempts_of(runs: Sequence[RunResult]) -> list[Attempt]:
    """The attempts among the runs of a campaign, in the order of their submission."""
    found: dict[str, tuple[dict[int, RunResult], dict[int, RunResult]]] = defaultdict(lambda: ({}, {}))
    for run in sorted(runs, key=submitted):
        part = part_of(run)
        if part is not None and part["name"] != BASELINE:
            found[part["name"]][part.get("role") == BASELINE][part["repeat"]] = run
    return [Attempt(name, tried, beside) for name, (tried, beside) in found.items() if tried]


def submitted(run: RunResult) -> tuple[str, str]:
    """By what runs are in the order of their submission; those of one submission were prepared in its order."""
    return str(run.provenance.get("time")), str(run.events[0].get("time") if run.events else None)


# --- the judgement ---------------------------------------------------------------------------------------------


def judged(path: Path, runs: Sequence[RunResult]) -> Board:
    """The board of one campaign, of at least one run."""
    attempts = attempts_of(runs)
    baseline = [run for run in runs if (part_of(run) or {}).get("role") == BASELINE]
    rules = Rules.of((baseline or runs)[0])
    finished = [run for run in baseline if run.used]
    reference = Reference(finished, rules) if finished else None
    entries = [judge(attempt, reference) for attempt in attempts]
    return Board(path, baseline, attempts, ranked(entries), rules, reference)


def judge(attempt: Attempt, reference: Reference | None) -> Entry:
    """The verdict on one attempt, by itself."""
    if reference is None:
        return Entry(attempt, Verdict.invalid, reasons=["no repeat of the baseline has finished"])
    pairs = [(attempt.beside.get(number), run) for number, run in sorted(attempt.runs.items())]
    times_s = [
        (reference.rules.time_s(beside), reference.rules.time_s(run))
        for beside, run in pairs
        if beside is not None and beside.used and run.used
    ]
    ratios = [of_baseline / of_run for of_baseline, of_run in times_s if of_baseline and of_run]
    interval = paired_interval(ratios)
    if reasons := reasons_of(attempt, reference):
        return Entry(attempt, Verdict.invalid, ratios, interval, reasons)
    return Entry(attempt, verdict_of(ratios, interval), ratios, interval)


def reasons_of(attempt: Attempt, reference: Reference) -> list[str]:
    """Why an attempt does not count: what is wrong with any of its repeats, each reason once."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, run in sorted(attempt.runs.items()):
        for reason in breaches(run, reference):
            found[reason].append(number)
    everywhere = len(attempt.runs)
    return [
        reason if len(numbers) == everywhere else f"repeat {', '.join(map(str, numbers))}: {reason}"
        for reason, numbers in found.items()
    ]


def verdict_of(ratios: Sequence[float], interval: tuple[float, float] | None) -> Verdict:
    """What the pairs of an attempt that counts prove."""
    if len(ratios) < FEWEST_REPEATS:
        return Verdict.too_few
    # Pairs that are all the same have no interval, and prove nothing but that no clock was read.
    low, high = interval or (1.0, 1.0)
    return Verdict.faster if low > 1 else Verdict.slower if high < 1 else Verdict.tie


def ranked(entries: Sequence[Entry]) -> list[Entry]:
    """The entries in their order, with ranks; neighbours that cannot be told apart share one."""
    compared = sum(map(is_compared, entries))
    by_verdict: dict[Verdict, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: -(entry.ratio or 0)):
        by_verdict[entry.verdict].append(replace(entry, holds=holds(entry, compared)))
    faster = numbered(by_verdict[Verdict.faster], 1)
    # The baseline has the rank of those that tie with it.
    ties = [replace(entry, rank=len(faster) + 1) for entry in by_verdict[Verdict.tie]]
    slower = numbered(by_verdict[Verdict.slower], len(faster) + len(ties) + 2)
    return [*faster, *ties, *slower, *by_verdict[Verdict.too_few], *by_verdict[Verdict.invalid]]


def is_compared(entry: Entry) -> bool:
    """Whether its interval decides."""
    return entry.interval is not None and entry.verdict is not Verdict.invalid


def numbered(entries: Sequence[Entry], first: int) -> list[Entry]:
    """Entries, the fastest first, with ranks from `first` on, which those share that cannot be told apart."""
    found: list[Entry] = []
    for place, entry in enumerate(entries, start=first):
        leader = next((each for each in found if each.rank == found[-1].rank), None)
        between = welch_interval(leader.ratios, entry.ratios) if leader else None
        shared = leader is not None and (between is None or between[0] <= 1 <= between[1])
        found.append(replace(entry, rank=found[-1].rank if shared else place))
    return found


def holds(entry: Entry, compared: int) -> bool:
    """Whether a difference stays at the confidence that all comparisons together leave to each (Bonferroni)."""
    if entry.verdict not in {Verdict.faster, Verdict.slower}:
        return False
    widened = paired_interval(entry.ratios, 1 - (1 - CONFIDENCE) / max(1, compared))
    return verdict_of(entry.ratios, widened) is entry.verdict


# --- what was changed ------------------------------------------------------------------------------------------


def changes(run: RunResult, since: RunResult) -> list[str]:
    """What differs between two configurations, their code and what their ranks sent over: `nodes 1 → 2`."""
    settings = [
        {key: value for key, value in each.settings.items() if not key.startswith(NO_CHANGE)} for each in (since, run)
    ]
    found = [f"{key} {settings[0].get(key)} → {settings[1].get(key)}" for key in differing_keys(settings)]
    codes = [str(each.provenance.get("code_digest")) for each in (since, run)]
    ways = [each.transport for each in (since, run)]
    return (
        found
        + ([f"code {codes[0]} → {codes[1]}"] if codes[0] != codes[1] else [])
        # What an older version did not record may have been the same.
        + ([f"transport {ways[0]} → {ways[1]}"] if None not in ways and ways[0] != ways[1] else [])
    )


def rehearsal(board: Board) -> list[str]:
    """What the campaign's baseline has otherwise than its contest; empty where it is the contest, or there is none."""
    run = (board.baseline or board.runs)[0]
    name = run.setting("contest.name")
    if name is None:
        return []
    both = [(key, run.setting(f"{key}.name"), run.setting(f"contest.{key}")) for key in ("model", "data")]
    typed = [str(each) for each in as_list(lookup(run.provenance, "overrides"))]
    return [f"{key} {own}, not {wanted}" for key, own, wanted in both if own != wanted] + [
        each for each in typed if each.startswith("contest.")
    ]
