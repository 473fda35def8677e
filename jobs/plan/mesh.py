"""Draw the rank grid: the ranks of each node, and the groups of each axis.

Plain ASCII, readable in log files and terminals of any encoding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from jobs.layout import Layout
from jobs.parallelism import AXES, AXIS_NAMES, DP_SHARD, PP, SHARD_GROUP_AXES, Axis

WIDTH = 120
# With more boxes than this, repeated ones are folded: 8 nodes of 8 ranks are about 20 lines.
MOST_BOXES = 8
RANK = "rank"
LABEL_WIDTH = max(map(len, (*AXIS_NAMES, RANK))) + 2


def draw(
    layout: Layout, held_layers: Sequence[Sequence[int]] | None = None, width: int = WIDTH, linked: int | None = None
) -> str:
    """Return the rank grid as text: boxes of nodes, at most `width` (80 or more) characters wide, and the groups below.

    `held_layers` are the layers of each pipeline rank, first to last; `linked` are the ranks of an NVLink domain. Boxes
    beyond MOST_BOXES are folded; the fold states whether they repeat the pattern above.
    """
    axes = used_axes(layout)
    if not axes:
        return "Mesh: 1 rank, nothing to draw."
    product = " x ".join(f"{axis.name} {layout.degree(axis)}" for axis in axes)
    lines = [f"Mesh: {layout.world_size} ranks = {product}, on {layout.nodes} node{'s' if layout.nodes > 1 else ''}"]
    if layout.nodes > 1:
        lines.append(f"Ranks are placed in blocks of {layout.ranks_per_node} per node (srun --distribution=block).")
    lines += ["", *drawing(layout, width), "", *group_lines(layout, linked or layout.ranks_per_node)]
    if held_layers is not None and layout.degree(PP) > 1:
        lines += ["", *pipeline_stage_lines(layout, held_layers)]
    return "\n".join(lines)


def used_axes(layout: Layout) -> list[Axis]:
    """Return the axes with a degree above 1, slowest first."""
    return [axis for axis in AXES if layout.degree(axis) > 1]


# --- boxes: the ranks of a node, or of a part that fits the width --------------------------------------------


def drawing(layout: Layout, width: int) -> list[str]:
    """Return all boxes side by side, in bands that fit the width, with the fold in its place."""
    boxes = boxes_of(layout, width)
    if len(boxes) <= MOST_BOXES:
        return bands(layout, boxes, width)
    # Without the last box, which may have fewer ranks, and which is always drawn.
    period = repetition(layout, boxes[:-1])
    # Two or more, since a single box shows no pattern.
    head = max(2, period or MOST_BOXES - 1)
    ranks, nodes = seat(layout, boxes[head][0], boxes[-2][-1])
    what = "the same pattern repeats" if period else "not drawn, the patterns differ"
    return [*bands(layout, boxes[:head], width), f"... {nodes}, {ranks}: {what} ...", *bands(layout, boxes[-1:], width)]


def boxes_of(layout: Layout, width: int) -> list[range]:
    """Return the ranks of every box: a whole node if it fits the width, else pieces of it."""
    size = layout.ranks_per_node
    # A rank takes its digits, a space, and at most half a bar, which is two wide and never between every two ranks.
    fits = (width - LABEL_WIDTH - 3) // (digits(layout) + 2)
    piece = size if size <= fits else max(8, fits - fits % 8)
    return [
        range(node * size + first, node * size + min(first + piece, size))
        for node in range(layout.nodes)
        for first in range(0, size, piece)
    ]


def repetition(layout: Layout, boxes: list[range]) -> int | None:
    """Return the period after which coordinates relative to a box's first rank repeat; None if above MOST_BOXES."""

    def pattern(box: range) -> tuple[tuple[int, ...], ...]:
        first = layout.coordinates(box[0])
        return tuple(tuple(b - a for a, b in zip(first, layout.coordinates(rank), strict=True)) for rank in box)

    patterns = [pattern(box) for box in boxes]
    return next((n for n in range(1, MOST_BOXES) if patterns[n:] == patterns[:-n]), None)


