"""The figure of the false-crown rates, from the CSV file that tests.benchmarks.false_crowns --rates keeps.

`python -m tests.benchmarks.false_crowns_figure` draws .github/false-crowns.csv as .github/false-crowns.png.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binomtest

from analysis.report.export.paper import STYLE
from tests.benchmarks.false_crowns import CPU, LOGS, Rate
from tests.support.paths import ROOT

DATA = ROOT / ".github" / "false-crowns.csv"
LIMIT, STARRED_LIMIT = 5.0, 1.0
# Percent; a rate beyond is an arrow with its value.
LARGEST = 12.0
POWER = "true 3 % faster"
SOURCES = {CPU: ("2-core CPU, busy at times", "#2563eb", -0.17), LOGS: ("steady GPUs (logs)", "#c2410c", 0.17)}


def rates(path: Path) -> list[Rate]:
    """Return the rates of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [Rate(row[0], row[1], *map(int, row[2:])) for row in rows]


def label(rate: Rate) -> str:
    """Return a scenario as text."""
    attempts = "1 attempt" if rate.attempts == 1 else f"{rate.attempts} attempts"
    drift = "" if rate.scenario in {"no drift", POWER} else f"\nstep times {rate.scenario.replace('%', ' %')}"
    return f"{attempts}, {rate.pairs} pairs{drift.replace(' in the campaign', '')}"


def panel(axes: Axes, found: Sequence[Rate], largest: float) -> None:
    """Draw one row per scenario: its rate with its 95 % interval (Wilson), filled, and the starred rate, open."""
    names = list(dict.fromkeys(map(label, found)))
    for rate in found:
        named, colour, offset = next(each for start, each in SOURCES.items() if rate.source.startswith(start))
        place = names.index(label(rate)) + offset
        # The larger, open marker first, so that both are seen where they are equal.
        for count, face, size in ((rate.starred, "white", 6), (rate.faster, colour, 3.5)):
            low, high = binomtest(count, rate.campaigns).proportion_ci(method="wilson")
            percent = 100 * count / rate.campaigns
            if percent > largest:
                text = f"{percent:.0f} % \u2192"
                axes.text(largest, place, text, color=colour, fontsize=7, ha="right", va="center")
                break
            axes.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=0.8)
            what = f"{named}: {'`faster`' if face == colour else 'with a star'}"
            seen = axes.get_legend_handles_labels()[1]
            axes.plot(percent, place, "o", color=colour, markerfacecolor=face, markersize=size,
                      label="_" if what in seen else what)  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(-0.02 * largest, largest)
    axes.xaxis.grid(visible=True)


def main() -> None:
    """Draw the file."""
    found = [rate for rate in rates(DATA) if rate.source.startswith(tuple(SOURCES))]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        panel(left, [rate for rate in found if rate.scenario != POWER], LARGEST)
        for limit, name in ((LIMIT, "limit"), (STARRED_LIMIT, "limit of stars")):
            left.axvline(limit, color="#6b7280", linewidth=0.8, linestyle="--")
            left.text(limit, -0.55, f"{name} {limit:.0f} %", fontsize=6, color="#6b7280", ha="center", va="bottom")
        left.set_xlabel("Campaigns of equal attempts that name a winner (%)")
        panel(right, [rate for rate in found if rate.scenario == POWER], 105.0)
        right.set_xlabel("Campaigns that find 3 % (%)")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        figure.savefig(DATA.with_suffix(".png"), dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    main()
