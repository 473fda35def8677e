"""A against B: pair the points of two sets of runs that differ only in the changed settings, and compare their speed.

A setting counts as changed if no point of A has a value that a point of B has. Points are partners if all other
compared settings (analysis.scaling.groups), the ranks and the task are equal. Pure functions of RunResults.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest

from analysis.compare.core import Ratio, clauses, matched, unequal_keys
from analysis.compare.loss import losses_agree
from analysis.formatting import listed
from analysis.identity import batch, compared
from analysis.run import RunResult
from analysis.scaling.groups import Group, Point, differing_keys
from analysis.untrusted import as_list, lookup
from jobs.metrics import Metric

# With fewer pairs no outcome of a two-sided sign test reaches 0.05.
FEWEST_SIGNS = 6
MOST_KEYS = 4


@dataclass(frozen=True)
class Side:
    """A point of A or of B."""

    name: str
    """`A` or `B`."""
    group: Group
    point: Point

    @property
    def rate(self) -> Metric:
        """The metric of its speed."""
        return self.group.rate

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The compared settings, and the place where it ran."""
        run = self.point.runs[0]
        placed = {key: run.setting(key) for key in ("nodes", "ranks_per_node")}
        return (
            compared(run)
            | placed
            | (batch(run) if run.log else {})
            | {"ranks": self.point.ranks, "rate": self.rate.name}
        )

    @property
    def described(self) -> str:
        """The point as text: `ddp, 2 ranks on 1 node`."""
        return f"{self.group.label}, {self.point.place}"

    @property
    def throughputs(self) -> list[float]:
        """Its rate, one value per repeat."""
        return [run.values[self.rate] for run in self.point.runs]

    @property
    def hosts(self) -> set[str] | None:
        """The hosts of all repeats; None if a run did not record them."""
        nodes = [as_list(run.started.get("nodes")) for run in self.point.runs]
        return {str(host) for each in nodes for host in each} if all(nodes) else None


@dataclass(frozen=True)
class Pair:
    """Partners."""

    a: Side
    b: Side
    ratio: Ratio
    """Throughput of B divided by that of A."""

    @property
    def doubtful(self) -> bool:
        """Return True if one side has no repeat with a valid loss; the pair is then listed and not counted."""
        return self.a.point.doubtful or self.b.point.doubtful

    @property
    def described(self) -> str:
        """Both points in words, without repetition."""
        labels = dict.fromkeys((self.a.group.label, self.b.group.label))
        places = dict.fromkeys((self.a.point.place, self.b.point.place))
        return f"{' → '.join(labels)}, {' → '.join(places)}"

    @property
    def same_hosts(self) -> bool | None:
        """Return True if both ran on the same hosts; None if that is not recorded."""
        return None if self.a.hosts is None or self.b.hosts is None else self.a.hosts == self.b.hosts

    @property
    def runs(self) -> list[RunResult]:
        """The repeats of both."""
        return [*self.a.point.runs, *self.b.point.runs]

    @property
    def losses_agree(self) -> bool | None:
        """Return True if the losses agree at every step; None if they need not agree or are not recorded."""
        return losses_agree(self.runs)


