"""Packing points on the nodes of a pilot: properties of every choice, and whole pilots played to their end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.submit.allocations.packing import Point, pack

NODES = [f"node{number:02d}" for number in range(1, 9)]
free_nodes = st.lists(st.sampled_from(NODES), unique=True).map(sorted)
sizes = st.lists(st.integers(1, len(NODES)), max_size=12)


@st.composite
def waiting_points(draw: st.DrawFn) -> list[Point]:
    failed_on = st.frozensets(st.sampled_from(NODES), max_size=3)
    return [Point(f"p{number}", nodes, draw(failed_on)) for number, nodes in enumerate(draw(sizes))]


@given(waiting_points(), free_nodes)
def test_every_point_that_starts_has_its_number_of_free_nodes_and_shares_none(
    waiting: list[Point], free: list[str]
) -> None:
    starts = pack(waiting, free)
    given_away = [node for nodes in starts.values() for node in nodes]
    assert len(given_away) == len(set(given_away))
    assert set(given_away) <= set(free)
    assert all(len(starts[point.name]) == point.nodes for point in waiting if point.name in starts)
    assert all(nodes == sorted(nodes) for nodes in starts.values()), "ranks follow the order of the nodes"


@given(waiting_points(), free_nodes)
def test_no_node_is_idle_while_something_that_waits_fits(waiting: list[Point], free: list[str]) -> None:
    starts = pack(waiting, free)
    idle = len(free) - sum(map(len, starts.values()))
    assert all(point.nodes > idle for point in waiting if point.name not in starts)


@given(waiting_points(), free_nodes)
def test_what_is_passed_over_is_larger_than_all_that_the_larger_ones_left(
    waiting: list[Point], free: list[str]
) -> None:
    starts = pack(waiting, free)
    for position, point in enumerate(waiting):
        if point.name not in starts:
            before = [p for i, p in enumerate(waiting) if (-p.nodes, i) < (-point.nodes, position)]
            assert point.nodes > len(free) - sum(p.nodes for p in before if p.name in starts)


@given(waiting_points(), free_nodes)
def test_a_point_tries_nodes_on_which_it_has_not_failed_first(waiting: list[Point], free: list[str]) -> None:
    for point in waiting:
        nodes = pack([point], free).get(point.name, [])
        assert not set(nodes) & point.failed_on or not set(free) - set(nodes) - point.failed_on


@given(waiting_points(), free_nodes, st.integers(0, 4))
def test_no_more_start_than_may(waiting: list[Point], free: list[str], most: int) -> None:
    assert len(pack(waiting, free, most)) <= most


@given(sizes, st.lists(st.integers(1, 5), min_size=12, max_size=12))
def test_a_point_waits_only_while_one_at_least_as_large_runs_and_every_point_has_its_turn(
    numbers: list[int], durations: list[int]
) -> None:
    waiting = [Point(str(number), nodes) for number, nodes in enumerate(numbers)]
    running: dict[str, tuple[int, list[str]]] = {}
    for time in range(100):
        running = {name: place for name, place in running.items() if place[0] > time}
        busy = {node for _, nodes in running.values() for node in nodes}
        starts = pack(waiting, [node for node in NODES if node not in busy])
        running |= {name: (time + durations[int(name)], nodes) for name, nodes in starts.items()}
        waiting = [point for point in waiting if point.name not in starts]
        for point in waiting:
            assert any(len(nodes) >= point.nodes for _, nodes in running.values())
    assert not waiting
