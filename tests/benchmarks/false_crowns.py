"""Rate of false crowns: campaigns of equal configurations, judged by the code that judges real ones.

Simulated campaigns take their step times from real ones: of runs one after the other on a busy CPU machine
(step_times.csv), or of logs (--corpus). The stationary bootstrap (Politis and Romano, JASA 89, 1994) keeps their
autocorrelation, within a run and from run to run. Real pairs (tests.benchmarks.real_pairs) are judged beside them;
--pairs N trains more on this CPU until the file has N, and goes on where an earlier call ended. --rates FILE keeps the
rates as CSV, from which tests.benchmarks.false_crowns_figure draws.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from analysis.compare.campaign import Leaderboard, Verdict, judged
from analysis.intervals import pairs_needed
from analysis.load.discover import read_runs
from analysis.run import RunResult
from jobs import metrics as m
from jobs.rundir import BASELINE
from tests.benchmarks.real_pairs import PairedRun, collect, kept_pairs

Series = NDArray[np.float64]
KEPT = Path(__file__).with_name("step_times.csv")
REAL = Path(__file__).with_name("real_pairs.csv")
# A log with fewer steps says little about how its noise persists.
FEWEST_STEPS = 100
# Mean length of a block of the bootstrap, in runs.
BLOCK_RUNS = 3
# A campaign lies in one part of the time.
PARTS = 3
EFFECT = 1.03
CPU, LOGS = "runs on a CPU, busy and quiet", "steps of"


@dataclass(frozen=True)
class Scenario:
    """The shape of a simulated campaign."""

    name: str
    attempts: int = 1
    pairs: int = 5
    drift: float = 0.0
    """Logarithm of the step time at the end over that at the beginning."""
    alternate: bool = True
    """Every second pair begins with the attempt, as jobs.explore.campaign.trial orders them."""
    effect: float = 1.0
    """The true speedup of the attempts."""


class Rate(NamedTuple):
    """A scenario with the number of its campaigns that name an attempt `faster`, and with a star."""

    source: str
    scenario: str
    attempts: int
    pairs: int
    campaigns: int
    faster: int
    starred: int


SCENARIOS = (
    *(Scenario("no drift", attempts, pairs) for attempts in (1, 5) for pairs in (3, 5)),
    *(Scenario(f"{drift:+.0%} in the campaign", drift=float(np.log1p(drift))) for drift in (-0.2, 0.2, -0.5)),
    *(
        Scenario(f"{drift:+.0%}, baseline first", drift=float(np.log1p(drift)), alternate=False)
        for drift in (-0.2, 0.2, -0.5)
    ),
    Scenario("true 3 % faster", effect=EFFECT),
    Scenario("true 3 % faster", attempts=5, effect=EFFECT),
)


# --- simulated campaigns ---------------------------------------------------------------------------------------


def kept_sources() -> list[tuple[Series, int]]:
    """Return the step times of consecutive runs, in parts of the time that are busy or quiet, and the steps of a run.

    The file has one row per run, in the order in which they ran.
    """
    with KEPT.open() as file:
        rows = [[float(value) for value in row] for row in csv.reader(file)]
    return [(part.ravel(), part.shape[1]) for part in np.array_split(np.array(rows), PARTS)]


def quietest(sources: Sequence[tuple[Series, int]]) -> tuple[Series, int]:
    """Return the source with the shortest steps."""
    return min(sources, key=lambda source: float(np.median(source[0])))


def resampled(series: Series, length: int, block: float, chosen: np.random.Generator) -> Series:
    """Return a series of a length by the stationary bootstrap: blocks of geometric length from random places."""
    places = chosen.integers(len(series), size=length)
    follows = chosen.random(length) >= 1 / block
    for i in range(1, length):
        if follows[i]:
            places[i] = places[i - 1] + 1
    found: Series = series[places % len(series)]
    return found


def campaign(series: Series, steps_of_run: int, scenario: Scenario, chosen: np.random.Generator) -> Leaderboard:
    """Return the verdict on a simulated campaign: the first pair of every attempt, then the second, ..."""
    count = 2 * scenario.attempts * scenario.pairs
    times_s = resampled(series, count * steps_of_run, BLOCK_RUNS * steps_of_run, chosen)
    times_s = times_s * np.exp(scenario.drift * np.linspace(0, 1, len(times_s)))
    runs = []
    of_runs = iter(times_s.reshape(count, steps_of_run).sum(axis=1))
    for pair in range(1, scenario.pairs + 1):
        for attempt in range(scenario.attempts):
            roles = (BASELINE, "attempt") if pair % 2 or not scenario.alternate else ("attempt", BASELINE)
            for role in roles:
                time_s = next(of_runs) / (scenario.effect if role == "attempt" else 1.0)
                runs.append(a_result(f"attempt{attempt}", role, pair, float(time_s)))
    return judged(Path("campaign"), runs)


def a_result(name: str, role: str, pair: int, time_s: float, **facts: Any) -> RunResult:
    """Return a finished run of a campaign that took this time; `facts` go to its provenance."""
    parts = (m.FIRST_STEP_TIME, m.WARMUP_TIME, m.CHECKPOINT_TOTAL_TIME)
    return RunResult(
        Path(f"campaign/{name}-{role}-{pair}"),
        config={"nodes": 1, "ranks_per_node": 1},
        provenance={"attempt": {"name": name, "role": role, "repeat": pair, "changes": [], **facts}},
        events=({"event": "started", "time": f"{pair:03}"},),
        values=dict.fromkeys(parts, 0.0) | {m.STEADY_TIME: time_s},
        losses={1: 2.0},
    )


def rates(
    sources: Sequence[tuple[Series, int]], scenario: Scenario, campaigns: int, chosen: np.random.Generator
) -> tuple[int, int]:
    """Return how many campaigns name an attempt `faster`, and how many with a star."""
    crowned = starred = 0
    for _ in range(campaigns):
        board = campaign(*sources[int(chosen.integers(len(sources)))], scenario, chosen)
        crowned += is_crowned(board)
        starred += any(entry.holds for entry in board.entries if entry.verdict is Verdict.faster)
    return crowned, starred


def corpus_series(directory: Path) -> Iterator[tuple[Series, int]]:
    """Yield the step times of each log with enough steps, and the length of a simulated run."""
    for run in read_runs([directory]):
        times_s = np.fromiter((run.step_times_s[step] for step in sorted(run.step_times_s)), float)
        if len(times_s) >= FEWEST_STEPS:
            yield times_s, max(10, len(times_s) // 20)


def show(name: str, sources: Sequence[tuple[Series, int]], campaigns: int, seed: int) -> Iterator[Rate]:
    """Print a row for each scenario, and yield it."""
    print(f"\n{name}: {campaigns:,} campaigns a row, at least one attempt `faster` (95 % interval), starred")
    for scenario in SCENARIOS:
        crowned, starred = rates(sources, scenario, campaigns, np.random.default_rng(seed))
        low, high = binomtest(crowned, campaigns).proportion_ci(method="wilson")
        print(
            f"  {scenario.name:32} {scenario.attempts} x {scenario.pairs} pairs  {crowned / campaigns:6.1%} "
            f"({low:.1%} to {high:.1%})  {starred / campaigns:6.1%}",
            flush=True,
        )
        yield Rate(name, scenario.name, scenario.attempts, scenario.pairs, campaigns, crowned, starred)


def keep(path: Path, found: Sequence[Rate]) -> None:
    """Write rates as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Rate._fields, *found])


