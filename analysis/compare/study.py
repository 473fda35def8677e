"""The table of a study: the quantities and keys that its experiment file names under `report`, over the runs.

A row and a column have the runs whose keys have its values; repeats are one cell. Runs of one cell that are no repeats
get rows of their own, named by the settings in which they differ.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis.compare.published import Published, figures_for, measured, obstacle
from analysis.formatting import ABSENT, significant, title, without_unit
from analysis.identity import compared, without_network
from analysis.intervals import Spread
from analysis.run import RunResult
from analysis.scaling.groups import differing_keys, in_words, labelling_keys
from analysis.untrusted import as_list, canonical
from jobs.metrics import DisplayUnit, Metric, registered
from jobs.settings.report import MIN_S, UNITS, base_units

OTHER = "Other settings"
NUMBER = re.compile(r"(\d+)")
# A value of so few letters says nothing without its key.
SHORT = 5
Names = tuple[str, ...]


@dataclass(frozen=True)
class Quantity:
    """A metric in the unit of the study."""

    metric: Metric
    unit: DisplayUnit
    heading: str

    def shown(self, value: float | None) -> str:
        """Return a value as text, without its unit; a dash if absent."""
        if value is None:
            return ABSENT
        if self.unit.name == MIN_S:
            return f"{round(value) // 60:,}:{round(value) % 60:02}"
        return significant(value / self.unit.size, self.metric.digits)


@dataclass(frozen=True)
class Cell:
    """The repeats of a row and column."""

    runs: tuple[RunResult, ...] = ()

    def spread(self, quantity: Quantity) -> Spread | None:
        """Return a quantity over the repeats that have it."""
        values = [value for run in self.runs if (value := measured(run, quantity.metric)) is not None]
        return Spread.of(values) if values else None

    def published(self, quantity: Quantity) -> list[Published]:
        """Return the published values of a quantity."""
        figures = figures_for(self.runs[0]) if self.runs else []
        return [figure for figure in figures if figure.metric is quantity.metric]

    def ratio(self, quantity: Quantity) -> float | None:
        """Return the median divided by the published value; None if these may not be compared."""
        spread, figures = self.spread(quantity), self.published(quantity)
        if spread is None or len(figures) != 1 or obstacle(self.runs[0], figures[0]) is not None:
            return None
        return spread.median / figures[0].value


@dataclass(frozen=True)
class Study:
    """The runs of a study as rows and columns."""

    table: Mapping[str, Any]
    """Its section `report`."""
    runs: tuple[RunResult, ...]

    @cached_property
    def quantities(self) -> list[Quantity]:
        """The quantities that some run has, in the units of the study."""
        found = []
        for name in map(str, as_list(self.table.get("quantity"))):
            if name not in base_units():
                continue
            metric = registered(name)
            if not any(measured(run, metric) is not None for run in self.runs):
                continue
            units = UNITS.get(metric.unit, {})
            unit = units.get(str(self.entry("units", name)), metric.display)
            words = self.entry("words", name) or without_unit(metric)
            bare = unit.name in {"1", "1/s"}
            found.append(Quantity(metric, unit, str(words) if bare else f"{words} ({unit.name})"))
        return found

    def entry(self, section: str, name: str) -> Any:
        """Return a value of a mapping of the section `report`; None if absent."""
        values = self.table.get(section)
        return values.get(name) if isinstance(values, Mapping) else None

    @property
    def caption(self) -> str:
        """The heading of the table."""
        return str(self.table.get("caption") or ", ".join(title(each.metric) for each in self.quantities))

    def headings(self, axis: str) -> list[str]:
        """Return the headings of the keys of `rows` or `columns`."""
        return [str(self.entry("words", key) or heading(key)) for key in self.keys(axis)]

    def keys(self, axis: str) -> list[str]:
        """Return the keys of `rows` or `columns`."""
        return list(map(str, as_list(self.table.get(axis))))

    def values(self, run: RunResult, axis: str) -> Names:
        """Return the values of the keys of an axis as text."""
        values = [run.setting(key) for key in self.keys(axis)]
        return tuple(
            "null" if value is None else f"{value:,}" if type(value) is int else str(value) for value in values
        )

    def names(self, run: RunResult, axis: str) -> Names:
        """Return the values of the keys of an axis, in the words of the study."""
        texts = self.values(run, axis)
        return tuple(str(self.entry("words", text) or (ABSENT if text == "null" else text)) for text in texts)

    def label(self, names: Names, axis: str) -> str:
        """Return the names of a row or column as text: `Llama 3.1 8B, RoCE Yes`.

        A key stands before its names if all of these are short. Names that all rows or columns have in common are left
        out.
        """
        headings = [*self.headings(axis), ""]
        every = self.rows if axis == "rows" else self.columns
        differing = {i for i in range(len(names)) if len({each[i] for each in every}) > 1}
        short = {i for i in range(len(names)) if all(len(each[i]) <= SHORT for each in every)}
        parts = [
            f"{heading} {name}" if i in short else name
            for i, (heading, name) in enumerate(zip(headings, names, strict=False))
            if i in differing or not differing
        ]
        return ", ".join(filter(str.strip, parts))

    @cached_property
    def cells(self) -> dict[tuple[Names, Names], Cell]:
        """The repeats of each row and column; the last name of a row has the settings that tell it from others."""
        found: dict[tuple[Names, Names], list[RunResult]] = defaultdict(list)
        for run in self.runs:
            found[self.names(run, "rows"), self.names(run, "columns")].append(run)
        several = [own for own in found.values() if len({canonical(identity(run)) for run in own}) > 1]
        settings = [identity(run) for own in several for run in own]
        # Not those by which only cells differ: these are the keys of the table, or follow from them.
        within = {key for own in several for key in differing_keys([identity(run) for run in own])}
        keys = [key for key in labelling_keys(settings) if key in within]
        cells: dict[tuple[Names, Names], list[RunResult]] = defaultdict(list)
        for (row, column), own in found.items():
            for run in own:
                other = " ".join(in_words(identity(run), keys, settings)) if own in several else ""
                cells[(*row, other) if keys else row, column].append(run)
        return {place: Cell(tuple(own)) for place, own in cells.items()}

    @property
    def has_other(self) -> bool:
        """Return True if rows end with further settings."""
        return any(len(row) > len(self.keys("rows")) for row, _ in self.cells)

    @cached_property
    def rows(self) -> list[Names]:
        """The names of the rows in order."""
        return self.in_order("rows", {row for row, _ in self.cells})

    @cached_property
    def columns(self) -> list[Names]:
        """The names of the columns in order."""
        return self.in_order("columns", {column for _, column in self.cells})

    def in_order(self, axis: str, names: Iterable[Names]) -> list[Names]:
        """Return names as their values stand among the study's words, the others after them with numbers by size."""
        words = self.table.get("words")
        listed = list(words) if isinstance(words, Mapping) else []
        places: list[dict[str, int]] = [{} for _ in self.keys(axis)]
        for run in self.runs:
            for place, value, name in zip(places, self.values(run, axis), self.names(run, axis), strict=True):
                place[name] = min(place.get(name, len(listed)), listed.index(value) if value in listed else len(listed))
        # Further settings of a row have no words.
        return sorted(
            names,
            key=lambda own: [
                (place.get(name, 0), natural(name)) for place, name in zip([*places, {}], own, strict=False)
            ],
        )

    def cell(self, row: Names, column: Names) -> Cell:
        """Return the repeats of a row and column."""
        return self.cells.get((row, column), Cell())


