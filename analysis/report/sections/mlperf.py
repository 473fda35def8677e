"""The table of MLPerf Training's systems: score and time to train, with their parts."""

from __future__ import annotations

from analysis.formatting import ABSENT, plural, shown, shown_spread, significant
from analysis.intervals import Spread
from analysis.parsers import log_metrics as a
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.scaling.mlperf import System, evaluating

NOTE = (
    "One row per system: all results of it that reached the target or stopped before. Score: the fastest and the "
    "slowest result are dropped (four each of unet3d), an aborted one being the slowest; the mean of the others times "
    "the convergence factor of scaling.json, by default 1 (MLPerf training rules). Samples and evaluations: medians. "
    "Speedup: score of the first row of the same line divided by the row's, and below it that of the throughput."
)
HEADINGS = (
    "System",
    "Nodes",
    "Ranks",
    "GBS",
    "Results",
    "Score (min)",
    "Time to train (min)",
    "Samples to the target",
    "In evaluations (%)",
    "Speedup in score",
    "Speedup in throughput",
    "Remarks",
)


def mlperf_section(digest: Digest) -> Section | None:
    """Return a row for each system; None if there are none."""
    rows = [row(system, line[0]) for line in digest.systems for system in line]
    return Section("Time to train (MLPerf)", NOTE, HEADINGS, rows) if rows else None


def row(system: System, reference: System) -> list[str]:
    """Return the cells of a system."""
    first = system.results[0]
    times = [run.values[a.TIME_TO_TRAIN] / 60 for run in system.reached]
    size = first.plan.get("global_batch_size")
    return [
        system.described,
        f"{first.setting('nodes'):,}" if first.setting("nodes") else ABSENT,
        f"{system.ranks:,}" if system.ranks else ABSENT,
        f"{size:,}" if size else ABSENT,
        f"{len(system.results):,}",
        ABSENT if system.score_s is None else significant(system.score_s / 60, a.TIME_TO_TRAIN.digits),
        shown_spread(a.TIME_TO_TRAIN, Spread.of(times)) if times else ABSENT,
        shown(a.SAMPLES_DONE, system.median(a.SAMPLES_DONE)),
        evaluating(system),
        ratio(reference.score_s, system.score_s),
        ratio(system.median(a.SAMPLES_PER_S), reference.median(a.SAMPLES_PER_S)),
        remarks_on(system, reference),
    ]


def ratio(over: float | None, under: float | None) -> str:
    """Return the quotient of two numbers as text, or ABSENT if one is unknown."""
    return ABSENT if over is None or under is None else f"{over / under:.2f}"


def remarks_on(system: System, reference: System) -> str:
    """Return remarks on a row: results that do not count, no score, convergence factor, another global batch."""
    remarks: list[str] = []
    remarks += [f"{plural(count, 'result')} {state}" for state, count in sorted(system.missed.items())]
    if system.score_s is None:
        remarks.append(f"no score: {plural(len(system.reached), 'result')} reached the target")
    if system.convergence_factor != 1:
        remarks.append(f"convergence factor {system.convergence_factor:.4g}")
    sizes = [each.results[0].plan.get("global_batch_size") for each in (reference, system)]
    if sizes[0] != sizes[1]:
        remarks.append(f"global batch {sizes[1] or 'unknown'} against {sizes[0] or 'unknown'} of the reference")
    return "; ".join(remarks) or "—"
