"""Step-time variation on the page: a warning on slow steps and one on drifts, the worst runs first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from analysis.formatting import listed, per_second, plural, short, shown, significant
from analysis.metrics.step_variation import slow_steps
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from jobs import metrics as m

# A drift is reported if it is above this share of the median step time, with p below SURE.
REPORTED_DRIFT = 0.05
SURE = 0.001
MOST_NAMED_RUNS = 3
SUMMARY_TOLERANCE = 0.02
MOST_NAMED_STEPS = 5
LONGEST_NAME = 60


def steps_are_slow(runs: list[RunResult]) -> list[str]:
    """Warn of single steps far slower than the others of their run; the runs that lost most come first."""
    slow = [run for run in runs if run.values.get(m.SLOW_STEPS)]
    slow.sort(key=lambda run: (-run.values[m.SLOW_STEPS_SHARE], run.name))
    if not slow:
        return []
    return [
        f"Slow steps in {len(slow)} of {plural(len(runs), 'run')}: "
        f"{named(slow, slow_in_words)}. They count in throughput"
        f"{', but for those left out of the rate' if any(run.far_out_s for run in slow) else ''}; "
        f"{m.SLOW_STEPS.name} is defined below."
    ]


def steps_far_out(runs: list[RunResult]) -> list[str]:
    """Name the steps that are not in the rate of their log; the runs that lost most come first."""
    torn = sorted((run for run in runs if run.far_out_s), key=lambda run: (-abs(run.far_out_share), run.name))
    return [f"Far out: {named(torn, far_out_in_words)}."] if torn else []


def far_out_in_words(run: RunResult) -> str:
    """Return the steps that are not in the rate of a run, with their effect."""
    steps = [f"step {step:,} with {shown(m.STEP_TIME, time_s)} s" for step, time_s in run.far_out_s.items()]
    return (
        f"({listed(steps, MOST_NAMED_STEPS)} against a median of "
        f"{shown(m.STEP_TIME_MEDIAN, run.values[m.STEP_TIME_MEDIAN])} s) is not in its rate, which would be "
        f"{'-' if run.far_out_share > 0 else '+'}{significant(abs(100 * run.far_out_share), 2)} % with it"
    )


def summary_differs(runs: list[RunResult]) -> list[str]:
    """Name the logs whose own summary differs from the rate over their steady steps."""
    apart = []
    for run in runs:
        for rate in (m.TOKENS_PER_S, a.SAMPLES_PER_S, a.STEPS_PER_S):
            its_own = run.log.latest(rate) if run.log else None
            if its_own and rate in run.values and abs(run.values[rate] / its_own - 1) > SUMMARY_TOLERANCE:
                apart.append(
                    f"{short(run.name, LONGEST_NAME)} ({shown(rate, its_own)} against "
                    f"{shown(rate, run.values[rate])} {per_second(rate)})"
                )
    if not apart:
        return []
    return [
        f"The summary at the end of a log differs by more than {100 * SUMMARY_TOLERANCE:.0f} % from its steady steps: "
        f"{listed(apart, MOST_NAMED_RUNS)}. A summary may include warm-up, evaluations and checkpoints."
    ]


def slow_in_words(run: RunResult) -> str:
    """Return the slow steps of a run as text: number, steps, the worst of them, cost."""
    slow = slow_steps(run.step_times_s)
    worst = max(slow, key=lambda step: run.step_times_s[step])
    gaps = {later - earlier for earlier, later in pairwise(slow)}
    regular = f", one every {plural(gaps.pop(), 'step')}" if len(slow) > 2 and len(gaps) == 1 else ""
    return (
        f"{len(slow):,} of {run.steady_steps:,} ({'step' if len(slow) == 1 else 'steps'} "
        f"{listed([f'{step:,}' for step in slow], MOST_NAMED_STEPS)}{regular}), at worst step {worst:,} with "
        f"{shown(m.STEP_TIME, run.step_times_s[worst])} s against a median of "
        f"{shown(m.STEP_TIME_MEDIAN, run.values[m.STEP_TIME_MEDIAN])} s, which cost "
        f"{shown(m.SLOW_STEPS_SHARE, run.values[m.SLOW_STEPS_SHARE])} % of the steady time"
    )


def steps_drift(runs: list[RunResult]) -> list[str]:
    """Warn of step times that rose or fell over a run by more than REPORTED_DRIFT; the largest come first."""
    drifting = [
        run
        for run in runs
        if abs(run.values.get(m.STEP_TIME_DRIFT, 0.0)) > REPORTED_DRIFT
        and run.values.get(m.STEP_TIME_DRIFT_P, 1.0) < SURE
    ]
    drifting.sort(key=lambda run: (-abs(run.values[m.STEP_TIME_DRIFT]), run.name))
    if not drifting:
        return []
    return [
        f"The step time drifted over the steady steps, by more than {100 * REPORTED_DRIFT:.0f} % and with p < {SURE}, "
        f"in {len(drifting)} of {plural(len(runs), 'run')}: {named(drifting, drift_in_words)}. Throughput then "
        "depends on the length of the run."
    ]


def drift_in_words(run: RunResult) -> str:
    """Return direction, size and steps of a run's drift as text."""
    drift = run.values[m.STEP_TIME_DRIFT]
    starts = f" and {run.attempts} attempts" if run.attempts > 1 else ""
    metric, steps = run.step_rates or (None, run.step_times_s)
    how = f" (the inverse of its {metric.name}, without step times in its log)" if metric else ""
    return (
        f"{'rose' if drift > 0 else 'fell'} by {shown(m.STEP_TIME_DRIFT, abs(drift))} % of its median from "
        f"step {min(steps):,} to {max(steps):,}{starts}{how}"
    )


def named(runs: list[RunResult], words: Callable[[RunResult], str]) -> str:
    """Return the text of the first runs, and the number of the others."""
    more = f"; and {len(runs) - MOST_NAMED_RUNS:,} more, in runs.csv" if len(runs) > MOST_NAMED_RUNS else ""
    return "; ".join(f"{short(run.name, LONGEST_NAME)} {words(run)}" for run in runs[:MOST_NAMED_RUNS]) + more
