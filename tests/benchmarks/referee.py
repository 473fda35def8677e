"""Attempts that run until a verdict, over simulated campaigns that the leaderboard's own code judges after every pair.

Rates of false crowns of equal configurations, and the pairs that verdicts take at true effects, beside campaigns of
three and five pairs. The noise of a run: normal, of a heavy tail (Student's t with 3 degrees of freedom), or normal
with a drift of the machine. The first attempt of a campaign is judged; campaigns of five attempts judge all of them.

A third table has attempts by proxy (analysis.compare.proxy): short runs whose ratio is biased, judged with the bias of
configurations that ran at both lengths, and as if they were long.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from analysis.compare.campaign import Entry, Verdict, judged
from analysis.run import RunResult
from jobs.rundir import BASELINE
from tests.benchmarks.false_crowns import a_result

EFFECT = 0.02
"""campaign.minimum_effect"""
MOST_PAIRS = 20
"""campaign.maximum_pairs"""
FIXED = (3, 5)
EFFECTS = (0.0, 0.02, 0.05, 0.10)
LEVELS = (0.01, 0.02, 0.05)
"""Standard deviations of the logarithm of the time of a run."""
DRIFT = 0.3
"""Rise of the logarithm of the time from the first to the last of MOST_PAIRS pairs."""
HEAVY = 3
PROXY_LEVEL = 0.01
"""Standard deviation of the logarithm of the time of a run, of campaigns with proxies."""
PROXIES = ((0.0, 0.0), (0.0, 0.02), (0.05, 0.01), (-0.05, 0.01), (0.05, 0.03))
"""Mean and standard deviation, over configurations, of the logarithm of the short ratio over the long one."""
CALIBRATED = (3, 5, 10)
"""Configurations that ran at both lengths, with FIXED[0] pairs at each."""
Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]


def normal(chosen: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return noise of unit variance."""
    return chosen.standard_normal(count)


