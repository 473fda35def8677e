"""A against B on the page: the first sentence, the differences, one row per pair, and a figure of the ratios.

analysis.compare.ab computes; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from analysis.compare.ab import FEWEST_SIGNS, Comparison, Pair
from analysis.compare.core import Ratio
from analysis.formatting import plot_text, plural, shown, shown_spread, title
from analysis.intervals import CONFIDENCE, FEWEST_FOR_MEAN, NORMALITY
from analysis.report.figures.style import Figure, Section, empty_plot
from analysis.run import RunResult, hardware
from analysis.untrusted import moment
from jobs import metrics as m

HEADING = "A against B"
PERCENT = f"{CONFIDENCE:.0%}".replace("%", " %")
TIMES = m.THROUGHPUT_RATIO
# More rows do not fit a figure.
MOST_DRAWN = 40
MOST_NAMED = 6
METHOD = (
    f"Ratio: {TIMES.definition} The {PERCENT} interval is Welch's t interval of the mean logarithms, that is, of the "
    f"ratio of geometric means. It requires {FEWEST_FOR_MEAN} repeats on each side; steps of one run do not count as "
    f"repeats. {NORMALITY} Each interval holds for its pair alone: among 20 pairs without a difference, one is "
    "expected to appear different."
)


# --- sentences -------------------------------------------------------------------------------------------------


def sentences(comparison: Comparison) -> list[str]:
    """Return the speed of B against A, then the differences between them; the hardware comes first."""
    pairs = comparison.believed
    prefix = hardware(run for pair in comparison.pairs for run in pair.runs) if comparison.pairs else "Not compared"
    if not comparison.pairs:
        text = "no point of A has a partner in B; the reasons are listed below."
    elif not pairs:
        text = "no ratio is reported, because in every pair the loss of A or of B is not believed."
    elif len(pairs) == 1:
        text = one_pair(pairs[0])
    else:
        text = many_pairs(comparison)
    left_out = len(comparison.pairs) - len(pairs)
    if pairs and left_out:
        text += f" Left out: {plural(left_out, 'pair')} with a loss that is not believed."
    if disagreeing := sum(pair.losses_agree is False for pair in pairs):
        text += (
            f" But the losses of {plural(disagreeing, 'pair')} disagree: find out which is right first, because a fast "
            "wrong run does not win."
        )
    return [f"{prefix}: {text}", what_differs(comparison)] if comparison.pairs else [f"{prefix}: {text}"]


def one_pair(pair: Pair) -> str:
    """Return the sentence of a single pair."""
    ratio = pair.ratio
    times = f"{shown(TIMES, ratio.middle)} times as fast as A"
    where = f"{pair.described}, {hosts_words(pair)}"
    n = f"n = {ratio.n[0]} and {ratio.n[1]}"
    if ratio.interval is None:
        needed = f": at least {FEWEST_FOR_MEAN} repeats on each side are required, such as repeat=1,2,3"
        return (
            f"B measured {times} ({n}, {why_no_interval(ratio)}{between_repeats(ratio)}; {where}). That does not "
            f"distinguish a difference from chance{needed if ratio.too_few else ''}."
        )
    proof = f"{n}, {PERCENT} interval {interval_words(ratio)}; {where}"
    if ratio.direction == 0:
        return f"A and B do not differ significantly: B measured {times} ({proof})."
    return f"B is {times} ({proof})."


def many_pairs(comparison: Comparison) -> str:
    """Return the sentence of several pairs: mean, range, number of pairs by verdict, sign test."""
    pairs = comparison.believed
    ratios = [pair.ratio.middle for pair in pairs]
    # Those with an interval first.
    verdicts = [verdict(pair) for pair in sorted(pairs, key=lambda pair: pair.ratio.interval is None)]
    counts = [f"{words} in {verdicts.count(words)}" for words in dict.fromkeys(verdicts)]
    settled = len({pair.ratio.direction for pair in pairs}) == 1 and pairs[0].ratio.direction != 0
    text = (
        f"B {'is' if settled else 'measured'} {shown(TIMES, comparison.mean)} times as fast as A (geometric mean of "
        f"{plural(len(pairs), 'pair')}, {shown(TIMES, min(ratios))} to {shown(TIMES, max(ratios))}; by {PERCENT} "
        f"intervals: {', '.join(counts)}; {plural(sum(pair.same_hosts is True for pair in pairs), 'pair')} on the same "
        "nodes)"
    )
    if comparison.sign_test is None:
        return f"{text}; fewer than {FEWEST_SIGNS} pairs differ, so there is no sign test."
    faster, n, p = comparison.sign_test
    chance = "" if p < 1 - CONFIDENCE else ", so over all pairs A and B do not differ significantly"
    return f"{text}; B was faster in {faster} of {plural(n, 'pair')} (two-sided sign test, p = {p:.2g}){chance}."


def what_differs(comparison: Comparison) -> str:
    """Return the differences in one sentence."""
    named = [f"{name} {in_a} → {in_b}" for name, in_a, in_b in comparison.differences[:MOST_NAMED]]
    more = len(comparison.differences) - len(named)
    if not named:
        return "No recorded setting, version, code or node differs between A and B: a difference in speed is noise."
    return f"Differences, A → B: {'; '.join(named)}{f'; and {more} more, listed below' if more else ''}."


def interval_words(ratio: Ratio) -> str:
    """Return the interval, which must exist, as text: `1.05 to 1.11`."""
    assert ratio.interval is not None
    return f"{shown(TIMES, ratio.interval[0])} to {shown(TIMES, ratio.interval[1])}"


def why_no_interval(ratio: Ratio) -> str:
    """Return that a ratio has no interval, with the reason unless there are too few repeats."""
    return "no interval" if ratio.too_few else "no interval because no repeat varies"


def between_repeats(ratio: Ratio) -> str:
    """Return the smallest and largest ratio of any repeat of B to any of A, if there are several."""
    if ratio.n == (1, 1):
        return ""
    return f", every repeat of B over every one of A {shown(TIMES, ratio.low)} to {shown(TIMES, ratio.high)}"


def hosts_words(pair: Pair) -> str:
    """Report whether a pair ran on the same nodes."""
    return {True: "same nodes", False: "other nodes", None: "nodes not recorded"}[pair.same_hosts]


def loss_words(pair: Pair) -> str:
    """Report whether the losses of a pair agree."""
    if pair.doubtful:
        return "loss not believed: not counted"
    return {True: "losses agree", False: "LOSSES DISAGREE", None: "losses not comparable"}[pair.losses_agree]


def order_of_time(a: Sequence[RunResult], b: Sequence[RunResult]) -> list[str]:
    """Warn if one side ran before the other: a drift of the machine would look like a difference."""
    of_a, of_b = ([at for run in side if (at := moment(run.started)) is not None] for side in (a, b))
    if not of_a or not of_b or (max(of_a) >= min(of_b) and max(of_b) >= min(of_a)):
        return []
    first, second = ("A", "B") if of_a < of_b else ("B", "A")
    return [
        f"Every run of {first} started before every run of {second}: a change of the machine in between would look "
        "like a difference between them. Run them in turns to rule that out."
    ]


# --- tables ----------------------------------------------------------------------------------------------------


def sections(comparison: Comparison) -> list[Section]:
    """Return the tables with rows: the pairs, the differences, and the points without a partner."""
    pairs = [
        [
            pair.described,
            f"{pair.ratio.n[0]} and {pair.ratio.n[1]}",
            *(shown_spread(side.rate, side.point.throughput) for side in (pair.a, pair.b)),
            shown(TIMES, pair.ratio.middle) + (f" ({interval_words(pair.ratio)})" if pair.ratio.interval else ""),
            f"{shown(TIMES, pair.ratio.low)} to {shown(TIMES, pair.ratio.high)}",
            f"{verdict(pair)}; {hosts_words(pair)}; {loss_words(pair)}",
        ]
        for pair in comparison.pairs
    ]
    # Partners have the same rate; pairs need not.
    rate = " or ".join(sorted({title(pair.a.rate) for pair in comparison.pairs}))
    headings = (
        "Pair",
        "n",
        f"{rate}, A",
        f"{rate}, B",
        f"B / A ({PERCENT} interval)",
        "Repeats of B / of A",
        "Verdict",
    )
    changes = [[name, f"{in_a} → {in_b}"] for name, in_a, in_b in comparison.differences]
    alone = [[f"{side.name}: {side.described}", f"{len(side.point.runs):,}", why] for side, why in comparison.unpaired]
    found = (
        Section(HEADING, METHOD, headings, pairs),
        Section(
            "Differences between A and B",
            "Settings of which A and B share no value, without those that another one implies; then versions, code, "
            "nodes and data that differ. Points are partners if all other settings are equal.",
            ("Difference", "A → B"),
            changes,
        ),
        Section("Points without a partner", "They are in no ratio.", ("Point", "n", "Reason"), alone),
    )
    return [section for section in found if section.rows]


def verdict(pair: Pair) -> str:
    """Return the verdict of a pair's interval."""
    if pair.ratio.interval is None:
        return why_no_interval(pair.ratio)
    return {1: "B faster", -1: "B slower", 0: "no significant difference"}[pair.ratio.direction]