def bands(layout: Layout, boxes: list[range], width: int) -> list[str]:
    """Return the boxes side by side, about equally many per band."""
    drawn = [box_lines(layout, box) for box in boxes]
    widest = max(len(lines[0]) for lines in drawn)
    count = math.ceil(len(drawn) / max(1, (width - LABEL_WIDTH - 1) // widest))
    per_band = math.ceil(len(drawn) / count)
    labels = ["", *(axis.name for axis in used_axes(layout)), RANK, ""]
    ends = ["+", *"|" * (len(labels) - 2), "+"]
    lines = []
    for start in range(0, len(drawn), per_band):
        for label, *pieces, end in zip(labels, *drawn[start : start + per_band], ends, strict=True):
            lines.append(f"{label:<{LABEL_WIDTH}}{''.join(pieces)}{end}")
    return lines


def box_lines(layout: Layout, box: range) -> list[str]:
    """Return a box without its right edge: the node's name, a row for each axis in use, the ranks, a rule.

    A coordinate is printed where it changes and holds until the next bar; the last axis prints one for every rank.
    """
    columns = [[layout.place(rank, axis) for axis in used_axes(layout)] for rank in box]
    rows = []
    for depth in range(len(columns[0]) + 1):
        row = ""
        for i, rank in enumerate(box):
            previous = columns[i - 1] if i else None
            number = rank if depth == len(columns[0]) else columns[i][depth]
            every_rank = depth >= len(columns[0]) - 1
            starts = previous is None or previous[: depth + 1] != columns[i][: depth + 1]
            row += separator(previous, columns[i], depth)
            row += f"{number if every_rank or starts else '':>{digits(layout)}}"
        rows.append(row + " ")
    title = f"+- node {box[0] // layout.ranks_per_node} "
    width = max(len(title) + 1, len(rows[0]))
    return [f"{title:-<{width}}", *(f"{row:<{width}}" for row in rows), f"{'+':-<{width}}"]


def separator(previous: list[int] | None, column: list[int], depth: int) -> str:
    """Return the text before a rank: a bar where a group ends in this row, spaces where one ends in another row."""
    if previous is None:
        return "| "
    outer = len(column) - 1
    if previous[:outer] == column[:outer]:
        return " "
    return " | " if previous[: min(depth + 1, outer)] != column[: min(depth + 1, outer)] else "   "


def digits(layout: Layout) -> int:
    """Return the width of the largest rank in characters."""
    return len(str(layout.world_size - 1))


# --- groups and stages ---------------------------------------------------------------------------------------


def group_lines(layout: Layout, linked: int) -> list[str]:
    """Return a line for each axis in use: number and size of its groups, the first group, and hops between nodes."""
    cells = []
    for axis in used_axes(layout):
        groups = layout.groups(axis)
        cells.append((
            axis.name,
            f"{len(groups)} group{'s' if len(groups) > 1 else ''} of {len(groups[0])}",
            f"ranks {shortened(groups[0])} {action(layout, axis)}",
            crossing(layout, groups, linked),
        ))  # fmt: skip
    return aligned(cells)


def action(layout: Layout, axis: Axis) -> str:
    """Return what the ranks of a group do; FSDP's shard group also spans the other axes that see different tokens."""
    others = [other.name for other in SHARD_GROUP_AXES if other is not DP_SHARD and layout.degree(other) > 1]
    return axis.action + (f" with {' and '.join(others)}" if axis is DP_SHARD and others else "")


def crossing(layout: Layout, groups: list[list[int]], linked: int) -> str:
    """Return how many hops, from a rank of a group to the next, leave the node, and its NVLink domain."""
    hops = len(groups[0]) - 1
    of_nodes, of_domains = (crossed(groups, size) for size in (layout.ranks_per_node, linked))
    if of_nodes == "0":
        return "inside a node"
    domains = f", NVLink domains: {of_domains}" if linked > layout.ranks_per_node else ""
    return f"crosses nodes: {of_nodes} of {hops} hop{'s' if hops > 1 else ''}{domains}"


def crossed(groups: list[list[int]], size: int) -> str:
    """Return the hops of a group that leave a block of so many ranks, as text; a range where groups differ."""
    counts = {sum(a // size != b // size for a, b in itertools.pairwise(group)) for group in groups}
    return str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def pipeline_stage_lines(layout: Layout, held_layers: Sequence[Sequence[int]]) -> list[str]:
    """Return a line for each pipeline rank: its ranks, their nodes and its layers."""
    size = layout.world_size // layout.degree(PP)  # pp is the slowest axis: its places are blocks of ranks
    return aligned(
        (
            f"pp {place}",
            *seat(layout, place * size, (place + 1) * size - 1),
            "layers " + ", ".join(spans(layers)),
        )
        for place, layers in enumerate(held_layers)
    )


def seat(layout: Layout, first: int, last: int) -> tuple[str, str]:
    """Return consecutive ranks and their nodes as text."""
    size = layout.ranks_per_node
    return spoken("rank", first, last), spoken("node", first // size, last // size)


def shortened(group: list[int]) -> str:
    """Return a group of evenly spaced ranks as text, shortened if it is long."""
    return ", ".join(map(str, group)) if len(group) <= 4 else f"{group[0]}, {group[1]}, ..., {group[-1]}"


def spans(numbers: Iterable[int], to: str = "..") -> Iterator[str]:
    """Yield runs of consecutive numbers, in the order given: 0..3, 8..11."""
    for _, run in itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0]):
        members = [number for _, number in run]
        yield f"{members[0]}{to}{members[-1]}" if len(members) > 1 else str(members[0])


def spoken(noun: str, first: int, last: int) -> str:
    """Return a range as text: node 3, or nodes 3..5."""
    return f"{noun} {first}" if first == last else f"{noun}s {first}..{last}"


def aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return rows as lines, each column as wide as its widest cell."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
