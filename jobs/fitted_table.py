"""A table that fits its terminal: names whole, numbers never cut; what many rows share is printed once, above them.

    whole -> equal columns above -> the common start of the names above -> a block per row

The first form that fits is printed. A file gets the whole table, as wide as it needs to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

GAP = 2
"""Blanks between two columns."""
LEAST_TEXT = 24
"""Columns of the terminal that a text needs, if it is not shorter."""
MOST_LINES = 4
"""Lines of a cell of text, beyond which blocks read better; half the terminal is wide enough for any text."""
LEAST_PREFIX = 4
INDENT = (0, 0, 0, 2)

FOLDED: dict[str, Any] = {"overflow": "fold", "no_wrap": False}
"""Of a text that is never cut, also where tables are printed among lines that the terminal folds."""

Row = tuple[RenderableType, ...]


class FittedTable(Table):
    """A table whose columns are names and numbers, printed whole, or texts, which may be folded or shortened."""

    def __init__(self, key: int = 0, *, one_line: bool = False) -> None:
        """Make a table without columns; the cells of column `key` are names, an empty one repeats the name above.

        With `one_line` each row stays on one line: a terminal that is too narrow shortens names.
        """
        super().__init__(box=None, header_style="bold", pad_edge=False)
        self.key = key
        self.one_line = one_line

    def whole(self, heading: str, *, justify: Literal["left", "right"] = "left") -> None:
        """Add a column of names or numbers."""
        self.add_column(heading, no_wrap=True, justify=justify, overflow="fold")

    def number(self, heading: str) -> None:
        """Add a column of numbers."""
        self.whole(heading, justify="right")

    def text(self, heading: str) -> None:
        """Add a column of texts."""
        self.add_column(heading, overflow="ellipsis" if self.one_line else "fold")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            # A line in a file is not folded, so that a search finds its words.
            options = options.update(width=max(options.max_width, self.whole_width(console, options)))
        if self.needed(console, options) <= options.max_width:
            yield from without_trailing_blanks(super().__rich_console__(console, options))
        elif self.one_line:
            yield self.on_one_line(console, options)
        elif not all(map(words, self.names)):
            yield from self.by_name()
        else:
            yield from self.with_equal_columns_above(console, options)

    def needed(self, console: Console, options: ConsoleOptions) -> int:
        """Return the columns of the terminal without which a name or number would be cut, or a text hard to read."""
        limit = options.max_width // 2

        def width(column: Column) -> int:
            cells = [column.header, *column.cells]
            widest = max(measured(console, options, cell) for cell in cells)
            if column.no_wrap:
                return widest
            return min(widest, LEAST_TEXT if self.one_line else min(limit, max(LEAST_TEXT, -(-widest // MOST_LINES))))

        return sum(map(width, self.columns)) + GAP * (len(self.columns) - 1)

    def whole_width(self, console: Console, options: ConsoleOptions) -> int:
        """Return the columns that the longest cells need on one line."""
        cells = ([column.header, *column.cells] for column in self.columns)
        widest = [max(measured(console, options, cell) for cell in each) for each in cells]
        return sum(widest) + GAP * (len(self.columns) - 1)

    @property
    def names(self) -> list[RenderableType]:
        """The cells of the key."""
        return list(self.columns[self.key].cells)

    def part(self, kept: Sequence[int], rows: Sequence[Row], key: int = 0) -> FittedTable:
        """Return a table of some columns and other rows."""
        made = FittedTable(kept.index(key) if key in kept else 0, one_line=self.one_line)
        for place in kept:
            column = self.columns[place]
            how: dict[str, Any] = {"no_wrap": column.no_wrap, "justify": column.justify, "overflow": column.overflow}
            made.add_column(column.header, **how)
        for row in rows:
            made.add_row(*(row[place] for place in kept))
        return made

    @property
    def cells(self) -> list[Row]:
        """The cells of each row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))

    def by_name(self) -> RenderResult:
        """Yield each name above a table of its rows."""
        kept = [place for place in range(len(self.columns)) if place != self.key]
        starts = [i for i, name in enumerate(self.names) if words(name) or i == 0]
        for start, end in zip(starts, [*starts[1:], self.row_count], strict=True):
            yield Text(words(self.names[start]), "bold", **FOLDED)
            yield Padding(self.part(kept, self.cells[start:end], key=kept[0]), INDENT)

    def with_equal_columns_above(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the equal columns, then a table of the others if it fits, else a block per row."""
        equal = [place for place, column in enumerate(self.columns) if place != self.key and is_equal(column)]
        shared = [item(self.columns[place], self.cells[0][place]) for place in equal]
        kept = [place for place in range(len(self.columns)) if place not in equal]
        rows = self.cells
        prefix = common_start([words(name) for name in self.names])
        for start in dict.fromkeys(["", prefix]):
            table = self.part(kept, [self.without(start, row) for row in rows], self.key)
            above = [Text(f"each name starts with {start}"), *shared] if start else shared
            if above and self.row_count > 1 and table.needed(console, options) <= options.max_width:
                yield from paragraph([Text("in all rows: ", "bold") + above[0], *above[1:]], options.max_width)
                yield table
                return
        if shared:
            yield from paragraph([Text("in all rows: ", "bold") + shared[0], *shared[1:]], options.max_width)
        for row in rows:
            yield from self.block(row, [place for place in kept if place != self.key], options.max_width)

    def block(self, row: Row, places: Sequence[int], width: int) -> RenderResult:
        """Yield the name of a row, and below it its other cells with their headings."""
        yield Text(words(row[self.key]), "bold", **FOLDED)
        texts = [place for place in places if not self.columns[place].no_wrap]
        numbers = [item(self.columns[each], row[each]) for each in places if each not in texts and words(row[each])]
        for line in paragraph(numbers, width - INDENT[-1]):
            yield Padding(line, INDENT)
        for place in texts:
            if words(row[place]):
                yield Padding(item(self.columns[place], row[place]), INDENT)

    def without(self, start: str, row: Row) -> Row:
        """Return a row whose name lacks its start."""
        name = row[self.key]
        rest = name[len(start) :] if isinstance(name, Text) else Text(words(name)[len(start) :])
        return (*row[: self.key], rest, *row[self.key + 1 :])

    def on_one_line(self, console: Console, options: ConsoleOptions) -> FittedTable:
        """Return the table without its texts, and with the middle of the names left out if that does not suffice."""
        places = [place for place, column in enumerate(self.columns) if column.no_wrap]
        table = self.part(places, self.cells, self.key)
        room = max(map(len, map(words, self.names))) - max(0, table.needed(console, options) - options.max_width)
        rows = [(*row[: self.key], shortened(row[self.key], room), *row[self.key + 1 :]) for row in self.cells]
        return self.part(places, rows, self.key)


def without_trailing_blanks(rendered: RenderResult) -> Iterator[Segment]:
    """Yield the lines of a table without the blanks that fill its last column: files and copied lines have none."""
    segments = (segment for segment in rendered if isinstance(segment, Segment))
    for line in Segment.split_lines(segments):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            last = line.pop()
            line.append(Segment(last.text.rstrip(), last.style))
        yield from [*line, Segment.line()]


def shortened(name: RenderableType, width: int) -> RenderableType:
    """Return a name of at most some columns: its start and its end, which tells runs of a sweep apart."""
    whole, kept = words(name), max(width - 1, 2)
    return name if len(whole) <= width else Text(f"{whole[: kept // 2]}…{whole[kept // 2 - kept :]}")


def words(cell: RenderableType) -> str:
    """Return the text of a cell; that of a drawing is empty."""
    return cell.plain if isinstance(cell, Text) else cell if isinstance(cell, str) else ""


def measured(console: Console, options: ConsoleOptions, cell: RenderableType) -> int:
    """Return the width of a cell on one line."""
    return Measurement.get(console, options.update(max_width=1_000_000), cell).maximum


def is_equal(column: Column) -> bool:
    """Return True for a column of names or numbers that has the same one in each of several rows."""
    cells = [words(cell) for cell in column.cells]
    return len(cells) > 1 and bool(column.no_wrap) and bool(cells[0]) and len(set(cells)) == 1


def common_start(names: Sequence[str]) -> str:
    """Return the common start of several names up to a separator, if it is worth a line of its own.

    Names with blanks are overrides, to be copied whole.
    """
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    start = "".join(letters[0] for letters in alike) if len(names) > 1 else ""
    start = start[: max((found.end() for found in re.finditer(r"[-_./,=]", start)), default=0)]
    return start if len(start) >= LEAST_PREFIX and not any(name == start or " " in name for name in names) else ""


def item(column: Column, cell: RenderableType) -> Text:
    """Return a cell with its heading, for a line of several."""
    heading = words(column.header)
    value = cell if isinstance(cell, Text) else Text(words(cell))
    return Text.assemble((f"{heading}: ", "bold") if heading else "", value, **FOLDED)


def paragraph(items: Sequence[Text], width: int) -> Iterator[Text]:
    """Yield lines of items, broken between items only, unless one is wider than the line."""
    line = Text(**FOLDED)
    for i, each in enumerate(items):
        more = each + Text("; " if i < len(items) - 1 else "")
        if line and line.cell_len + more.cell_len > width + 1:
            line.rstrip()
            yield line
            line = Text(**FOLDED)
        line += more
    if line:
        yield line
