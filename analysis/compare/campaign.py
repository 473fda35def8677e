"""A campaign: trials against their baseline, judged from the run directories alone.

A trial is one configuration, submitted by `slurmscale attempt`. Its speed is the geometric mean of the ratios of its
pairs, each the speed of a repeat of the trial (1 / its time, or its merit) over that of the repeat of the baseline that
is paired with it. A trial is faster or slower only if the interval of that mean lies on one side of 1, and a tie
otherwise; with fewer pairs than an interval takes there is no verdict. The intervals of all trials hold together
(Bonferroni), so that the number of trials does not raise the share of campaigns with a false verdict:
tests.benchmarks.false_crowns measures it.

A trial that runs until a verdict (jobs.explore.campaign.referee) is judged after every pair, by intervals that hold at
all looks together. The k-th trial of the campaign may err with the share 1 / (k (k + 1)) of the error of the campaign,
so that neither further pairs nor further trials change its verdict. Those of a fixed number of pairs share the rest.

A proxy is a trial of short runs (analysis.compare.proxy). It is checked against baselines of its own length, and only
decides with the bias of short runs taken out of its ratio and added to its interval.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from analysis.compare.contest_rules import Baseline, Rules, breaches
from analysis.compare.core import Ratio, matched
from analysis.compare.proxy import Bias, Proxy
from analysis.compare.proxy import recorded as recorded_proxy
from analysis.intervals import CONFIDENCE, paired_interval
from analysis.run import RunResult
from analysis.scaling.groups import differing_keys
from analysis.sequential import sequential_intervals
from analysis.untrusted import as_list, as_number, lookup
from jobs.plan.rules.contest import departures
from jobs.rundir import BASELINE, SweepDir, read_records
from jobs.submit.sweeps.submissions import kind_of

# A verdict with a star holds at this confidence, for all trials together.
SURE = 0.99
# Settings that distinguish repeats or say how they were started: no difference between trials.
NO_CHANGE = ("name", "repeat", "sweep", "runs_dir", "launcher.", "budget.", "campaign.")


class Verdict(Enum):
    """The verdict on a trial; the value is printed."""

    faster = "faster"
    tie = "tie"
    slower = "slower"
    no_difference = "no difference that matters"
    undecided = "undecided"
    too_few = "too few repeats"
    invalid = "does not count"


@dataclass(frozen=True)
class Terms:
    """The terms of a trial that runs until a verdict, as recorded before its first run."""

    order: int
    """Its place among the trials of the campaign, from 1."""
    minimum_effect: float
    """Relative difference that matters."""

    @property
    def share(self) -> float:
        """Its share of the error of the campaign; those of all orders together are 1."""
        return 1 / (self.order * (self.order + 1))

    def verdict(self, ratios: Iterable[tuple[float, float]]) -> Verdict:
        """Return the verdict of the first interval that decides; later ones cannot change it."""
        least, most = 1 / (1 + self.minimum_effect), 1 + self.minimum_effect
        for low, high in ratios:
            if least < low and high < most:
                return Verdict.no_difference
            if low > 1 or high < 1:
                return Verdict.faster if low > 1 else Verdict.slower
        return Verdict.undecided


@dataclass(frozen=True)
class Trial:
    """A configuration that was repeated in turns with the baseline."""

    name: str
    repeats: Mapping[int, tuple[Sequence[RunResult], Sequence[RunResult]]]
    """The runs of the baseline and of the trial by number of the repeat; where there are several, the last counts."""

    @property
    def runs(self) -> dict[int, RunResult]:
        """Its runs by number of the repeat."""
        return {number: tried[-1] for number, (_, tried) in sorted(self.repeats.items()) if tried}

    @property
    def first(self) -> RunResult:
        """The run that stands for its configuration."""
        return self.runs[min(self.runs)]

    @functools.cached_property
    def sequence(self) -> Terms | None:
        """The terms on which it runs until a verdict; None for one of a fixed number of pairs."""
        found = [terms for run in self.runs.values() if (terms := terms_of(run)) is not None]
        return min(found, key=lambda each: each.order, default=None)

    @functools.cached_property
    def proxy(self) -> Proxy | None:
        """The terms on which its runs are short; None for those of full length."""
        return proxy_of(self.first) if self.runs else None

    @property
    def used(self) -> list[RunResult]:
        """Repeats that finished and were measured."""
        return [run for run in self.runs.values() if run.used]

    def pairs(self, rules: Rules) -> list[tuple[RunResult, RunResult]]:
        """Return the baseline and the trial of each pair of which both were measured."""
        pairs = [(beside[-1], tried[-1]) for _, (beside, tried) in sorted(self.repeats.items()) if beside and tried]
        if self.sequence is not None:
            # A baseline that is resumed later would change the order of the pairs that were looked at.
            pairs = [pair for pair in pairs if pair[0].attempts == 1]
        return [pair for pair in pairs if all(run.used and rules.speed(run) for run in pair)]

    def ratios(self, rules: Rules) -> list[float]:
        """Return the speed of the trial divided by that of the baseline, for each pair."""
        speeds = [[rules.speed(run) for run in pair] for pair in self.pairs(rules)]
        return [of_trial / of_baseline for of_baseline, of_trial in speeds if of_baseline and of_trial]


@dataclass(frozen=True)
class Entry:
    """A trial with its verdict."""

    trial: Trial
    verdict: Verdict
    ratios: Sequence[float] = ()
    """Speed of the trial divided by that of the baseline, one value per pair: above 1 is faster; of a proxy as run."""
    reasons: Sequence[str] = ()
    """Reasons why it does not count."""
    rank: int | None = None
    """Shared by trials that do not differ significantly; None without a verdict."""
    holds: bool = False
    """True if `faster` or `slower` holds at SURE, too."""
    confidence: float = CONFIDENCE
    """Confidence of its own interval; larger with more trials, so that all intervals together have CONFIDENCE."""

    @property
    def error_of_pairs(self) -> float:
        """The error that the interval of its pairs may have; half of that of a proxy belongs to its bias."""
        return (1 - self.confidence) / (2 if self.trial.proxy and self.trial.proxy.is_known else 1)

    @functools.cached_property
    def bias(self) -> Bias | None:
        """The bias of the short pairs of a proxy; None if it is not known, and for pairs of full length."""
        return self.trial.proxy.bias(self.error_of_pairs) if self.trial.proxy else None

    @functools.cached_property
    def ratio(self) -> Ratio | None:
        """The ratio over its pairs, of a proxy without its bias, if that is known; None without a pair."""
        if not self.ratios:
            return None
        ratios = [ratio / self.bias.middle for ratio in self.ratios] if self.bias else self.ratios
        return replace(Ratio.of_pairs(ratios), interval=self.looks[-1] if self.looks else None)

    @functools.cached_property
    def looks(self) -> list[tuple[float, float]]:
        """The interval after each look at a trial that runs until a verdict, else after its last pair."""
        if self.trial.sequence:
            found = sequential_intervals(self.ratios, self.error_of_pairs)
        else:
            only = paired_interval(self.ratios, 1 - self.error_of_pairs)
            found = [only] if only else []
        return [self.bias.removed(each) for each in found] if self.bias else found

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the ratio; None with too few pairs, or where none varies."""
        return self.ratio.interval if self.ratio else None


