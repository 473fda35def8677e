"""The table of fitted scaling laws: one row per law, with its extrapolation."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import ABSENT, per_second, plural, shown, significant, title
from analysis.report.digest import Digest
from analysis.report.figures.style import Section, word
from analysis.scaling.groups import Group
from analysis.scaling.laws import EXTRAPOLATED_TIMES, MOST_RESIDUAL, Estimate, Fit, reason_for_none
from jobs import metrics as m

HEADINGS = (
    "Line",
    "Law",
    "n",
    "Ranks",
    "Largest residual (%)",
    "AICc",
    "Extrapolated to ranks",
    "Extrapolated throughput",
    f"Extrapolated {title(m.EFFICIENCY).lower()}",
    "Law, with its parameters",
)
NOTE = (
    "R(p): throughput on p ranks. Fitted to the medians of a line's points by least squares of relative residuals, all "
    "weighted equally, no coefficient below 0; points with a loss that is not believed are left out. ±: one standard "
    "error of the fit, as if the law were true; it and AICc assume normally distributed residuals, which is not "
    "checked. n: points. Largest residual: fitted over measured throughput, less 1. "
    "AICc: Akaike's criterion for small samples, the variance counted as a parameter; smaller is better, within a line "
    "only. The first law of a line has the least AICc or, with too few points for it, the fewest parameters, then the "
    f"least residual. Extrapolated: prediction for {EXTRAPOLATED_TIMES} times the largest rank count, where nothing "
    "was measured. No law contains a slower network beyond it, or work that cannot be divided further: strong scaling "
    "is often worse. Efficiency is against the line's reference. Sources: Amdahl 1967; Gustafson 1988; an all-reduce "
    "takes 2 log2(p) latencies and sends 2 (p - 1)/p of the data (Thakur, Rabenseifner and Gropp 2005)."
)


def fits_section(digest: Digest) -> Section | None:
    """Return one row per law for every line with several rank counts; None if no line has a fit."""
    scaled = [group for group in digest.groups if group.reference]
    if not any(digest.fits[group] for group in scaled):
        return None
    rows = [row for group in scaled for row in rows_of(group, digest.fits[group])]
    left_out = len(digest.groups) - len(scaled)
    without = f" Left out: {plural(left_out, 'line')} of one rank count." if left_out else ""
    return Section("Fits", f"{word(scaled)}: {NOTE}{without}", HEADINGS, rows)


def rows_of(group: Group, fits: Sequence[Fit]) -> list[list[str]]:
    """Return the rows of a line: its fits, the best one first, or the reason that it has none."""
    if not fits:
        return [[group.label, *[ABSENT] * (len(HEADINGS) - 2), f"None: {reason_for_none(group)}."]]
    return [[group.label, *cells(group, fit)] for fit in fits]


def cells(group: Group, fit: Fit) -> list[str]:
    """Return the cells of a fit under HEADINGS, without its line."""
    words = f"{fit.law.formula},\n{parameters(group, fit)}"
    far = extrapolated(group, fit) if fit.holds else [ABSENT] * 3
    return [
        fit.law.name,
        f"{len(fit.ranks):,}",
        f"{fit.ranks[0]:,} to {fit.ranks[-1]:,}",
        significant(100 * fit.largest_residual, 2),
        ABSENT if fit.aicc is None else f"{fit.aicc:.1f}",
        *far,
        words if fit.holds else f"Does not fit, with a residual beyond {100 * MOST_RESIDUAL:.0f} %: {words}",
    ]


def extrapolated(group: Group, fit: Fit) -> list[str]:
    """Return ranks, throughput and efficiency beyond the measured points."""
    far = fit.throughput(fit.farthest)
    value = with_error(shown(group.rate, far.value), far.standard_error)
    return [
        f"{fit.farthest:,}",
        f"{value} {per_second(group.rate)}",
        shown(m.EFFICIENCY, efficiency(group, far.value / fit.farthest)),
    ]


def efficiency(group: Group, per_rank: float) -> float | None:
    """Return a throughput per rank over that of the line's reference; None if its loss is not believed."""
    reference = group.reference
    if reference is None or reference.doubtful:
        return None
    return per_rank / reference.throughput_per_rank.median


def parameters(group: Group, fit: Fit) -> str:
    """Return the parameters as text, each with its standard error unless it is at its bound."""
    one = fit.throughput(1)
    measured = "" if fit.ranks[0] == 1 else ", extrapolated"
    value = with_error(shown(group.rate, one.value), one.standard_error)
    words = [f"R(1) = {value} {per_second(group.rate)}{measured}"]
    return "; ".join(
        words + [f"{name} = {share_words(share)}" for name, share in zip(fit.law.shares, fit.shares, strict=True)]
    )


def share_words(share: Estimate) -> str:
    """Return a share of one rank's whole: `5.1 ± 0.08 %`."""
    percent = significant(100 * share.value, 3)
    if share.standard_error is None:
        return f"{percent} %, at its bound"
    return f"{with_error(percent, 100 * share.standard_error)} %"


def with_error(value: str, error: float | None) -> str:
    """Return a value with its standard error, if that is defined and not 0."""
    return value if not error else f"{value} ± {significant(error, 2)}"
