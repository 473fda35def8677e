"""The table of predicted memory beside the measured peak."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import ABSENT, significant
from analysis.report.figures.style import Section, word_of
from analysis.run import RunResult
from analysis.untrusted import as_number, lookup
from jobs import metrics as m

HEADING = "Predicted memory"
NOTE = (
    "predicted before the run (plan.json), with its interval of 90 %, and the peak of tensors that the rank with the "
    "most measured. A peak of a CPU is that of a process and not of tensors, so it is left out."
)


def memory_section(runs: Sequence[RunResult]) -> Section | None:
    """Return a row for each run with a prediction, those furthest from it first; None without any."""
    predicted = [run for run in runs if point(run) is not None]
    rows = [cells(run) for run in sorted(predicted, key=lambda run: (-abs(residual(run) or 0.0), run.name))]
    headings = ("Run", "Predicted (GB)", "Interval (GB)", "Measured (GB)", "Measured / predicted", "Prediction")
    return Section(HEADING, f"{word_of(predicted)}: {NOTE}", headings, rows) if rows else None


def point(run: RunResult) -> float | None:
    """Return the predicted bytes of tensors."""
    return as_number(lookup(run.plan, "memory.allocated_bytes.point")) or None


def measured(run: RunResult) -> float | None:
    """Return the measured peak of tensors on a GPU."""
    return run.values.get(m.MEMORY_PEAK) if run.started.get("device") == "cuda" else None


def residual(run: RunResult) -> float | None:
    """Return the relative error of the prediction; None if nothing was measured."""
    found, expected = measured(run), point(run)
    return found / expected - 1 if found and expected else None


def cells(run: RunResult) -> list[str]:
    """Return the row of a run."""
    low, high = (as_number(lookup(run.plan, f"memory.allocated_bytes.{end}")) for end in ("low", "high"))
    found, left = measured(run), residual(run)
    return [
        run.name,
        gigabytes(point(run)),
        f"{gigabytes(low)} to {gigabytes(high)}",
        gigabytes(found),
        ABSENT if left is None else significant(1 + left, 3),
        in_words(run, low, high),
    ]


def in_words(run: RunResult, low: float | None, high: float | None) -> str:
    """Return the basis of the prediction, and where the measured peak lies."""
    basis, found = str(lookup(run.plan, "memory.basis") or "unknown basis"), measured(run)
    if found is None or low is None or high is None:
        return basis
    return f"{'inside' if low <= found <= high else 'outside'} the interval; {basis}"


def gigabytes(size: float | None) -> str:
    """Return bytes in GB."""
    return ABSENT if size is None else significant(size / 1e9, 4)
