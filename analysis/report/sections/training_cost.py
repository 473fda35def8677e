"""The cost of a training of a given number of tokens, at the measured or the fitted throughput of each line.

For a proposal for compute time: tokens in, hours and GPU-hours out, each with its interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from analysis.formatting import ABSENT, plural, shown, significant
from analysis.metrics.cost import currency_of, gpu_second_price, joule_price, lacks_energy
from analysis.report.digest import Digest, Training
from analysis.report.figures.style import Section, word
from analysis.report.sections.cost import heading
from analysis.run import RunResult
from analysis.scaling.groups import Group, Point
from analysis.scaling.laws import Fit, reason_for_none
from jobs import metrics as m
from jobs.errors import ReportError

HEADING = "Cost of a training"
SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
HOUR_S = 3600.0
# Of a normal distribution: 95 % lie within this number of standard errors.
STANDARD_ERRORS = 1.96
NOTE = (
    "tokens divided by the median throughput of a point; rank-hours are hours times ranks. Interval: the confidence "
    "interval of the median from 6 repeats on, else the smallest to the largest repeat. Steady steps only: add "
    "start-up, evaluations, checkpoints and restarts, and read the warnings about a line before you cite it."
)


def training_of(text: str) -> Training:
    """Return the training that `--cost-of` names: `100B`, or `100B@64,128` for these numbers of ranks too."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)(?:@([1-9]\d{0,8}(?:,[1-9]\d{0,8})*))?", text.strip())
    tokens = float(found[1]) * SIZES[found[2]] if found else 0.0
    if not found or tokens <= 0:
        raise ReportError(
            f"--cost-of {text}: pass a number of tokens, with K, M, B or T for 1e3 to 1e12 if you like, and numbers of "
            "ranks behind an @. For instance: --cost-of 100B or --cost-of 100B@64,128"
        )
    return Training(tokens, tuple(map(int, found[3].split(","))) if found[3] else ())


def training_cost_section(digest: Digest) -> Section | None:
    """Return a row for each believed point of lines in tokens/s, and each other number of ranks; else None."""
    training = digest.training
    lines = [group for group in digest.groups if group.rate is m.TOKENS_PER_S]
    rows = [row for group in lines for row in rows_of(group, training, digest.fits[group])]
    if not rows:
        return None
    hours = heading(m.RANK_TIME, [run for group in lines for run in group.runs])
    money = list(dict.fromkeys(currency_of(run) for group in lines for run in group.runs if has_price(run)))
    headings = ["Line", "Ranks", "n", "Hours", hours, f"{hours}, interval", "Node-hours", "By"]
    if money:
        headings.insert(-1, f"Price ({' or '.join(money)})")
    else:
        rows = [[*row[:-2], row[-1]] for row in rows]
    tokens = significant(training.tokens, 4)
    note = (
        f"{word(lines)}: {tokens} tokens ({tokens_words(training)}). {NOTE[0].upper()}{NOTE[1:]} Another number: "
        "slurmscale report DIR --cost-of 100B, with ranks that were not measured as 100B@64,128."
    )
    return Section(f"{HEADING} of {tokens_words(training)} tokens", note, headings, rows)


def tokens_words(training: Training) -> str:
    """Return the number of tokens as it is asked for: `100B`."""
    suffix = next((each for each, size in reversed(SIZES.items()) if training.tokens >= size), "")
    return f"{training.tokens / SIZES[suffix]:.4g}{suffix}"


def rows_of(group: Group, training: Training, fits: Sequence[Fit]) -> Iterator[list[str]]:
    """Yield the rows of a line: its believed points, then the ranks that are asked for and were not measured."""
    points = [point for point in group.points if not point.doubtful]
    for point in points:
        yield measured_row(group, point, training.tokens)
    for ranks in training.ranks:
        if points and ranks not in {point.ranks for point in points}:
            yield predicted_row(group, ranks, training.tokens, fits)


def measured_row(group: Group, point: Point, tokens: float) -> list[str]:
    """Return the row of a measured point."""
    rate = point.throughput
    hours = tokens / rate.median / HOUR_S
    low, high = rate.interval or (rate.low, rate.high)
    by = "confidence interval of the median" if rate.interval else "smallest to largest repeat"
    words = f"measured, {by}" if rate.n > 1 else "measured once, so there is no interval"
    efficiency, energy = group.efficiency(point), point.spread(m.ENERGY_PER_TOKEN)
    if any(map(lacks_energy, point.runs)):
        words += ", price without energy"
    return [
        group.label,
        f"{point.ranks:,}",
        f"{rate.n:,}",
        number(hours),
        number(hours * point.ranks),
        f"{number(tokens * point.ranks / high / HOUR_S)} to {number(tokens * point.ranks / low / HOUR_S)}"
        if rate.n > 1
        else ABSENT,
        number(hours * point.nodes) if point.nodes else ABSENT,
        price(point.runs, hours * point.ranks, tokens * energy.median if energy else None),
        words + (f", {shown(m.EFFICIENCY, efficiency.median)} % efficiency" if efficiency else ""),
    ]


def predicted_row(group: Group, ranks: int, tokens: float, fits: Sequence[Fit]) -> list[str]:
    """Return the row of a number of ranks that was not measured, by the law that fits the line best."""
    fit = next((fit for fit in fits if fit.holds), None)
    empty = [group.label, f"{ranks:,}", "0", *[ABSENT] * 5]
    if fit is None:
        why = reason_for_none(group) if not fits else "no law is near every point"
        return [*empty, f"not measured, and no law to predict it: {why}"]
    predicted = fit.throughput(ranks)
    rank_hours = tokens * ranks / predicted.value / HOUR_S
    share = STANDARD_ERRORS * (predicted.standard_error or 0.0) / predicted.value
    interval = ABSENT
    if 0 < share < 1:
        interval = f"{number(rank_hours / (1 + share))} to {number(rank_hours / (1 - share))}"
    where = "between" if fit.ranks[0] < ranks < fit.ranks[-1] else "outside"
    return [
        group.label,
        f"{ranks:,}",
        "0",
        number(rank_hours / ranks),
        number(rank_hours),
        interval,
        ABSENT,
        price(group.runs, rank_hours, None),
        f"predicted by {fit.law.name}'s law, {where} the measured {plural(len(fit.ranks), 'point')}; the interval is "
        "that of the fit, as if the law were true"
        + (", price without energy" if any(joule_price(run) for run in group.runs) else ""),
    ]


def has_price(run: RunResult) -> bool:
    """Return True if the time of a run, or its energy, has a price."""
    return gpu_second_price(run) is not None or joule_price(run) is not None


def price(runs: Iterable[RunResult], rank_hours: float, energy_j: float | None) -> str:
    """Return the money of these hours and this energy, if all of the runs have the same prices; else a dash."""
    prices = {(gpu_second_price(run), joule_price(run), currency_of(run)) for run in runs}
    if len(prices) > 1:
        return ABSENT
    ((of_second, of_joule, _),) = prices
    parts = [rank_hours * HOUR_S * of_second] if of_second is not None else []
    parts += [energy_j * of_joule] if of_joule is not None and energy_j is not None else []
    return number(sum(parts)) if parts else ABSENT


def number(value: float) -> str:
    """Return hours with four significant digits."""
    return significant(value, 4)
