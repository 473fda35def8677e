"""The cost of a run: node and rank time, service units, energy, and each of them per token.

All starts count, lost work included; time in a queue does not. Definitions: jobs.metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from analysis.formatting import one_line
from analysis.metrics.energy import Energy
from analysis.parsers import log_metrics as a
from analysis.run import DEVICES, RunResult
from analysis.untrusted import as_number, count
from jobs import metrics as m
from jobs.metrics import Metric

# Parts of the wall time in which a run holds no node.
WAITING = (m.QUEUE_TIME, m.REQUEUE_TIME, m.UNSUBMITTED_TIME)
HOUR_S = 3600.0
JOULE_PER_KWH = 3.6e6


def held_time_s(run: RunResult) -> float | None:
    """Return the time that a run held its nodes, over all of its starts; None if a start recorded too little."""
    if m.RUN_TIME in run.values:
        return run.values[m.RUN_TIME] - math.fsum(run.values.get(part, 0.0) for part in WAITING)
    if a.TIME_TO_TRAIN in run.values:
        return run.values[a.TIME_TO_TRAIN] + run.values.get(a.INITIALIZATION_TIME, 0.0)
    return run.values.get(m.TOTAL_TIME) if run.attempts < 2 else None


def node_hours_so_far(run: RunResult) -> float:
    """Return the node-hours of a run, finished or not: until its last event if that is all that is known."""
    known = run.values.get(m.NODE_TIME)
    return (recorded_s(run) * (held_nodes(run) or 0) if known is None else known) / HOUR_S


def held_nodes(run: RunResult) -> int | None:
    """Return the nodes that the job of a run held, spares included; None if they are not known."""
    nodes = count(run.config, "nodes")
    return None if nodes is None else nodes + spare_nodes(run)


def spare_nodes(run: RunResult) -> int:
    """Return the spare nodes that the job of a run held."""
    launcher = run.config.get("launcher")
    return (count(launcher, "spare_nodes") or 0) if isinstance(launcher, Mapping) else 0


def recorded_s(run: RunResult) -> float:
    """Return the seconds from the first start of a run to its last event; 0 if it never started."""
    begun = [event for event in run.events if event["event"] == "started"]
    if not begun:
        return 0.0
    first, last = (datetime.fromisoformat(str(event["time"])) for event in (begun[0], run.events[-1]))
    return max(0.0, (last - first).total_seconds())


def cost_values(run: RunResult) -> dict[Metric, float]:
    """Return the known costs of a used run."""
    held_s, nodes, ranks = held_time_s(run), held_nodes(run), run.ranks
    tokens = run.values.get(m.TOKENS_TRAINED)
    values = energy_values(run.energy, tokens) if run.energy else {}
    if held_s is None or nodes is None or ranks is None:
        return values | price_values(run, values, tokens)
    paid = ranks * nodes / (nodes - spare_nodes(run)) if nodes > spare_nodes(run) else ranks
    values |= {m.NODE_TIME: nodes * held_s, m.RANK_TIME: paid * held_s}
    if tokens:
        values[m.RANK_TIME_PER_TOKEN] = values[m.RANK_TIME] / tokens
    rate = as_number(run.setting("cluster.service_units_per_node_hour"))
    if rate is not None and rate > 0:
        values[m.SERVICE_UNITS] = rate * values[m.NODE_TIME] / HOUR_S
    values |= price_values(run, values, tokens)
    epoch_s = run.values.get(m.EPOCH_TIME)
    if m.PRICE in values and epoch_s is not None and held_s:
        values[m.PRICE_PER_EPOCH] = values[m.PRICE] * epoch_s / held_s
    return values


def price_of(run: RunResult, key: str) -> float | None:
    """Return a price or factor of the cluster of a run; None if it is not set."""
    found = as_number(run.setting(f"cluster.{key}"))
    return found if found is not None and found > 0 else None


def gpu_second_price(run: RunResult) -> float | None:
    """Return the price of a rank for a second; None on CPUs and without one."""
    price = price_of(run, "price_per_gpu_hour")
    return price / HOUR_S if price and DEVICES.get(str(run.started.get("device"))) == "GPU" else None


def joule_price(run: RunResult) -> float | None:
    """Return the price of a joule that a device takes, with the share of the data centre; None without one."""
    price = price_of(run, "price_per_kwh")
    return price * (price_of(run, "pue") or 1.0) / JOULE_PER_KWH if price else None


def currency_of(run: RunResult) -> str:
    """Return the currency of the prices of a run."""
    return one_line(str(run.setting("cluster.currency") or ""))


def lacks_energy(run: RunResult) -> bool:
    """Return True if energy has a price and was not read completely."""
    return joule_price(run) is not None and not (run.energy and run.energy.complete)


def price_values(run: RunResult, costs: Mapping[Metric, float], tokens: float | None) -> dict[Metric, float]:
    """Return the money of a run in total and per token, from the parts that have a price; empty without one."""
    parts = []
    if (price := gpu_second_price(run)) is not None and m.RANK_TIME in costs:
        parts.append(price * costs[m.RANK_TIME])
    if (price := joule_price(run)) is not None and m.ENERGY in costs and not lacks_energy(run):
        parts.append(price * costs[m.ENERGY])
    if not parts:
        return {}
    total = math.fsum(parts)
    return {m.PRICE: total} | ({m.PRICE_PER_TOKEN: total / tokens} if tokens else {})


def energy_values(energy: Energy, tokens: float | None) -> dict[Metric, float]:
    """Return the known energy of a run; empty if no reading falls into its time."""
    if energy.covered is None:
        return {}
    values = {m.ENERGY: energy.energy_j, m.ENERGY_COVERED: energy.covered}
    if tokens and energy.complete:
        values[m.ENERGY_PER_TOKEN] = energy.energy_j / tokens
    return values