@dataclass(frozen=True)
class Leaderboard:
    """A judged campaign."""

    path: Path
    baseline_runs: Sequence[RunResult]
    """All repeats of the baseline, also those paired with trials; short ones last."""
    trials: Sequence[Trial]
    """In order of submission."""
    entries: Sequence[Entry]
    """The best first; trials that do not count last."""
    rules: Rules
    baseline: Baseline | None
    """None until a repeat of the baseline of full length has finished."""

    @property
    def compared(self) -> int:
        """Number of trials of a fixed number of pairs that an interval decides about."""
        return sum(map(is_compared, self.entries))

    @property
    def left(self) -> float:
        """The share of the error that trials which run until a verdict leave to the others."""
        return left_by(self.trials)

    @property
    def runs(self) -> list[RunResult]:
        """All runs, also those of a repeat that was submitted again."""
        tried = [run for trial in self.trials for _, runs in trial.repeats.values() for run in runs]
        return [*self.baseline_runs, *tried]

    @property
    def first(self) -> RunResult:
        """The run that stands for the campaign's settings: the first of the baseline, if any."""
        return (self.baseline_runs or self.runs)[0]


def was_previewed(run: RunResult) -> bool:
    """Return True if a run was prepared to be shown, and has not been started since."""
    kind = kind_of(run.setting("launcher.kind"))
    return run.state == "not started" and kind is not None and kind.is_preview


