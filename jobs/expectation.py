"""Pre-registration: an expected result, stored with `--expect` in the record of a run before it starts.

    tokens_per_s >= 1.10 x baseline
    memory_peak_bytes <= 60e9

Its grammar is a metric, `>=` or `<=`, a number in SI units, and of an attempt perhaps `x baseline`. The metric `speed`
is what a campaign compares. analysis.compare.expectations judges the outcome.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from jobs import metrics
from jobs.errors import ConfigError

SPEED = "speed"
BASELINE = "baseline"
FORM = "Write METRIC >= NUMBER or METRIC <= NUMBER, of an attempt also METRIC >= NUMBER x baseline"
GRAMMAR = re.compile(r"(?P<metric>\w+)\s*(?P<sign>>=|<=)\s*(?P<number>[0-9.eE+-]+)(?P<relative>\s*x\s*baseline)?")


@dataclass(frozen=True)
class Expectation:
    """An expected result."""

    text: str
    """As it was given, with single blanks."""
    metric: str
    at_least: bool
    """True for >=, False for <=."""
    number: float
    of_baseline: bool
    """The number is a multiple of the baseline's value."""


def parsed(text: str) -> Expectation:
    """Return the expectation of a text; raise ConfigError for another form."""
    given = " ".join(text.split())
    found = GRAMMAR.fullmatch(given)
    if found is None:
        raise ConfigError(f"--expect {given!r} cannot be read. {FORM}, such as '{SPEED} >= 1.10 x {BASELINE}'.")
    try:
        number = float(found["number"])
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"--expect {given!r}: {found['number']} is not a number above 0. {FORM}.")
    of_baseline = found["relative"] is not None
    if found["metric"] == SPEED and not of_baseline:
        raise ConfigError(
            f"--expect {given!r}: {SPEED} is only known relative to the baseline of a campaign. Write "
            f"'{SPEED} {found['sign']} {found['number']} x {BASELINE}', or name a metric such as tokens_per_s."
        )
    return Expectation(given, found["metric"], found["sign"] == ">=", number, of_baseline)


def checked(text: str, declared: Iterable[str] = (), *, in_campaign: bool) -> str:
    """Return the text of an expectation as it is stored.

    `declared` names the metrics of a program. Raise ConfigError for another form, an unknown metric, or a baseline
    where there is none.
    """
    found = parsed(text)
    if found.of_baseline and not in_campaign:
        raise ConfigError(
            f"--expect {found.text!r}: a run that is submitted alone has no {BASELINE}. Leave 'x {BASELINE}' out, or "
            "run it as an attempt of a campaign: slurmscale attempt NAME OVERRIDES"
        )
    known = [
        SPEED,
        *declared,
        *(metric.name for metric in vars(metrics).values() if isinstance(metric, metrics.Metric)),
    ]
    if found.metric not in known:
        near = difflib.get_close_matches(found.metric, known, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(
            f"--expect {found.text!r}: there is no metric {found.metric}.{hint} The columns of runs.csv are metrics, "
            "and so are those that a program declares."
        )
    return found.text
