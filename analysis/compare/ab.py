"""A against B: points of two sets of runs that differ only in what A and B differ in, and how fast B's are.

A setting has changed when no point of A has a value that a point of B has. Points are partners when all else is equal:
every other compared setting (analysis.scaling.groups), ranks, and the task, without which a throughput says nothing.
Pure functions of RunResults.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import bdtr

from analysis.intervals import welch_interval
from analysis.report.caveats import loss_disagreement, peers
from analysis.run import RunResult
from analysis.scaling.groups import Group, Point, compared, differing_keys
from analysis.untrusted import as_list, lookup
from jobs.metrics import Metric

# With fewer pairs no outcome of a two-sided sign test reaches 0.05.
FEWEST_SIGNS = 6
MOST_KEYS = 4


@dataclass(frozen=True)
class Arm:
    """A point of A or of B."""

    side: str
    """`A` or `B`."""
    group: Group
    point: Point

    @property
    def rate(self) -> Metric:
        """What its speed is counted in."""
        return self.group.rate

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """What is compared, and where it ran."""
        run = self.point.runs[0]
        placed = {key: run.setting(key) for key in ("nodes", "ranks_per_node")}
        return compared(run) | placed | {"ranks": self.point.ranks, "rate": self.rate.name}

    @property
    def described(self) -> str:
        """The point in words: `ddp, 2 ranks on 1 node`."""
        return f"{self.group.label}, {self.point.place}"

    @property
    def throughputs(self) -> list[float]:
        """Its rate, one value a repeat."""
        return [run.values[self.rate] for run in self.point.runs]

    @property
    def hosts(self) -> set[str] | None:
        """The hosts of all repeats; None where a run did not record them."""
        nodes = [as_list(run.started.get("nodes")) for run in self.point.runs]
        return {str(host) for each in nodes for host in each} if all(nodes) else None


@dataclass(frozen=True)
class Ratio:
    """How much faster B is than A; all values are B divided by A."""

    medians: float
    low: float
    """Slowest repeat of B over the fastest of A."""
    high: float
    """Fastest repeat of B over the slowest of A."""
    n: tuple[int, int]
    """Repeats of A and of B."""
    interval: tuple[float, float] | None
    """Of the ratio of geometric means, at CONFIDENCE; None with too few repeats, or where none varies."""

    @property
    def direction(self) -> int:
        """1 where B is faster beyond the interval, -1 where it is slower, 0 where the two cannot be told apart."""
        if self.interval is None:
            return 0
        return (self.interval[0] > 1) - (self.interval[1] < 1)


@dataclass(frozen=True)
class Pair:
    """Partners."""

    a: Arm
    b: Arm
    ratio: Ratio

    @property
    def doubtful(self) -> bool:
        """No repeat of one of them has a loss that is believed: listed, never counted."""
        return self.a.point.doubtful or self.b.point.doubtful

    @property
    def described(self) -> str:
        """Both points in words, what they share said once."""
        labels = dict.fromkeys((self.a.group.label, self.b.group.label))
        places = dict.fromkeys((self.a.point.place, self.b.point.place))
        return f"{' → '.join(labels)}, {' → '.join(places)}"

    @property
    def same_hosts(self) -> bool | None:
        """Whether both ran on the same hosts; None when that is not recorded."""
        return None if self.a.hosts is None or self.b.hosts is None else self.a.hosts == self.b.hosts

    @property
    def runs(self) -> list[RunResult]:
        """The repeats of both."""
        return [*self.a.point.runs, *self.b.point.runs]

    @property
    def losses_agree(self) -> bool | None:
        """Whether losses of the same step are equal within rounding; None where they need not be, or are unknown."""
        alike = {(peers(run), str(run.setting("job.precision"))) for run in self.runs}
        # Of logs nobody knows whether they must reach the same loss: neither the data nor its order is told.
        if len(alike) > 1 or any(run.log or not run.losses for run in self.runs):
            return None
        return not loss_disagreement(self.runs)


@dataclass(frozen=True)
class Comparison:
    """What A against B comes to."""

    pairs: Sequence[Pair]
    unpaired: Sequence[tuple[Arm, str]]
    """Points without a partner, each with the reason."""
    differences: Sequence[tuple[str, str, str]]
    """What differs, its values in A and its values in B."""

    @property
    def believed(self) -> list[Pair]:
        """The pairs that the answer rests on."""
        return [pair for pair in self.pairs if not pair.doubtful]

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios of the believed pairs, of which there must be one."""
        return statistics.geometric_mean([pair.ratio.medians for pair in self.believed])

    @property
    def sign_test(self) -> tuple[int, int, float] | None:
        """Pairs in which B is faster, pairs that differ at all, and the two-sided p of the sign test.

        None with fewer than FEWEST_SIGNS of them. Exact binomial test (Conover, Practical Nonparametric Statistics).
        """
        unequal = [pair.ratio.medians > 1 for pair in self.believed if pair.ratio.medians != 1]
        n, faster = len(unequal), sum(unequal)
        if n < FEWEST_SIGNS:
            return None
        return faster, n, min(1.0, 2 * float(bdtr(min(faster, n - faster), n, 0.5)))