def heavy(chosen: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return noise of a heavy tail and unit variance."""
    return chosen.standard_t(HEAVY, count) / math.sqrt(HEAVY / (HEAVY - 2))


SHAPES: dict[str, tuple[Noise, float]] = {
    "normal": (normal, 0.0),
    "heavy tail": (heavy, 0.0),
    "drift": (normal, DRIFT),
}


@dataclass(frozen=True)
class Ends:
    """The verdicts of simulated attempts, and the pairs that each took."""

    verdicts: Sequence[Verdict]
    pairs: Sequence[int]
    fixed: dict[int, Sequence[Verdict]]
    """Verdicts of the same attempts after so many pairs, as campaigns of a fixed number."""


def runs_of(
    name: str, times_s: Sequence[float], pairs: int, order: int | None, biases: Sequence[float] = ()
) -> list[RunResult]:
    """Return the runs of the first pairs of an attempt, in the turns of jobs.explore.campaign.trial.

    With `biases` they are short, and their attempt records these ratios of short over long pairs.
    """
    facts: dict[str, Any] = {} if order is None else {"until": {"order": order, "minimum_effect": EFFECT}}
    found = []
    if biases:
        # The campaign has a baseline of full length, too.
        found.append(a_result(BASELINE, BASELINE, 1, times_s[0]))
        facts["proxy"] = {"overrides": ["job.steps=50"], "biases": dict(enumerate(biases))}
    for pair in range(1, pairs + 1):
        roles = (BASELINE, "attempt") if pair % 2 else ("attempt", BASELINE)
        own = zip(roles, times_s[2 * pair - 2 : 2 * pair], strict=True)
        found += [a_result(name, role, pair, time_s, **facts) for role, time_s in own]
    return found


def times_of(effect: float, level: float, shape: str, chosen: np.random.Generator) -> list[float]:
    """Return the times of the runs of MOST_PAIRS pairs, in turns."""
    noise, drift = SHAPES[shape]
    count = 2 * MOST_PAIRS
    logs = level * noise(chosen, count) + drift * np.linspace(0, 1, count)
    tried = np.tile([0, 1, 1, 0], MOST_PAIRS)[:count]
    return list(np.exp(logs - tried * math.log1p(effect)))


def entry_after(runs: list[RunResult], name: str) -> Entry:
    """Return the leaderboard's judgement on an attempt."""
    return next(each for each in judged(Path("campaign"), runs).entries if each.trial.name == name)


def until_verdict(times_s: Sequence[float], order: int, biases: Sequence[float] = ()) -> tuple[Verdict, int]:
    """Return the verdict on an attempt, and the pairs after which it holds.

    The leaderboard judges all pairs at once: those after the verdict do not change it, which a test holds.
    """
    entry = entry_after(runs_of("tried", times_s, MOST_PAIRS, order, biases), "tried")
    terms = entry.trial.sequence
    assert terms is not None
    first = next((n for n in range(1, len(entry.looks)) if terms.verdict(entry.looks[:n]) is entry.verdict), None)
    decided = entry.verdict is not Verdict.undecided
    return entry.verdict, MOST_PAIRS if first is None or not decided else FIXED[0] + first - 1


def ends(effect: float, level: float, shape: str, campaigns: int, seed: int) -> Ends:
    """Return the ends of the first attempts of campaigns."""
    chosen = np.random.default_rng(seed)
    verdicts, pairs = [], []
    fixed: dict[int, list[Verdict]] = {count: [] for count in FIXED}
    for _ in range(campaigns):
        times_s = times_of(effect, level, shape, chosen)
        verdict, count = until_verdict(times_s, 1)
        verdicts.append(verdict)
        pairs.append(count)
        for count, found in fixed.items():
            found.append(entry_after(runs_of("tried", times_s, count, None), "tried").verdict)
    return Ends(verdicts, pairs, dict(fixed))


def by_proxy(
    effect: float, proxy: tuple[float, float], known: int | None, campaigns: int, seed: int, *, of_best: bool = False
) -> list[Verdict]:
    """Return the verdicts of attempts by short runs whose bias is known from some configurations.

    None: they are judged as if they were long. `of_best`: the best half of twice as many by their short pairs ran at
    full length, too.
    """
    chosen = np.random.default_rng(seed)
    found = []
    for _ in range(campaigns):
        count = (known or 0) * (2 if of_best else 1)
        # The mean of FIXED[0] pairs at either length, each of two runs.
        noise = PROXY_LEVEL * math.sqrt(2 / FIXED[0])
        short, full = (noise * chosen.standard_normal(count) for _ in range(2))
        short += chosen.normal(*proxy, count)
        kept = np.argsort(short)[count - (known or 0) :]
        biases = np.exp(short - full)[kept].tolist()
        own = effect_of(effect, chosen.normal(*proxy))
        found.append(until_verdict(times_of(own, PROXY_LEVEL, "normal", chosen), 1, biases)[0])
    return found


def effect_of(effect: float, bias: float) -> float:
    """Return the effect that short runs show."""
    return math.expm1(math.log1p(effect) + bias)


def crowned_of_five(level: float, shape: str, campaigns: int, seed: int) -> int:
    """Return how many campaigns of five equal configurations, one after the other, name one of them faster."""
    chosen = np.random.default_rng(seed)
    # A verdict does not depend on the other attempts.
    return sum(
        any(until_verdict(times_of(0.0, level, shape, chosen), order)[0] is Verdict.faster for order in range(1, 6))
        for _ in range(campaigns)
    )


def rate(count: int, campaigns: int) -> str:
    """Return a rate with its 95 % interval (Wilson)."""
    low, high = binomtest(count, campaigns).proportion_ci(method="wilson")
    return f"{count / campaigns:.1%} ({low:.1%} to {high:.1%})"


def rows(campaigns: int, seed: int) -> Iterator[str]:
    """Yield the lines of the tables, as Markdown."""
    with ProcessPoolExecutor(2) as pool:
        seeds = itertools.count(seed)
        crowns = {
            (shape, level): (
                pool.submit(ends, 0.0, level, shape, campaigns, next(seeds)),
                pool.submit(crowned_of_five, level, shape, campaigns, next(seeds)),
            )
            for shape in SHAPES
            for level in LEVELS
        }
        powers = {
            (level, effect): pool.submit(ends, effect, level, "normal", campaigns, next(seeds))
            for level in LEVELS
            for effect in EFFECTS
        }
        yield f"{campaigns:,} campaigns a row; named faster, of equal configurations"
        yield "| noise of a run | 1 attempt | 5 attempts | fixed 3 pairs | fixed 5 pairs |"
        yield "| --- | ---: | ---: | ---: | ---: |"
        for (shape, level), (one, five) in crowns.items():
            single = one.result()
            counts = [faster(single.verdicts), five.result(), *map(faster, single.fixed.values())]
            yield f"| {shape}, {level:.0%} | {' | '.join(rate(each, campaigns) for each in counts)} |"
        yield ""
        yield (
            "| noise of a run | true effect | better | no difference | worse | undecided | pairs: mean, median, p90 |"
            f"{''.join(f' better by fixed {count} |' for count in FIXED)}"
        )
        yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        for (level, effect), future in powers.items():
            found = future.result()
            kinds = (Verdict.faster, Verdict.no_difference, Verdict.slower, Verdict.undecided)
            cells = [f"{found.verdicts.count(kind) / campaigns:.1%}" for kind in kinds]
            middle, most = (float(np.quantile(found.pairs, each)) for each in (0.5, 0.9))
            cells.append(f"{np.mean(found.pairs):.1f}, {middle:.0f}, {most:.0f}")
            cells += [f"{faster(own) / campaigns:.1%}" for own in found.fixed.values()]
            yield f"| {level:.0%} | {effect:.0%} | {' | '.join(cells)} |"
        yield ""
        yield from proxy_rows(campaigns, seeds, pool)


def proxy_rows(campaigns: int, seeds: Iterator[int], pool: Executor) -> Iterator[str]:
    """Yield the lines of the table of attempts by proxy, as Markdown."""
    ways: tuple[tuple[str, float, int | None, bool], ...] = (
        ("as if long", 0.0, None, False),
        *((f"bias of {known}", 0.0, known, False) for known in CALIBRATED),
        ("bias of the best 5 of 10", 0.0, 5, True),
        ("10 % better: found by bias of 5", 0.1, 5, False),
        ("of 10", 0.1, 10, False),
    )
    found = {
        proxy: [
            pool.submit(by_proxy, effect, proxy, known, campaigns, next(seeds), of_best=of_best)
            for _, effect, known, of_best in ways
        ]
        for proxy in PROXIES
    }
    yield "named faster: equal configurations, the last two columns a true effect"
    yield f"| bias of short pairs, its spread | {' | '.join(name for name, *_ in ways)} |"
    yield f"| --- |{' ---: |' * len(ways)}"
    for (middle, spread), futures in found.items():
        cells = " | ".join(rate(faster(each.result()), campaigns) for each in futures)
        yield f"| {middle:.0%}, {spread:.0%} | {cells} |"


def faster(verdicts: Sequence[Verdict]) -> int:
    """Return the number of attempts that were named faster."""
    return verdicts.count(Verdict.faster)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for line in rows(options.campaigns, options.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