# --- real pairs ------------------------------------------------------------------------------------------------


def show_real(rows: Sequence[PairedRun]) -> None:
    """Print the verdicts on real pairs of equal runs: campaigns of each size, of pairs one after the other."""
    logs = [math.log(baseline / trial) for baseline, trial in times_of(rows)]
    loads = [row.other_load for row in rows if row.other_load is not None]
    print(
        f"\n{len(logs)} real pairs of equal runs: the ratio of a pair varies by {100 * statistics.stdev(logs):.1f} % "
        f"(standard deviation), mean {100 * statistics.fmean(logs):+.1f} %; other work took "
        f"{100 * min(loads):.0f} to {100 * max(loads):.0f} % of the machine"
    )
    for size in (3, 5):
        apart = boards_of(rows, size, step=size)
        overlapping = boards_of(rows, size, step=1)
        print(f"  campaigns of {size} pairs, {crowns(apart)}; of all {size} neighbours, {crowns(overlapping)}")
    for effect in (EFFECT, 1.1, 1.3, 2.0):
        found = sum(is_crowned(board) for board in boards_of(rows, 5, step=1, effect=effect))
        print(f"  truly {effect - 1:.0%} faster: named by {found} of {len(logs) - 4} campaigns of 5 neighbours")
    needed = pairs_needed([math.exp(log) for log in logs], EFFECT - 1)
    print(f"  pairs that a true {EFFECT - 1:.0%} takes at this noise: {needed}")


