"""The table of predicted memory and step time next to what was measured."""

from __future__ import annotations

from analysis.formatting import ABSENT, significant
from analysis.metrics.predictions import Compared, compared
from analysis.report.digest import Digest
from analysis.report.figures.style import Section, word_of

HEADING = "Predicted and measured"
NOTE = (
    "predicted before the run (plan.json), with its interval of 90 %. Memory is the peak of tensors that the rank with "
    "the most measured; that of a CPU is of a process, so it is left out. Step times are medians of the steady steps, "
    "on the GPU that the run was configured for. Those of servers are medians of the requests of one load."
)
HEADINGS = ("Run", "Quantity", "Predicted", "Interval", "Measured", "Measured / predicted", "Prediction")


def predictions_section(digest: Digest) -> Section | None:
    """Return a row for each prediction, by quantity and those furthest from it first; None if there are none."""
    found = [(run, each) for run in digest.used for each in compared(run)]
    if not found:
        return None
    found.sort(key=lambda pair: (pair[1].quantity, -abs(pair[1].residual or 0.0), pair[0].name))
    rows = [
        [
            run.name,
            f"{each.quantity} ({each.unit})",
            four_digits(each.point),
            f"{four_digits(each.low)} to {four_digits(each.high)}",
            four_digits(each.measured),
            ABSENT if each.residual is None else significant(1 + each.residual, 3),
            in_words(each),
        ]
        for run, each in found
    ]
    return Section(HEADING, f"{word_of(run for run, _ in found)}: {NOTE}", HEADINGS, rows)


def in_words(each: Compared) -> str:
    """Return the basis of the prediction, and where the measured number lies."""
    if each.inside is None:
        return each.basis
    return f"{'inside' if each.inside else 'outside'} the interval; {each.basis}"


def four_digits(value: float | None) -> str:
    """Return a number with four digits."""
    return ABSENT if value is None else significant(value, 4)
