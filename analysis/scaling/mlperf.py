"""MLPerf Training: the score of each system by the rules, and the scaling of time to train compared with throughput.

Time to train and throughput scale differently: a larger batch needs more samples, and evaluations do not get shorter.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.formatting import ABSENT, plural, shown
from analysis.identity import batch, lines_of, system
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from jobs.metrics import Metric

# The results that the score drops at either end, by mlperf_logging's result_summarizer.
DROPPED = {"unet3d": 4}
DROPPED_ELSE = 1
# A speedup in throughput above that in score by at most this share is not reported.
LAG_TOLERANCE = 0.05


@dataclass(frozen=True)
class System:
    """The results of one system at one benchmark."""

    results: Sequence[RunResult]

    @property
    def reached(self) -> list[RunResult]:
        """The results that reached the target."""
        return [run for run in self.results if run.used]

    @property
    def platform(self) -> str | None:
        """The submitter's name of the system; None if no result has it."""
        name = self.results[0].setting("system.name")
        return None if name is None else str(name)

    @property
    def benchmark(self) -> str:
        """The name of the benchmark."""
        return str(self.results[0].setting("model.name"))

    @property
    def described(self) -> str:
        """Benchmark, submitter and system: `bert, Nobody (box)`."""
        named = f" ({self.platform})" if self.platform else ""
        return f"{self.benchmark}, {self.results[0].setting('system.organization') or 'organization unknown'}{named}"

    @property
    def missed(self) -> Counter[str]:
        """The number of results that do not count, by their state."""
        return Counter(run.state for run in self.results if not run.used)

    @property
    def ranks(self) -> int:
        """World size; 0 if unknown."""
        return self.results[0].ranks or 0

    @property
    def convergence_factor(self) -> float:
        """The factor on the mean time."""
        return self.results[0].values.get(a.CONVERGENCE_FACTOR, 1.0)

    @property
    def score_s(self) -> float | None:
        """The score in seconds; None if no result is left, or more than the dropped ones do not count."""
        dropped, missed = DROPPED.get(self.benchmark, DROPPED_ELSE), self.missed.total()
        times_s = sorted(run.values[a.TIME_TO_TRAIN] for run in self.reached)
        # Those that missed the target are the slowest.
        counted_s = times_s[dropped : len(times_s) - (dropped - missed)]
        if missed > dropped or not counted_s:
            return None
        return statistics.fmean(counted_s) * self.convergence_factor

    def median(self, metric: Metric) -> float | None:
        """Return the median of a metric over the results that reached the target."""
        values = [run.values[metric] for run in self.reached if metric in run.values]
        return statistics.median(values) if values else None


def systems_of(runs: Iterable[RunResult]) -> list[list[System]]:
    """Return the systems with times to train, in lines that differ in size alone; the smallest first."""
    results = [run for run in runs if a.TIME_TO_TRAIN in run.values and run.state != "copy"]
    lines = []
    for _, members in lines_of(results):
        systems: dict[tuple[int, int, str, float], list[RunResult]] = defaultdict(list)
        for run in members:
            systems[size_of(run)].append(run)
        lines.append([System(systems[size]) for size in sorted(systems)])
    return lines


def size_of(run: RunResult) -> tuple[int, int, str, float]:
    """Return what the results of one system have in common within a line, the smallest system first.

    A convergence factor is that of one system and one batch.
    """
    size = batch(run)["global_batch_size"] or 0
    return run.ranks or 0, size, str(system(run)["system.name"]), run.values.get(a.CONVERGENCE_FACTOR, 1.0)


def scores_lag(lines: Iterable[Sequence[System]]) -> list[str]:
    """Return a sentence for each line whose time to train scales worse than its throughput."""
    return [text for line in lines if (text := lag(line[0], line[-1]))]


def lag(first: System, last: System) -> str | None:
    """Return the sentence that a larger system's score lags its throughput; None if it does not, or is unknown."""
    rates = first.median(a.SAMPLES_PER_S), last.median(a.SAMPLES_PER_S)
    if first.score_s is None or last.score_s is None or rates[0] is None or rates[1] is None:
        return None
    in_score, in_rate = first.score_s / last.score_s, rates[1] / rates[0]
    if in_rate <= in_score * (1 + LAG_TOLERANCE):
        return None
    counts = [system.median(a.SAMPLES_DONE) for system in (first, last)]
    shares = [evaluating(system) for system in (first, last)]
    known = [f"samples to the target: {' and '.join(shown(a.SAMPLES_DONE, each) for each in counts)}"]
    known = known if None not in counts else []
    known += [f"in evaluations: {' and '.join(shares)} % of the time"] if ABSENT not in shares else []
    details = "; ".join(known)
    return (
        f"{first.results[0].setting('model.name')} from {first.ranks:,} to {plural(last.ranks, 'rank')}: {in_rate:.2f} "
        f"times the throughput, but only {in_score:.2f} times the score in time to train."
        + (f" {details[0].upper()}{details[1:]}." if details else "")
    )


def evaluating(system: System) -> str:
    """Return evaluations' share of the time to train, in percent: the median over the results that report it."""
    shares = [
        run.values[a.EVALUATION_TOTAL_TIME] / run.values[a.TIME_TO_TRAIN]
        for run in system.reached
        if a.EVALUATION_TOTAL_TIME in run.values
    ]
    return f"{100 * statistics.median(shares):.1f}" if shares else ABSENT
