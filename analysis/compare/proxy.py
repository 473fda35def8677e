"""Proxies: attempts that are judged by runs shorter than the campaign's, and the bias of their ratio.

Start-up effects, warm caches and compilation weigh more in a short run, so the ratio of its pairs differs from that of
long ones. The bias of one configuration is b = ln(ratio of short pairs) - ln(ratio of long pairs). Configurations that
ran at both lengths before are a sample of b, and that of a further configuration lies with a probability of 1 - error
in

    mean(b) +- t(n - 1, 1 - error / 2) s(b) sqrt(1 + 1 / n)

(Student's t prediction interval; Hahn, J. Am. Stat. Assoc. 64, 1969), if biases are normal and configurations are
exchangeable. s(b) contains the noise of the pairs. Half of a verdict's error belongs to the bias and half to the pairs;
the logarithm of the long ratio is within the difference of both intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.formatting import plural
from analysis.intervals import FEWEST_FOR_MEAN, prediction_limit
from analysis.untrusted import as_list, as_number

Interval = tuple[float, float]


@dataclass(frozen=True)
class Bias:
    """Ratio of short pairs divided by that of long pairs, expected of a further configuration."""

    middle: float
    low: float
    high: float

    def removed(self, interval: Interval) -> Interval:
        """Return the interval of the long ratio, given that of the short one."""
        return interval[0] / self.high, interval[1] / self.low


@dataclass(frozen=True)
class Proxy:
    """The terms of an attempt that is judged by short runs, as recorded before its first run."""

    overrides: Sequence[str]
    """Overrides of both runs of a pair, which shorten them."""
    biases: Mapping[str, float] = field(default_factory=dict)
    """Ratio of short pairs divided by that of long ones, by the attempt of each configuration that had run at both."""

    @property
    def name(self) -> str:
        """Return the overrides as a text."""
        return " ".join(self.overrides)

    @property
    def is_known(self) -> bool:
        """Return True if enough configurations had run at both lengths, and do not agree to the last digit."""
        return len(self.biases) >= FEWEST_FOR_MEAN and len(set(self.biases.values())) > 1

    def bias(self, error: float) -> Bias | None:
        """Return the bias and its interval, which misses that of a further configuration with this probability."""
        if not self.is_known:
            return None
        middle, half = prediction_limit(list(self.biases.values()), error / 2)
        return Bias(middle, middle * math.exp(-half), middle * math.exp(half))

    @property
    def words(self) -> str:
        """Return how far the bias is known."""
        had = plural(len(self.biases), "configuration")
        text = f"{had} had run at both lengths before its first pair"
        return text if self.is_known else f"{text}, and {FEWEST_FOR_MEAN} that differ make the bias known"


def recorded(known: object) -> Proxy | None:
    """Return the proxy of a run's record; None for a run of full length."""
    if not isinstance(known, Mapping):
        return None
    biases = known.get("biases")
    numbers = {
        str(name): number
        for name, value in (biases.items() if isinstance(biases, Mapping) else ())
        if (number := as_number(value)) is not None and 0 < number < math.inf
    }
    return Proxy(tuple(map(str, as_list(known.get("overrides")))), numbers)