@dataclass(frozen=True)
class Comparison:
    """The result of A against B."""

    pairs: Sequence[Pair]
    unpaired: Sequence[tuple[Side, str]]
    """Points without a partner, each with the reason."""
    differences: Sequence[tuple[str, str, str]]
    """Differences: name, values in A, values in B."""

    @property
    def believed(self) -> list[Pair]:
        """The pairs that are counted."""
        return [pair for pair in self.pairs if not pair.doubtful]

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios of the believed pairs, of which there must be one."""
        return statistics.geometric_mean([pair.ratio.middle for pair in self.believed])

    @property
    def sign_test(self) -> tuple[int, int, float] | None:
        """Pairs in which B is faster, pairs that differ at all, and the two-sided p of the exact sign test.

        None with fewer than FEWEST_SIGNS pairs that differ. Conover, Practical Nonparametric Statistics.
        """
        unequal = [pair.ratio.middle > 1 for pair in self.believed if pair.ratio.middle != 1]
        n, faster = len(unequal), sum(unequal)
        return None if n < FEWEST_SIGNS else (faster, n, float(binomtest(faster, n).pvalue))


def compare_groups(a: Sequence[Group], b: Sequence[Group]) -> Comparison:
    """Pair the points of A's groups with those of B's."""
    of_a, of_b = (
        [Side(name, group, point) for group in groups for point in group.points]
        for name, groups in (("A", a), ("B", b))
    )
    changed = changed_settings(of_a, of_b)

    def kept_settings(side: Side) -> str:
        return as_text({key: value for key, value in side.settings.items() if key not in changed})

    pairs, unpaired = [], []
    for found_a, found_b in matched(of_a, of_b, kept_settings).values():
        if unlike := unlike_scaling(found_a, found_b):
            unpaired += [(side, unlike) for side in (*found_a, *found_b)]
        elif len(found_a) == len(found_b) == 1:
            side_a, side_b = found_a[0], found_b[0]
            pairs.append(Pair(side_a, side_b, Ratio.of_sides(side_a.throughputs, side_b.throughputs)))
        elif found_a and found_b:
            reason = (
                f"ambiguous: {len(found_a)} of A and {len(found_b)} of B differ only in what was changed "
                f"({listed(sorted(changed), MOST_KEYS) or 'nothing'}); compare smaller sets"
            )
            unpaired += [(side, reason) for side in (*found_a, *found_b)]
        else:
            unpaired += [
                (side, without_partner(side, of_b if side.name == "A" else of_a, changed))
                for side in (*found_a, *found_b)
            ]
    return Comparison(pairs, unpaired, differences(of_a, of_b, changed))


def as_text(value: Any) -> str:
    """Return a value of a configuration as text, equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)


def is_task(key: str) -> bool:
    """Return whether a setting defines the task: throughputs of different tasks do not compare."""
    return key.startswith("model.") or key in {"data.name", "job.sequence_length", "ranks", "rate"}


def changed_settings(a: Sequence[Side], b: Sequence[Side]) -> set[str]:
    """Return the settings of which A and B share no value; task and number of ranks are never among them."""
    settings = [[side.settings for side in sides] for sides in (a, b)]
    keys = {key for each in itertools.chain(*settings) for key in each if not is_task(key)}
    return {key for key in keys if not set.intersection(*({as_text(s.get(key)) for s in side} for side in settings))}


def unlike_scaling(a: Sequence[Side], b: Sequence[Side]) -> str | None:
    """Return why members of A and B that are otherwise equal are not compared; None if their scaling modes agree."""
    modes = [{mode for side in sides if (mode := side.group.known_mode)} for sides in (a, b)]
    if not modes[0] or not modes[1] or modes[0] == modes[1]:
        return None
    in_a, in_b = (" and ".join(sorted(each)) for each in modes)
    return f"A has {in_a} scaling, B {in_b}: their work grows differently with the ranks, so speeds are not compared"


def without_partner(side: Side, others: Sequence[Side], changed: set[str]) -> str:
    """Return why a point has no partner: the differences from its nearest relative on the other side."""
    other = "B" if side.name == "A" else "A"
    if not others:
        return f"{other} has no run that can be used"
    nearest = min(others, key=lambda relative: len(unequal_keys(side.settings, relative.settings, changed)))
    keys = [key for key in differing_keys([side.settings, nearest.settings]) if key not in changed]
    named = [f"{key} {nearest.settings.get(key)}, not {side.settings.get(key)}" for key in keys]
    return f"none in {other} is equal; the nearest, {nearest.described}, has {clauses(named, MOST_KEYS)}"


# --- what differs ----------------------------------------------------------------------------------------------


def differences(a: Sequence[Side], b: Sequence[Side], changed: set[str]) -> list[tuple[str, str, str]]:
    """Return the changed settings, then code, versions and hosts whose values differ between A and B."""
    changes = [{key: side.settings.get(key) for key in changed} for side in (*a, *b)]
    rows = []
    for key in differing_keys(changes):
        in_a, in_b = (values_of([side.settings.get(key) for side in sides], absent="not set") for sides in (a, b))
        rows.append((key, in_a, in_b))
    runs = [[run for side in sides for run in side.point.runs] for sides in (a, b)]
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
    """Return a mapping of a run's provenance; an empty one if the value is not a mapping."""
    value = run.provenance.get(key)
    return value if isinstance(value, Mapping) else {}


def version_of(package: str) -> Callable[[RunResult], Any]:
    """Return a function that gives the version of a package where a run was submitted."""
    return lambda run: mapping(run, "versions").get(package)


def values_of(values: Iterable[Any], absent: str) -> str:
    """Return distinct values in one line, with `absent` for None."""
    return ", ".join(sorted({absent if value is None else str(value) for value in values}))
