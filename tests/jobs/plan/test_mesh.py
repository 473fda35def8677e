"""The drawing of the rank grid shows every rank on its node, at its coordinates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobs.cli import main
from jobs.layout import Layout
from jobs.parallelism import AXIS_NAMES
from jobs.plan.mesh import draw, spans

FOLD = re.compile(r"\.\.\. nodes? (\d+)(?:\.\.(\d+))?, ranks? (\d+)(?:\.\.(\d+))?: (.+) \.\.\.")


def grid(nodes: int, ranks_per_node: int, **degrees: int) -> Layout:
    ones = dict.fromkeys(AXIS_NAMES, 1)
    return Layout.by_name(nodes, ranks_per_node, ones | degrees)


@st.composite
def grids(draw_: st.DrawFn, most: int = 512) -> Layout:
    degrees = {axis: draw_(st.sampled_from([1, 2, 3, 4, 8])) for axis in AXIS_NAMES}
    world = math.prod(degrees.values())
    assume(world <= most)
    return grid(
        nodes := draw_(st.sampled_from([n for n in range(1, world + 1) if world % n == 0])), world // nodes, **degrees
    )


def ranks_read(drawing: str) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Yield rank, node and coordinates as a reader finds them: above each rank, the last number that began."""
    bands: list[list[str]] = []
    for line in drawing.splitlines():
        if "+- node" in line:
            bands.append([])
        if (bands and "|" in line) or "+- node" in line:
            bands[-1].append(line)
    for title, *rows in bands:
        starts = {match.start(): int(match[1]) for match in re.finditer(r"\+- node (\d+)", title)}
        numbers = {row.split()[0]: {m.end(): int(m[0]) for m in re.finditer(r"\d+", row)} for row in rows}
        for end, rank in numbers.pop("rank").items():
            places = {axis: row[max(at for at in row if at <= end)] for axis, row in numbers.items()}
            yield rank, starts[max(at for at in starts if at < end)], places


def folded(drawing: str) -> range:
    """Return the ranks that the drawing folds."""
    match = FOLD.search(drawing)
    return range(int(match[3]), int(match[4] or match[3]) + 1) if match else range(0)


@given(layout=grids(), width=st.sampled_from([80, 120]))
def test_every_rank_is_drawn_on_its_node_at_its_coordinates_or_listed_as_folded(layout: Layout, width: int) -> None:
    assume(layout.world_size > 1)
    drawing = draw(layout, width=width)
    read = list(ranks_read(drawing))
    for rank, node, places in read:
        assert node == rank // layout.ranks_per_node
        expected = dict(zip(AXIS_NAMES, layout.coordinates(rank), strict=True))
        assert places == {axis: expected[axis] for axis in places}
        assert {axis for axis in AXIS_NAMES if axis not in places} == {
            axis for axis, degree in zip(AXIS_NAMES, layout.shape, strict=True) if degree == 1
        }
    assert sorted([*(rank for rank, _, _ in read), *folded(drawing)]) == list(range(layout.world_size))


@given(layout=grids())
def test_nodes_that_are_folded_as_a_pattern_repeat_the_nodes_before_them(layout: Layout) -> None:
    assume(layout.nodes > 8 and layout.ranks_per_node <= 16)  # each node is one box
    match = FOLD.search(draw(layout))
    assert match is not None
    assume(match[5] == "the same pattern repeats")
    first, last = int(match[1]), int(match[2] or match[1])

    def steps(node: int) -> list[tuple[int, ...]]:
        ranks = range(node * layout.ranks_per_node, (node + 1) * layout.ranks_per_node)
        start = layout.coordinates(ranks[0])
        return [tuple(b - a for a, b in zip(start, layout.coordinates(rank), strict=True)) for rank in ranks]

    folded_nodes = range(first, last + 1)
    assert any(all(steps(node) == steps(node % period) for node in folded_nodes) for period in range(1, first + 1))