# --- figure ----------------------------------------------------------------------------------------------------


def ratios_figure(comparison: Comparison) -> list[Figure]:
    """Return the figure of the ratios with their intervals, one marker per pair; none without a pair."""
    pairs = sorted(comparison.believed, key=lambda pair: -pair.ratio.middle)
    drawn = [*pairs[: MOST_DRAWN // 2], *pairs[MOST_DRAWN // 2 :][-MOST_DRAWN // 2 :]][::-1]
    if not drawn:
        return []
    plot = empty_plot()
    kinds = (
        ("with interval", "circle", "#0072B2", [pair for pair in drawn if pair.ratio.interval]),
        ("without interval: bar from smallest to largest", "circle-open", "#6b7280",
         [pair for pair in drawn if pair.ratio.interval is None]),
    )  # fmt: skip
    for name, symbol, colour, members in kinds:
        rows = [drawn.index(pair) for pair in members]
        if members:
            plot.add_traces([bars(colour, members, rows), markers(name, symbol, colour, members, rows)])
    ends = (-0.6, len(drawn) - 0.4)
    dashed = {"color": "#6b7280", "dash": "dash", "width": 1.5}
    plot.add_trace(go.Scatter(name="equally fast", x=[1, 1], y=ends, mode="lines", line=dashed, hoverinfo="skip"))
    named = [plot_text(pair.described) for pair in drawn]
    plot.update_yaxes(tickvals=list(range(len(drawn))), ticktext=named, showgrid=False, range=ends)
    plot.update_xaxes(title_text="Throughput of B / throughput of A", showgrid=True)
    plot.update_layout(height=150 + 30 * max(2, len(drawn)), showlegend=True)
    left_out = len(pairs) - len(drawn)
    caption = (
        f"{hardware(run for pair in drawn for run in pair.runs)}: {TIMES.definition} Marker: ratio of medians. Bar: "
        f"{PERCENT} interval (Welch) or, without an interval, from the slowest repeat of B over the fastest of A to "
        "the fastest of B over the slowest of A. Dashed line: equally fast. The axis does not start at 0."
        + (f" Left out: {plural(left_out, 'pair')} between the largest and the smallest ratios." if left_out else "")
    )
    return [Figure(TIMES.name, HEADING, caption, plot, wide=True)]


def bars(colour: str, pairs: Sequence[Pair], rows: Sequence[int]) -> go.Scatter:
    """Return the interval or range of each ratio, as a line on its row.

    Error bars of the markers would not do: a ratio of medians may lie outside the interval of geometric means.
    """
    x: list[float | None] = []
    for pair in pairs:
        x += [*(pair.ratio.interval or (pair.ratio.low, pair.ratio.high)), None]
    y = [row for row in rows for _ in range(3)]
    return go.Scatter(x=x, y=y, mode="lines", line={"color": colour, "width": 2.5}, showlegend=False, hoverinfo="skip")


def markers(name: str, symbol: str, colour: str, pairs: Sequence[Pair], rows: Sequence[int]) -> go.Scatter:
    """Return the markers of the ratios, each on its row."""
    return go.Scatter(
        name=name,
        x=[pair.ratio.middle for pair in pairs],
        y=list(rows),
        mode="markers",
        marker={"symbol": symbol, "size": 10, "color": colour},
        hoverinfo="text",
        hovertext=[
            f"{plot_text(pair.described)}<br>B / A: {shown(TIMES, pair.ratio.middle)}<br>{verdict(pair)}; "
            f"{hosts_words(pair)}; {loss_words(pair)}"
            for pair in pairs
        ],
    )