def identity(run: RunResult) -> dict[str, Any]:
    """Return what repeats have in common; a run on one node has no network."""
    settings = without_network(run) if run.setting("nodes") == 1 else compared(run)
    return settings | {"nodes": run.setting("nodes"), "ranks_per_node": run.setting("ranks_per_node")}


def heading(key: str) -> str:
    """Return a key as a heading: `Model` of model.name, `Micro batch size` of job.micro_batch_size."""
    section, _, last = key.rpartition(".")
    words = (section.rpartition(".")[2] if last in {"name", "kind"} else last).replace("_", " ")
    return words[:1].upper() + words[1:]


def natural(text: str) -> list[Any]:
    """Return a text so that numbers in it sort by size: `llama_8b` before `llama_70b`."""
    parts = NUMBER.split(text.replace(",", ""))
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts if part]


def studies(runs: Iterable[RunResult]) -> list[Study]:
    """Return the studies of runs that measured something, each table once."""
    found: dict[bytes, list[RunResult]] = defaultdict(list)
    for run in runs:
        if isinstance(run.setting("report"), Mapping):
            # Each filer may have a file of its own.
            table = {key: value for key, value in run.setting("report").items() if key != "side_files"}
            found[canonical(table)].append(run)
    every = [Study(own[0].setting("report"), tuple(own)) for own in found.values()]
    return [study for study in every if study.quantities and study.keys("rows")]