@given(layout=grids(most=1024), width=st.integers(80, 120))
def test_a_drawing_is_ascii_and_no_wider_than_the_width_and_never_long(layout: Layout, width: int) -> None:
    lines = draw(layout, width=width).splitlines()
    assert all(line.isascii() and line == line.rstrip() for line in lines)
    assert max(len(line) for line in lines if "|" in line or line.startswith(" ")) <= width if len(lines) > 1 else True
    assert max(map(len, lines)) <= 120
    assert len(lines) <= 90


def test_consecutive_numbers_are_joined() -> None:
    assert list(spans([0, 1, 2, 3, 8, 10, 11])) == ["0..3", "8", "10..11"]


def test_boxes_stand_side_by_side_where_they_just_fit() -> None:
    layout = grid(2, 4, dp_replicate=2, dp_shard=4)
    needed = max(len(line) for line in draw(layout, width=120).splitlines() if "|" in line)
    for width, bands in ((needed, 1), (needed - 1, 2)):
        lines = draw(layout, width=width).splitlines()
        assert sum("+- node" in line for line in lines) == bands
        assert max(len(line) for line in lines if "|" in line) <= width


def test_eight_ranks_of_tp_pp_and_fsdp_on_two_nodes() -> None:
    assert (
        draw(grid(2, 4, pp=2, dp_shard=2, tp=2), [[0, 1], [2, 3]])
        == """\
Mesh: 8 ranks = pp 2 x dp_shard 2 x tp 2, on 2 nodes
Ranks are placed in blocks of 4 per node (srun --distribution=block).

              +- node 0 --+- node 1 --+
pp            | 0         | 1         |
dp_shard      | 0   | 1   | 0   | 1   |
tp            | 0 1 | 0 1 | 0 1 | 0 1 |
rank          | 0 1 | 2 3 | 4 5 | 6 7 |
              +-----------+-----------+

pp        4 groups of 2  ranks 0, 4 split the layers   crosses nodes: 1 of 1 hop
dp_shard  4 groups of 2  ranks 0, 2 split the weights  inside a node
tp        4 groups of 2  ranks 0, 1 split each matrix  inside a node

pp 0  ranks 0..3  node 0  layers 0..1
pp 1  ranks 4..7  node 1  layers 2..3"""
    )


def test_one_node_needs_no_line_on_placement() -> None:
    drawing = draw(grid(1, 2, dp_replicate=2))
    assert "on 1 node\n" in drawing
    assert "in blocks" not in drawing
    assert "1 group of 2  ranks 0, 1 keep equal weights  inside a node" in drawing


def test_one_rank_is_one_line() -> None:
    assert draw(grid(1, 1), [[0, 1]]) == "Mesh: 1 rank, nothing to draw."


def test_six_nodes_are_drawn_whole_and_a_group_that_crosses_nodes_states_at_how_many_hops() -> None:
    drawing = draw(grid(6, 8, pp=4, dp_replicate=3, tp=4))
    assert len(drawing.splitlines()) < 24
    assert not folded(drawing)
    assert re.search(r"pp +12 groups of 4 +ranks 0, 12, 24, 36 split the layers +crosses nodes: 3 of 3 hops", drawing)
    assert re.search(r"dp_replicate +16 groups of 3 +ranks 0, 4, 8 keep .+ +crosses nodes: 1 of 2 hops", drawing)
    assert re.search(r"tp +12 groups of 4 +ranks 0, 1, 2, 3 split each matrix +inside a node", drawing)


def test_groups_that_cross_nodes_unequally_state_it() -> None:
    assert re.search(r"tp .+ crosses nodes: 0 to 1 of 2 hops", draw(grid(3, 7, dp_shard=7, tp=3)))