def previews(runs: Iterable[RunResult]) -> dict[Path, list[str]]:
    """Return the names of the trials with repeats that were only previewed, by the directories of their campaigns."""
    found: dict[Path, list[str]] = defaultdict(list)
    for run in runs:
        part = part_of(run)
        if part is not None and was_previewed(run):
            found[run.path.parent].append(part["name"])
    return {path: list(dict.fromkeys(names)) for path, names in sorted(found.items())}


def leaderboards(runs: Iterable[RunResult]) -> list[Leaderboard]:
    """Return the campaigns among some runs, each judged, in order of their directories; previews are left out."""
    campaigns: dict[Path, list[RunResult]] = defaultdict(list)
    for run in runs:
        if part_of(run) and not was_previewed(run):
            campaigns[run.path.parent].append(run)
    return [judged(path, members) for path, members in sorted(campaigns.items())]


def part_of(run: RunResult) -> Mapping[str, Any] | None:
    """Return name, role and repeat from a run's provenance; None for a run of no campaign."""
    known = run.provenance.get("attempt")
    if not isinstance(known, Mapping) or not isinstance(known.get("name"), str) or type(known.get("repeat")) is not int:
        return None
    return known


def repeat_of(run: RunResult) -> int:
    """Return the number of the repeat of a campaign's run."""
    return int((part_of(run) or {})["repeat"])


def trials_of(runs: Sequence[RunResult]) -> list[Trial]:
    """Return the trials among the runs of a campaign, in order of submission."""
    found: dict[str, tuple[list[RunResult], list[RunResult]]] = defaultdict(lambda: ([], []))
    for run in sorted(runs, key=submitted):
        part = part_of(run)
        if part is not None and part["name"] != BASELINE:
            found[part["name"]][part.get("role") != BASELINE].append(run)
    return [Trial(name, matched(beside, tried, repeat_of)) for name, (beside, tried) in found.items() if tried]


def submitted(run: RunResult) -> tuple[str, str]:
    """Return the sort key of submission; runs of one submission were prepared in its order."""
    return str(run.provenance.get("time")), str(run.events[0].get("time") if run.events else None)


# --- the judgement ---------------------------------------------------------------------------------------------


def judged(path: Path, runs: Sequence[RunResult]) -> Leaderboard:
    """Return the leaderboard of one campaign, of at least one run."""
    baseline_runs = [run for run in runs if (part_of(run) or {}).get("role") == BASELINE]
    baseline_runs.sort(key=lambda run: proxy_of(run) is not None)
    finished = [run for run in baseline_runs if run.used]
    rules = Rules.of((finished or baseline_runs or runs)[0])
    # Runs are checked against the baseline of their own length.
    baselines = {
        length: Baseline(own, rules)
        for length, (own, _) in matched(finished, [], lambda run: length_of(proxy_of(run))).items()
    }
    trials = trials_of(runs)
    removed = removed_runs(path) if any(trial.sequence for trial in trials) else []
    entries = ranked(decided([judge(trial, baselines.get(length_of(trial.proxy)), removed) for trial in trials]))
    return Leaderboard(path, baseline_runs, trials, entries, rules, baselines.get(length_of(None)))


