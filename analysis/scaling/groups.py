"""Scaling: runs as points of lines, and the speed of a point relative to its reference.

Pure functions of RunResults; no files, no figures. A group holds the used runs whose configuration differs only
in ranks, repeat and bookkeeping; within it, runs on the same nodes and ranks are repeats of one point. The
reference is the point with the fewest ranks that was measured; nothing is extrapolated. Definitions of speed-up and
efficiency: jobs.metrics. Our runs declare strong or weak scaling; in other people's logs it is recognised by the
global batch, and a batch that changes otherwise makes it neither. A run of unknown ranks is in no group.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from analysis.formatting import plural
from analysis.identity import lines_of, place
from analysis.intervals import Spread
from analysis.parsers import log_metrics as a
from analysis.run import RunResult
from jobs import metrics as m
from jobs.metrics import Metric

# The setting of a section that stands for the others in it.
NAMING = {"name", "mode", "kind"}
STRONG, WEAK = "strong", "weak"
CHANGING, UNKNOWN = "changing batch", "unknown batch"
LOG_NAME = "the run in "
MICRO_BATCH = "job.micro_batch_size"
# As configured, and as analysis.identity names that of a line.
BATCHES = ("scaling.global_batch_size", "scaling.sequences_per_rank", "global_batch_size", "batch_per_rank")
# Keys, and beginnings of keys, that follow from a choice: where it changes, they are no choices of their own, and they
# name no lines.
FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    "model": ("job.init_from", "data.tokenizer"),
    "cluster": ("gpu.", "device"),
    "gpu": ("device",),
    "images.storage": ("images.path",),
    "engine.kernels": ("engine.liger_kernels",),
}
# Units of a line's speed, by preference: the first that all its runs have.
RATES = (m.TOKENS_PER_S, a.SAMPLES_PER_S, a.STEPS_PER_S)


@dataclass(frozen=True)
class Point:
    """The repeats of one group on the same nodes and ranks."""

    ranks: int
    nodes: int | None
    runs: tuple[RunResult, ...]
    doubted: tuple[RunResult, ...] = ()
    """Repeats whose loss is not believed: they do not enter the median, unless there are no others."""
    rate: Metric = m.TOKENS_PER_S
    """The metric of its speed, which all its runs have."""

    @property
    def doubtful(self) -> bool:
        """Return True if no repeat is believed: the point is drawn, but never named."""
        return self.runs == self.doubted

    @property
    def repeats(self) -> tuple[RunResult, ...]:
        """Every repeat once, whether its loss is believed or not."""
        return tuple(dict.fromkeys(self.runs + self.doubted))

    @property
    def place(self) -> str:
        """The point as text: `2 ranks on 1 node`."""
        return plural(self.ranks, "rank") + (f" on {plural(self.nodes, 'node')}" if self.nodes else "")

    def spread(self, metric: Metric) -> Spread | None:
        """Return a metric over the repeats that have it."""
        values = [run.values[metric] for run in self.runs if metric in run.values]
        return Spread.of(values) if values else None

    @cached_property
    def throughput(self) -> Spread:
        """Its rate, all ranks together."""
        return Spread.of([run.values[self.rate] for run in self.runs])

    @property
    def typical(self) -> RunResult:
        """The repeat with the median throughput (the lower one of two)."""
        middle = statistics.median_low(run.values[self.rate] for run in self.runs)
        return next(run for run in self.runs if run.values[self.rate] == middle)

    @property
    def throughput_per_rank(self) -> Spread:
        """Its rate, of one rank."""
        return self.throughput.over(self.ranks)

    @property
    def global_batch_size(self) -> int | None:
        """Sequences of a step; None if a run does not report it, or repeats differ."""
        sizes = {run.plan.get("global_batch_size") for run in self.runs}
        size = sizes.pop() if len(sizes) == 1 else None
        return size if isinstance(size, int) else None


@dataclass(frozen=True)
class Group:
    """Runs that form one line over ranks; points in order of ranks, then nodes."""

    label: str
    model: str
    engine: str
    parallelism: str | None
    mode: str
    points: tuple[Point, ...]

    @property
    def named(self) -> str:
        """The model in a sentence; a log that does not name its model is named by its file."""
        first = self.runs[0]
        return f"{LOG_NAME}{self.model}" if first.log and self.model == first.name else self.model

    @property
    def described(self) -> str:
        """The model and the label, which contains the model only where models differ."""
        own = f"{self.label} ".removeprefix(f"{self.model} ").strip()
        return f"{self.named} with {own}" if own else self.named

    @property
    def rate(self) -> Metric:
        """The metric of its speed."""
        return self.points[0].rate

    @property
    def runs(self) -> list[RunResult]:
        """The runs that its points rest on."""
        return [run for point in self.points for run in point.runs]

    @property
    def repeats(self) -> list[RunResult]:
        """Every run of its points, whether its loss is believed or not."""
        return [run for point in self.points for run in point.repeats]

    @property
    def unequal_work(self) -> str | None:
        """The reason that its points are not one experiment; None if their batches match its mode."""
        if len(self.points) == 1 or self.mode in {STRONG, WEAK}:
            return None
        if self.mode == UNKNOWN:
            return "the global batch is not known"
        sizes = ", ".join(f"{point.global_batch_size:,} on {plural(point.ranks, 'rank')}" for point in self.points)
        return f"the global batch changes: {sizes}"

    @property
    def stated_mode(self) -> str | None:
        """The scaling mode, if it was declared or follows from several points."""
        return self.mode if self.reference or self.runs[0].setting("scaling.mode") is not None else None

    @property
    def known_mode(self) -> str | None:
        """The stated mode, if it is strong or weak."""
        return self.stated_mode if self.mode in {STRONG, WEAK} else None

    @property
    def reference(self) -> Point | None:
        """The measured point with the fewest ranks; None when all points have the same number."""
        return self.points[0] if self.points[0].ranks != self.points[-1].ranks else None

    def speedup(self, point: Point) -> Spread | None:
        """Return SPEEDUP of a point's repeats; None for weak scaling and without a reference."""
        if self.mode == WEAK or self.reference is None:
            return None
        return point.throughput.over(self.reference.throughput.median)

    def efficiency(self, point: Point) -> Spread | None:
        """Return EFFICIENCY of a point's repeats; None if there is no reference."""
        return point.throughput_per_rank.over(self.reference.throughput_per_rank.median) if self.reference else None


