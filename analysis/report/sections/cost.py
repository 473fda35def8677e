"""The table of costs: one row per run, the most expensive first, and their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.formatting import listed, plural, shown, significant, title, unit, without_unit
from analysis.metrics.cost import currency_of, held_time_s, lacks_energy
from analysis.metrics.energy import LONGEST_GAP_S, Energy
from analysis.report.digest import Digest
from analysis.report.figures.style import Section
from analysis.run import DEVICES, RunResult, hardware
from jobs import metrics as m
from jobs.metrics import Metric

HEADING = "Cost"
# Columns that are left out if no run has a value.
OPTIONAL = (m.TOKENS_TRAINED, m.RANK_TIME_PER_TOKEN, m.RELATIVE_COST, m.SERVICE_UNITS, m.ENERGY, m.ENERGY_PER_TOKEN,
            m.PRICE, m.PRICE_PER_EPOCH, m.PRICE_PER_TOKEN)  # fmt: skip
SUMMED = (m.NODE_TIME, m.RANK_TIME, m.TOKENS_TRAINED, m.SERVICE_UNITS, m.ENERGY, m.PRICE)
MONEY = (m.PRICE, m.PRICE_PER_EPOCH, m.PRICE_PER_TOKEN, m.PRICE_PER_OUTPUT_TOKEN)
EXPLAINED = (m.NODE_TIME, m.RELATIVE_COST, m.SERVICE_UNITS, m.ENERGY, m.ENERGY_PER_TOKEN, *MONEY)
MOST_NAMED = 4


def cost_section(digest: Digest) -> Section | None:
    """Return a row for each used run with a known cost, and their sum."""
    known = [run for run in digest.used if m.RANK_TIME in run.values or m.ENERGY in run.values]
    if not known:
        return None

    def value(run: RunResult, metric: Metric) -> float | None:
        return digest.relative_costs.get(run.path) if metric is m.RELATIVE_COST else run.values.get(metric)

    metrics = [m.NODE_TIME, m.RANK_TIME]
    metrics += [each for each in OPTIONAL if any(value(run, each) is not None for run in known)]
    rows = [
        [run.name, *(shown(each, value(run, each)) for each in metrics), counted_in(run)]
        for run in sorted(known, key=lambda run: (-run.values.get(m.RANK_TIME, 0.0), run.name))
    ]
    total = [f"All {plural(len(known), 'run')}", *(shown(each, summed(each, known)) for each in metrics)]
    left_out = without(len(digest.used) - len(known), len(digest.runs) - len(digest.used))
    rows += [[*total, left_out]] if len(digest.runs) > 1 else []
    headings = ("Run", *(heading(each, known) for each in metrics), "Counted in")
    return Section(HEADING, note(known, metrics), headings, rows)


def heading(metric: Metric, runs: Sequence[RunResult]) -> str:
    """Return a metric's heading, with `GPU` or `CPU rank` for ranks if all runs agree, and prices with the currency."""
    devices = {DEVICES.get(str(run.started.get("device")), "") for run in runs}
    unit = "GPU" if devices == {"GPU"} else "CPU rank" if devices == {"CPU"} else "Rank"
    hours = {
        m.NODE_TIME: "Node-hours",
        m.RANK_TIME: f"{unit}-hours",
        m.RANK_TIME_PER_TOKEN: f"{unit}-hours per 1e9 tokens",
    }
    return hours.get(metric) or priced(metric, runs)


def priced(metric: Metric, runs: Sequence[RunResult]) -> str:
    """Return a metric's heading, for prices with their currencies: `Price (EUR)`, `Price (EUR per 1e6 tokens)`."""
    if metric not in MONEY:
        return title(metric)
    per = unit(metric)
    return f"{without_unit(metric)} ({' or '.join(currencies(metric, runs))}{f' {per}' if per else ''})"


def currencies(metric: Metric, runs: Sequence[RunResult]) -> list[str]:
    """Return the currencies of the runs that have a price."""
    return sorted({currency_of(run) for run in runs if metric in run.values})


def note(runs: Sequence[RunResult], metrics: Sequence[Metric]) -> str:
    """Return the note above the table, with the definitions of the columns in EXPLAINED."""
    defined = " ".join(f"{heading(each, runs)}: {each.definition}" for each in EXPLAINED if each in metrics)
    gaps = f" Gaps of more than {LONGEST_GAP_S:g} s between readings are not bridged." if m.ENERGY in metrics else ""
    return f"{hardware(runs)}: one row per run, the most expensive first, over all of its starts. {defined}{gaps}"


def summed(metric: Metric, runs: Sequence[RunResult]) -> float | None:
    """Return the sum of a cost over the runs, or the overall cost per token; None if a run lacks the value."""
    if metric is m.RANK_TIME_PER_TOKEN:
        spent_s, tokens = summed(m.RANK_TIME, runs), summed(m.TOKENS_TRAINED, runs)
        return spent_s / tokens if spent_s is not None and tokens else None
    if metric is m.PRICE and len(currencies(metric, runs)) > 1:
        return None
    values = [run.values[metric] for run in runs if metric in run.values]
    return math.fsum(values) if metric in SUMMED and len(values) == len(runs) else None


def counted_in(run: RunResult) -> str:
    """Return the basis of a row: starts, lost work, power readings."""
    lost_s = run.values.get(m.LOST_TIME)
    words = plural(run.attempts, "start") if run.log is None else "hours of initialization and time to train"
    if m.RANK_TIME not in run.values:
        words = f"no hours: {'time' if held_time_s(run) is None else 'number of nodes or ranks'} not known"
    if m.PRICE in run.values:
        words += f"; price in {currency_of(run)}" + (" without energy, which was not read" if lacks_energy(run) else "")
    words += f", with {shown(m.LOST_TIME, lost_s)} s of lost work" if lost_s else ""
    return words + (f"; {energy_words(run.energy)}" if run.energy else "")


def energy_words(energy: Energy) -> str:
    """Return the number of devices in the energy, and the missing readings and devices."""
    if energy.covered is None:
        words = "no power reading falls into its time"
    else:
        share = significant(100 * energy.covered, 3)
        words = f"power of {plural(len(energy.devices), 'device')} over {share} % of the time"
    if energy.expected is not None and energy.expected != len(energy.devices):
        were = "was" if energy.expected == 1 else "were"
        words += f", though {plural(energy.expected, 'device')} {were} expected"
    if energy.left_out:
        words += f"; left out, without a reading from that time: {listed(energy.left_out, MOST_NAMED)}"
    return words


def without(unknown: int, unused: int) -> str:
    """Return the runs that the sum leaves out, as text."""
    missing = [f"{plural(unknown, 'run')} without a time, nodes or ranks"] if unknown else []
    missing += [plural(unused, "unused run")] if unused else []
    return f"not included: {' and '.join(missing)}" if missing else "all runs found"