def judge(trial: Trial, baseline: Baseline | None, removed: Iterable[str] = ()) -> Entry:
    """Return the ratios of a trial and the reasons why it does not count; `decided` gives the verdict."""
    if baseline is None:
        return Entry(trial, Verdict.invalid, reasons=["no repeat of the baseline has finished"])
    return Entry(trial, Verdict.invalid, trial.ratios(baseline.rules), reasons_of(trial, baseline, removed))


def decided(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with verdicts, by intervals that hold for all trials together."""
    share = left_by([entry.trial for entry in entries]) / max(1, sum(map(is_compared, entries)))
    return [
        entry if entry.reasons else decide(entry, terms.share if (terms := entry.trial.sequence) else share)
        for entry in entries
    ]


def decide(entry: Entry, share: float) -> Entry:
    """Return an entry that counts with its verdict, by an interval that has this share of the error of all."""
    entry, sure = (replace(entry, confidence=confidence_of_each(together, share)) for together in (CONFIDENCE, SURE))
    verdict = verdict_of(entry)
    holds = verdict in {Verdict.faster, Verdict.slower} and verdict_of(sure) is verdict
    return replace(entry, verdict=verdict, holds=holds)


def confidence_of_each(together: float, share: float) -> float:
    """Return the confidence of one of several intervals that hold together with a given one, by its share of the error.

    The shares are equal (Bonferroni) but for trials that run until a verdict.
    """
    return 1 - (1 - together) * share


def left_by(trials: Iterable[Trial]) -> float:
    """Return the share of the error that the trials which run until a verdict leave to the others."""
    return 1 - sum(trial.sequence.share for trial in trials if trial.sequence)


def terms_of(run: RunResult) -> Terms | None:
    """Return the terms that a run's provenance records, if its trial runs until a verdict."""
    known = (part_of(run) or {}).get("until")
    order, effect = (as_number(lookup(known, key)) for key in ("order", "minimum_effect")) if known else (None, None)
    if order is None or effect is None or order < 1 or effect <= 0:
        return None
    return Terms(int(order), effect)


def proxy_of(run: RunResult) -> Proxy | None:
    """Return the terms on which a run is short, as its provenance records them; None for one of full length."""
    return recorded_proxy((part_of(run) or {}).get("proxy"))


def length_of(proxy: Proxy | None) -> frozenset[str]:
    """Return what runs of the same length share: the overrides that shorten them."""
    return frozenset(proxy.overrides) if proxy else frozenset()


def removed_runs(path: Path) -> list[str]:
    """Return the names of the runs that were removed from a campaign, by its ledger."""
    records = read_records(SweepDir(path).submissions)
    return list(dict.fromkeys(str(each.get("run")) for each in records if each.get("event") == "removed"))


def reasons_of(trial: Trial, baseline: Baseline, removed: Iterable[str] = ()) -> list[str]:
    """Return the reasons that a trial does not count: the faults of all its repeats, each once.

    With pairs chosen by removing others no error of a verdict holds.
    """
    if trial.sequence is not None:
        own = re.compile(rf"{re.escape(trial.name)}(-{BASELINE})?-r\d+")
        if chosen := [name for name in removed if own.fullmatch(name)]:
            return [f"{', '.join(chosen)} of its pairs was removed, so those that are left were chosen"]
    found: dict[str, list[int]] = defaultdict(list)
    for number, run in trial.runs.items():
        for reason in breaches(run, baseline):
            found[reason].append(number)
    return [
        reason if len(numbers) == len(trial.runs) else f"repeat {', '.join(map(str, numbers))}: {reason}"
        for reason, numbers in found.items()
    ]


def verdict_of(entry: Entry) -> Verdict:
    """Return what the pairs of a trial that counts prove."""
    ratio = entry.ratio
    if entry.trial.sequence is None and (ratio is None or ratio.too_few):
        return Verdict.too_few
    if entry.trial.proxy is not None and entry.bias is None:
        return Verdict.undecided
    if entry.trial.sequence is not None:
        return entry.trial.sequence.verdict(entry.looks)
    assert ratio is not None
    # Pairs that are all equal have no interval. They prove nothing, as a measured time varies: a tie.
    return {1: Verdict.faster, 0: Verdict.tie, -1: Verdict.slower}[ratio.direction]


def ranked(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries in order, with ranks; neighbours that do not differ significantly share one."""
    by_verdict: dict[Verdict, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: -(entry.ratio.middle if entry.ratio else 0)):
        by_verdict[entry.verdict].append(entry)
    faster = numbered(by_verdict[Verdict.faster], 1)
    # The baseline has the rank of those that tie with it.
    ties = [
        replace(entry, rank=len(faster) + 1)
        for verdict in (Verdict.tie, Verdict.no_difference)
        for entry in by_verdict[verdict]
    ]
    slower = numbered(by_verdict[Verdict.slower], len(faster) + len(ties) + 2)
    without = (Verdict.undecided, Verdict.too_few, Verdict.invalid)
    return [*faster, *ties, *slower, *(entry for verdict in without for entry in by_verdict[verdict])]


def is_compared(entry: Entry) -> bool:
    """Return whether an interval over a fixed number of pairs decides the verdict of an entry."""
    is_unknown = entry.trial.proxy is not None and not entry.trial.proxy.is_known
    return entry.trial.sequence is None and not is_unknown and not entry.reasons and entry.interval is not None


def numbered(entries: Sequence[Entry], first: int) -> list[Entry]:
    """Return entries, the fastest first, with ranks from `first` on, shared as `ranked` does."""
    found: list[Entry] = []
    for place, entry in enumerate(entries, start=first):
        leader = next((each for each in found if each.rank == found[-1].rank), None)
        shared = leader is not None and not differ(leader, entry)
        found.append(replace(entry, rank=found[-1].rank if shared else place))
    return found


def differ(a: Entry, b: Entry) -> bool:
    """Return whether two trials differ significantly (Welch); of a proxy whether their intervals are apart."""
    if a.trial.proxy or b.trial.proxy:
        if a.interval is None or b.interval is None:
            return False
        return a.interval[1] < b.interval[0] or b.interval[1] < a.interval[0]
    return Ratio.of_sides(a.ratios, b.ratios).direction != 0


# --- what was changed ------------------------------------------------------------------------------------------


def changes(run: RunResult, since: RunResult) -> list[str]:
    """Return the differences of settings, code and transports between two runs: `nodes 1 → 2`."""
    settings = [
        {key: value for key, value in each.settings.items() if not key.startswith(NO_CHANGE)} for each in (since, run)
    ]
    found = [f"{key} {settings[0].get(key)} → {settings[1].get(key)}" for key in differing_keys(settings)]
    codes = [str(each.provenance.get("code_digest")) for each in (since, run)]
    transports = [each.transport for each in (since, run)]
    if codes[0] != codes[1]:
        found.append(f"code {codes[0]} → {codes[1]}")
    # An older version did not record the transport, so a missing one may be equal.
    if None not in transports and transports[0] != transports[1]:
        found.append(f"transport {transports[0]} → {transports[1]}")
    return found


def rehearsal(board: Leaderboard) -> list[str]:
    """Return how the campaign's baseline departs from its contest; empty if it does not, or without a contest."""
    run = board.first
    if run.setting("contest.name") is None:
        return []
    overrides = [str(each) for each in as_list(lookup(run.provenance, "overrides"))]
    return departures(run.setting) + [each for each in overrides if each.startswith("contest.")]