def times_of(rows: Sequence[PairedRun]) -> list[tuple[float, float]]:
    """Return the times of the baseline and of the trial of each pair."""
    by_pair: dict[int, dict[str, float]] = defaultdict(dict)
    for row in rows:
        by_pair[row.pair][row.role] = row.time_s
    return [(pair[BASELINE], pair["attempt"]) for pair in by_pair.values()]


def boards_of(rows: Sequence[PairedRun], size: int, step: int, effect: float = 1.0) -> list[Leaderboard]:
    """Return the verdicts on campaigns of so many pairs one after the other, the trial made faster by an effect."""
    pairs = [
        (a_result("again", BASELINE, number, baseline), a_result("again", "attempt", number, trial / effect))
        for number, (baseline, trial) in enumerate(times_of(rows), start=1)
    ]
    starts = range(0, len(pairs) - size + 1, step)
    return [judged(Path("campaign"), list(chain.from_iterable(pairs[start : start + size]))) for start in starts]


def is_crowned(board: Leaderboard) -> bool:
    """Return whether a campaign names an attempt `faster`."""
    return any(entry.verdict is Verdict.faster for entry in board.entries)


def crowns(boards: Sequence[Leaderboard]) -> str:
    """Return how many campaigns name an attempt `faster`, and with a star."""
    crowned = [board for board in boards if is_crowned(board)]
    starred = sum(entry.holds for board in crowned for entry in board.entries)
    low, high = binomtest(len(crowned), len(boards)).proportion_ci(method="wilson")
    return f"`faster` in {len(crowned)} of {len(boards)} ({low:.1%} to {high:.1%}), starred in {starred}"


def main() -> None:
    """Print the rates, or the verdicts on real pairs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--corpus", type=Path, help="a directory of logs, whose steps are drawn too")
    parser.add_argument("--pairs", type=int, default=0, help="train pairs on this CPU until the file has so many")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no pair after this time")
    parser.add_argument("--keep", type=Path, default=REAL, help="the file of the real pairs")
    parser.add_argument("--rates", type=Path, help="a CSV file for the rates")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.pairs:
        show_real(collect(options.keep, options.pairs, options.minutes))
        return
    sources = kept_sources()
    found = [*show(CPU, sources, options.campaigns, options.seed)]
    found += show("the same, the quietest part", [quietest(sources)], options.campaigns, options.seed)
    if options.corpus:
        sources = list(corpus_series(options.corpus))
        found += show(f"{LOGS} {len(sources)} logs", sources, options.campaigns, options.seed)
    if options.rates:
        keep(options.rates, found)
    show_real(kept_pairs(options.keep))


if __name__ == "__main__":
    main()