def scaling_groups(runs: Iterable[RunResult], doubtful: Collection[Path] = ()) -> list[Group]:
    """Return the groups of the used runs, by label; `doubtful` are paths of runs whose loss is not believed."""
    measured = [run for run in runs if run.used and run.ranks is not None and rates(run)]
    lines = [(settings, own) for settings, members in lines_of(measured) for own in by_rate(members)]
    labels = distinct_labels([settings for settings, _ in lines])
    groups = [one_group(label, members, doubtful) for label, (_, members) in zip(labels, lines, strict=True)]
    return sorted(groups, key=lambda group: group.label)


def rates(run: RunResult) -> list[Metric]:
    """Return the units in which a run has a speed, by preference."""
    return [run.rate] if run.rate is not None else [rate for rate in RATES if rate in run.values]


def units_of(runs: Iterable[RunResult]) -> list[Metric]:
    """Return all units of speed that some runs have, by preference."""
    return list(dict.fromkeys([*RATES, *(run.rate for run in runs if run.rate is not None)]))


def preference(rate: Metric) -> int:
    """Return the place of a unit of speed among those of lines; declared ones come last."""
    return RATES.index(rate) if rate in RATES else len(RATES)


def by_rate(runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """Return the runs together if they have a unit of speed in common, else by the one that each prefers."""
    if any(all(rate in rates(run) for run in runs) for rate in units_of(runs)):
        return [list(runs)]
    return [own for rate in units_of(runs) if (own := [run for run in runs if rates(run)[0] is rate])]


def one_group(label: str, runs: list[RunResult], doubtful: Collection[Path]) -> Group:
    """Return the group of these runs, with its points in order."""
    repeats: dict[tuple[int, int], list[RunResult]] = defaultdict(list)
    for run in runs:
        repeats[place(run)].append(run)
    rate = next(each for each in units_of(runs) if all(each in rates(run) for run in runs))
    points = []
    for (ranks, nodes), members in sorted(repeats.items(), key=lambda item: item[0]):
        doubted = tuple(run for run in members if run.path in doubtful)
        believed = tuple(run for run in members if run.path not in doubtful)
        points.append(Point(ranks, nodes or None, believed or doubted, doubted, rate))
    first = runs[0]
    return Group(
        label=label,
        model=str(first.setting("model.name")),
        engine=str(first.setting("engine.kind")),
        parallelism=first.setting("parallelism.name"),
        mode=mode_of(first.setting("scaling.mode"), points),
        points=tuple(points),
    )


def mode_of(declared: str | None, points: Sequence[Point]) -> str:
    """Return the scaling mode: as declared, unless the global batches of the points contradict it."""
    sizes = [(point.ranks, point.global_batch_size) for point in points]
    known = [(ranks, size) for ranks, size in sizes if size is not None]
    if len(known) < len(sizes):
        return declared or UNKNOWN
    if declared and len(known) == 1:
        return declared
    if len({size for _, size in known}) == 1:
        return STRONG
    return WEAK if len({Fraction(size, ranks) for ranks, size in known}) == 1 else CHANGING


def distinct_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each group: parallelism, model and engine if these differ, then other differing settings.

    Engines are different code, so with two engines every label names its own.
    """
    naming = [key for key in ("model.name", "engine.kind") if len({str(each.get(key)) for each in settings}) > 1]
    namesakes: dict[str, list[int]] = defaultdict(list)
    for i, values in enumerate(settings):
        names = [str(name) for key in (*naming, "parallelism.name") if (name := values.get(key)) is not None]
        # A log without a layout is labelled by its model.
        namesakes[" ".join(names) or str(values.get("model.name"))].append(i)
    labels = [""] * len(settings)
    for label, members in namesakes.items():
        keys = labelling_keys([settings[i] for i in members])
        for i in members:
            labels[i] = " ".join([label, *in_words(settings[i], keys, [settings[each] for each in members])])
    return labels


def in_words(own: Mapping[str, Any], keys: Iterable[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the values of the keys that name lines, with the last word of the key unless it names its section."""
    known = [(key, own[key]) for key in keys if own.get(key) is not None]
    texts = [(key.split(".")[-1], printed(value, key, settings)) for key, value in known]
    return [text if last in NAMING else f"{last}={text}" for last, text in texts]


def printed(value: object, key: str, settings: Sequence[Mapping[str, Any]]) -> str:
    """Return a value of a key as text: entries of a list joined by `+`, a path as short as those of others allow."""
    if is_path(value):
        return shortened(value, [path for each in settings if is_path(path := each.get(key))])
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def shortened(path: str, paths: Sequence[str]) -> str:
    """Return a path without the directories that all of some paths begin or end with."""
    own, every = path.split("/"), [each.split("/") for each in paths]
    shortest = min(map(len, every))
    begin = next((i for i in range(shortest) if len({each[i] for each in every}) > 1), shortest - 1)
    end = next((i for i in range(shortest - begin) if len({each[-1 - i] for each in every}) > 1), 0)
    return "/".join(own[begin : len(own) - end]) or own[-1]


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ, without those that the name of their section implies."""
    known = sorted({key for each in settings for key in each})
    differing = [key for key in known if combinations(settings, key) > 1]
    names = {key.split(".")[0]: key for key in differing if key.split(".")[-1] in NAMING}
    return [
        key
        for key in differing
        if (name := names.get(key.split(".")[0], key)) == key or not implies(settings, name, key)
    ]


def combinations(settings: Sequence[Mapping[str, Any]], *keys: str) -> int:
    """Return the number of different values that some keys have together."""
    return len({str([each.get(key) for key in keys]) for each in settings})


def implies(settings: Sequence[Mapping[str, Any]], key: str, other: str) -> bool:
    """Return True if the value of one key decides that of another one."""
    return combinations(settings, key, other) == combinations(settings, key)


def labelling_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the differing keys that name lines: none of them is decided by another one that says more.

    A follower says less than its leader (FOLLOWERS), the precision less than the machine, which may have no other, a
    path less than anything else, and of two batches that decide each other the micro-batch less.
    """
    keys = differing_keys(settings)
    return [
        key
        for key in keys
        if not any(says_more(settings, other, key) and implies(settings, other, key) for other in keys)
    ]


def says_more(settings: Sequence[Mapping[str, Any]], key: str, other: str) -> bool:
    """Return True if a key names a line better than another one that it decides."""
    leaders = [leader for leader, beginnings in FOLLOWERS.items() if other.startswith(beginnings)]
    leaders += ["cluster", "gpu"] if other == "job.precision" else []
    if any(key in {leader, *(f"{leader}.{name}" for name in NAMING)} for leader in leaders):
        return True
    if key in BATCHES and other == MICRO_BATCH:
        return True
    if key == MICRO_BATCH and other in BATCHES:
        return not implies(settings, other, key)
    return [any(is_path(each.get(name)) for each in settings) for name in (key, other)] == [False, True]


def is_path(value: object) -> TypeGuard[str]:
    """Return True for an absolute path."""
    return isinstance(value, str) and value.startswith("/")


def by_task(groups: Sequence[Group]) -> dict[tuple[str, str, str, bool], list[Group]]:
    """Return the groups of each task, by model, data, sequence length, and whether the work grows with the ranks."""
    tasks: dict[tuple[str, str, str, bool], list[Group]] = defaultdict(list)
    for group in groups:
        data, length = (str(group.runs[0].setting(key)) for key in ("data.name", "job.sequence_length"))
        tasks[group.model, data, length, group.mode == WEAK].append(group)
    return dict(sorted(tasks.items()))