def test_hops_between_nvlink_domains_are_counted_apart() -> None:
    drawing = draw(grid(8, 4, dp_shard=4, tp=8), linked=16)
    assert re.search(r"dp_shard .+ crosses nodes: 3 of 3 hops, NVLink domains: 1\n", drawing)
    assert re.search(r"tp .+ crosses nodes: 1 of 7 hops, NVLink domains: 0$", drawing)


def test_a_thousand_ranks_fold_what_repeats_and_still_draw_the_last() -> None:
    drawing = draw(grid(128, 8, pp=4, dp_shard=32, tp=8))
    assert "... nodes 2..126, ranks 16..1015: the same pattern repeats ..." in drawing
    assert "+- node 127 -" in drawing
    assert "ranks 0, 8, ..., 248 split the weights" in drawing
    assert len(drawing.splitlines()) < 30


def test_a_fold_of_unlike_nodes_does_not_claim_that_they_are_alike() -> None:
    assert "ranks 49..76: not drawn, the patterns differ" in draw(grid(12, 7, pp=7, tp=12))


def test_a_node_wider_than_the_line_is_drawn_in_pieces() -> None:
    drawing = draw(grid(2, 64, dp_shard=16, tp=8))
    assert drawing.count("+- node 0 -") == 4
    assert not folded(drawing)


def test_a_terminal_too_narrow_for_a_node_still_gets_every_rank() -> None:
    drawing = draw(grid(4, 16, dp_shard=64), width=30)
    assert [rank for rank, _, _ in ranks_read(drawing)] == list(range(64))


def test_the_layers_of_a_rank_with_several_stages_are_listed_apart() -> None:
    drawing = draw(grid(1, 2, pp=2), [[0, 1, 6, 7], [2, 3, 4, 5]])
    assert "pp 0  rank 0  node 0  layers 0..1, 6..7" in drawing
    assert "pp 1  rank 1  node 0  layers 2..5" in drawing


def test_a_plan_draws_each_mesh_once_under_the_names_of_its_runs(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = ["cluster=xe9680_h100", "ranks_per_node=4", "job.micro_batch_size=1", "scaling.global_batch_size=64",
            "gpu.memory_gb=null"]  # fmt: skip
    assert main(["plan", "-m", *gpus, "nodes=1,2", "repeat=1,2", "model=llama2_7b,llama3_8b"]) == 0
    out = capsys.readouterr().out
    assert out.count("Mesh: 4 ranks = dp_replicate 4, on 1 node\n") == 1
    assert out.count("Mesh: 8 ranks = dp_replicate 8, on 2 nodes\n") == 1
    heading = next(line for line in out.splitlines() if line.startswith("llama2_7b-ddp-n1x4-r1,"))
    assert set(heading.rstrip(":").split(", ")) == {
        f"{model}-ddp-n1x4-r{repeat}" for model in ("llama2_7b", "llama3_8b") for repeat in (1, 2)
    }


def test_a_plan_of_many_runs_of_one_layout_counts_the_names_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", "repeat=range(1,10)"]) == 0
    out = capsys.readouterr().out
    assert "tiny-ddp-n1x2-r3, tiny-ddp-n1x2-r4 and 5 more of this layout:\n" in out


def test_the_plan_of_one_run_shows_the_layers_of_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "parallelism=pp", "model.layers=8", "job.micro_batch_size=1"]) == 0
    assert re.search(r"pp 1 +rank 1 +node 0 +layers 4\.\.7", capsys.readouterr().out)


def test_the_plan_table_names_context_parallelism_only_where_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = ["cluster=xe9680_h100", "ranks_per_node=4", "job.micro_batch_size=1", "scaling.global_batch_size=64"]
    assert main(["plan", *gpus]) == 0
    assert "dp x tp x pp" in capsys.readouterr().out
    assert main(["plan", "-m", *gpus, "parallelism=ddp,cp_fsdp"]) == 0
    out = capsys.readouterr().out
    assert "dp x cp x tp x pp" in out
    assert "4 x 1 x 1 x 1" in out
    assert "2 x 2 x 1 x 1" in out