def compare_groups(a: Sequence[Group], b: Sequence[Group]) -> Comparison:
    """Pair the points of A's groups with those of B's."""
    arms = {
        side: [Arm(side, group, point) for group in groups for point in group.points]
        for side, groups in (("A", a), ("B", b))
    }
    changed = changed_settings(arms["A"], arms["B"])
    partners: dict[str, dict[str, list[Arm]]] = defaultdict(lambda: {"A": [], "B": []})
    for arm in (*arms["A"], *arms["B"]):
        kept = {key: value for key, value in arm.settings.items() if key not in changed}
        partners[as_text(kept)][arm.side].append(arm)
    pairs, unpaired = [], []
    for found in partners.values():
        if len(found["A"]) == len(found["B"]) == 1:
            (of_a,), (of_b,) = found["A"], found["B"]
            pairs.append(Pair(of_a, of_b, ratio_of(of_a.throughputs, of_b.throughputs)))
        for side, other in (("A", "B"), ("B", "A")):
            if found[other] and len(found["A"]) + len(found["B"]) > 2:
                reason = (
                    f"ambiguous: {len(found['A'])} of A and {len(found['B'])} of B differ only in what was changed "
                    f"({listed_keys(changed)}); compare smaller sets"
                )
                unpaired += [(arm, reason) for arm in found[side]]
            elif not found[other]:
                unpaired += [(arm, without_partner(arm, arms[other], changed)) for arm in found[side]]
    return Comparison(pairs, unpaired, differences(arms["A"], arms["B"], changed))


def as_text(value: Any) -> str:
    """A value of a configuration as text that is equal where it is."""
    return json.dumps(value, sort_keys=True, default=str)


def is_task(key: str) -> bool:
    """Whether a setting says what is computed: between two of its values, throughputs do not compare."""
    return key.startswith("model.") or key in {"data.name", "job.sequence_length", "ranks", "rate"}


def changed_settings(a: Sequence[Arm], b: Sequence[Arm]) -> set[str]:
    """The settings of which A and B share no value; what is computed, and on how many ranks, is never among them."""
    settings = [[arm.settings for arm in arms] for arms in (a, b)]
    keys = {key for each in itertools.chain(*settings) for key in each if not is_task(key)}
    return {key for key in keys if not set.intersection(*({as_text(s.get(key)) for s in side} for side in settings))}


def without_partner(arm: Arm, others: Sequence[Arm], changed: set[str]) -> str:
    """Why a point has no partner: what its nearest relative on the other side has instead."""
    other = "B" if arm.side == "A" else "A"
    if not others:
        return f"{other} has no run that can be used"

    def distance(relative: Arm) -> int:
        keys = (arm.settings.keys() | relative.settings.keys()) - changed
        return sum(arm.settings.get(key) != relative.settings.get(key) for key in keys)

    nearest = min(others, key=distance)
    keys = [key for key in differing_keys([arm.settings, nearest.settings]) if key not in changed]
    named = [f"{key} {nearest.settings.get(key)}, not {arm.settings.get(key)}" for key in keys[:MOST_KEYS]]
    more = len(keys) - len(named)
    rest = f"; and {more} more" if more else ""
    return f"none in {other} is equal; the nearest, {nearest.described}, has {'; '.join(named)}{rest}"


def listed_keys(keys: Iterable[str]) -> str:
    """Some keys in one line, the rest counted."""
    ordered = sorted(keys)
    more = f" and {len(ordered) - MOST_KEYS} more" if len(ordered) > MOST_KEYS else ""
    return ", ".join(ordered[:MOST_KEYS]) + more if ordered else "nothing"


# --- numbers ---------------------------------------------------------------------------------------------------


def ratio_of(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The ratio of B's throughputs to A's, all of them positive."""
    return Ratio(
        medians=statistics.median(b) / statistics.median(a),
        low=min(b) / max(a),
        high=max(b) / min(a),
        n=(len(a), len(b)),
        interval=welch_interval(a, b),
    )


# --- what differs ----------------------------------------------------------------------------------------------


def differences(a: Sequence[Arm], b: Sequence[Arm], changed: set[str]) -> list[tuple[str, str, str]]:
    """The changed settings, then code, versions and hosts of which A and B have not the same values."""
    changes = [{key: arm.settings.get(key) for key in changed} for arm in (*a, *b)]
    rows = []
    for key in differing_keys(changes):
        in_a, in_b = (values_of([arm.settings.get(key) for arm in arms], absent="not set") for arms in (a, b))
        rows.append((key, in_a, in_b))
    runs = [[run for arm in arms for run in arm.point.runs] for arms in (a, b)]
    packages = sorted({str(name) for run in itertools.chain(*runs) for name in mapping(run, "versions")})
    facts: list[tuple[str, Callable[[RunResult], Any]]] = [
        ("Git commit", lambda run: lookup(run.provenance, "git.commit")),
        ("Code digest", lambda run: run.provenance.get("code_digest")),
        *((f"Version of {name}", version_of(name)) for name in packages),
        ("Torch of the ranks", lambda run: run.started.get("torch")),
        ("Nodes", lambda run: ", ".join(sorted(map(str, as_list(run.started.get("nodes"))))) or None),
        ("Data", lambda run: run.started.get("data")),
    ]
    for name, fact in facts:
        in_a, in_b = (values_of([fact(run) for run in side], absent="unknown") for side in runs)
        if in_a != in_b:
            rows.append((name, in_a, in_b))
    return rows


def mapping(run: RunResult, key: str) -> Mapping[str, Any]:
    """A mapping of a run's provenance; empty when it is something else."""
    value = run.provenance.get(key)
    return value if isinstance(value, Mapping) else {}


def version_of(package: str) -> Callable[[RunResult], Any]:
    """What gives the version of a package where a run was submitted."""
    return lambda run: mapping(run, "versions").get(package)


def values_of(values: Iterable[Any], absent: str) -> str:
    """Distinct values in one line, with a word for what is not there."""
    return ", ".join(sorted({absent if value is None else str(value) for value in values}))
