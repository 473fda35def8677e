"""Rate of false crowns: campaigns of equal configurations, judged by the code that judges real ones.

Simulated campaigns take their step times from real ones: of runs one after the other on a busy CPU machine
(step_times.csv), or of logs (--corpus). The stationary bootstrap (Politis and Romano, JASA 89, 1994) keeps their
autocorrelation, within a run and from run to run. With --pairs, real pairs train on this CPU instead.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from analysis.compare.campaign import BASELINE, Leaderboard, Verdict, judged
from analysis.load.discover import read_runs
from analysis.run import RunResult
from jobs import metrics as m
from tests.support.real_run import make_run, steps, train

Series = NDArray[np.float64]
KEPT = Path(__file__).with_name("step_times.csv")
# A log with fewer steps says little about how its noise persists.
FEWEST_STEPS = 100
# Mean length of a block of the bootstrap, in runs.
BLOCK_RUNS = 3
# A campaign lies in one part of the time.
PARTS = 3
EFFECT = 1.03
UNMEASURED = 10
REAL = ("model.layers=6", "ranks_per_node=1", "job.steps=120", f"job.unmeasured_steps={UNMEASURED}")


@dataclass(frozen=True)
class Scenario:
    """The shape of a simulated campaign."""

    name: str
    attempts: int = 1
    pairs: int = 5
    drift: float = 0.0
    """Logarithm of the step time at the end over that at the beginning."""
    alternate: bool = True
    """Every second pair begins with the attempt, as jobs.campaign.trial orders them."""
    effect: float = 1.0
    """The true speedup of the attempts."""


SCENARIOS = (
    *(Scenario("no drift", attempts, pairs) for attempts in (1, 5) for pairs in (3, 5)),
    *(Scenario(f"{drift:+.0%} in the campaign", drift=float(np.log1p(drift))) for drift in (-0.2, 0.2, -0.5)),
    *(
        Scenario("the same, baseline first", drift=float(np.log1p(drift)), alternate=False)
        for drift in (-0.2, 0.2, -0.5)
    ),
    Scenario("true 3 % faster", effect=EFFECT),
    Scenario("true 3 % faster", attempts=5, effect=EFFECT),
)


# --- simulated campaigns ---------------------------------------------------------------------------------------


def kept_sources() -> list[tuple[Series, int]]:
    """Return the step times of consecutive runs, in parts of the time that are busy or quiet, and the steps of a run.

    The file has a row a run, in the order in which they ran.
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


def a_result(name: str, role: str, pair: int, time_s: float) -> RunResult:
    """Return a finished run of a campaign that took this time."""
    parts = (m.FIRST_STEP_TIME, m.WARMUP_TIME, m.CHECKPOINT_TOTAL_TIME)
    return RunResult(
        Path(f"campaign/{name}-{role}-{pair}"),
        config={"nodes": 1, "ranks_per_node": 1},
        provenance={"attempt": {"name": name, "role": role, "repeat": pair, "changes": []}},
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
        faster = [entry for entry in board.entries if entry.verdict is Verdict.faster]
        crowned += bool(faster)
        starred += any(entry.holds for entry in faster)
    return crowned, starred


def corpus_series(directory: Path) -> Iterator[tuple[Series, int]]:
    """Yield the step times of each log with enough steps, and the length of a simulated run."""
    for run in read_runs([directory]):
        times_s = np.fromiter((run.step_times_s[step] for step in sorted(run.step_times_s)), float)
        if len(times_s) >= FEWEST_STEPS:
            yield times_s, max(10, len(times_s) // 20)


def show(name: str, sources: Sequence[tuple[Series, int]], campaigns: int, seed: int) -> None:
    """Print a row for each scenario."""
    print(f"\n{name}: {campaigns:,} campaigns a row, at least one attempt `faster` (95 % interval), starred")
    for scenario in SCENARIOS:
        crowned, starred = rates(sources, scenario, campaigns, np.random.default_rng(seed))
        low, high = binomtest(crowned, campaigns).proportion_ci(method="wilson")
        print(
            f"  {scenario.name:32} {scenario.attempts} x {scenario.pairs} pairs  {crowned / campaigns:6.1%} "
            f"({low:.1%} to {high:.1%})  {starred / campaigns:6.1%}",
            flush=True,
        )


# --- real pairs ------------------------------------------------------------------------------------------------


def real_run(where: Path) -> list[float]:
    """Return the steady step times of a real run."""
    run = make_run(where, *REAL)
    assert train(run) == [0]
    return [row["step_time_s"] for row in steps(run)][UNMEASURED:]


def real_pairs(pairs: int, keep: Path | None) -> None:
    """Train real pairs of equal runs in alternating order, judge them by five, and print the verdicts."""
    rows, runs = [], []
    for pair in range(1, pairs + 1):
        for role in (BASELINE, "attempt") if pair % 2 else ("attempt", BASELINE):
            with tempfile.TemporaryDirectory() as where:
                rows.append(real_run(Path(where)))
            runs.append(a_result("again", role, pair, sum(rows[-1])))
    boards = [judged(Path("campaign"), runs[i : i + 10]) for i in range(0, len(runs) - 9, 10)] or [
        judged(Path("campaign"), runs)
    ]
    for entry in chain.from_iterable(board.entries for board in boards):
        interval = " to ".join(f"{value:.3f}" for value in entry.interval or ())
        print(f"{[round(ratio, 3) for ratio in entry.ratios]}: {entry.verdict.value}, interval {interval}")
    if keep is not None:
        write(keep, rows)


def write(path: Path, rows: Iterable[Sequence[float]]) -> None:
    """Write step times, one row a run."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([f"{value:.5f}" for value in row] for row in rows)


def main() -> None:
    """Print the rates, or the verdicts on real pairs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--corpus", type=Path, help="a directory of logs, whose steps are drawn too")
    parser.add_argument("--pairs", type=int, help="train this number of real pairs on this CPU instead")
    parser.add_argument("--keep", type=Path, help="write the step times of the real pairs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.pairs:
        real_pairs(options.pairs, options.keep)
        return
    sources = kept_sources()
    show("runs on a CPU, busy and quiet", sources, options.campaigns, options.seed)
    show("the same, the quietest part", [quietest(sources)], options.campaigns, options.seed)
    if options.corpus:
        sources = list(corpus_series(options.corpus))
        show(f"steps of {len(sources)} logs", sources, options.campaigns, options.seed)


if __name__ == "__main__":
    main()
