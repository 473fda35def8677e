"""Collectives of a `layout` event."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.metrics.communication import read_collectives, sums
from jobs import metrics as m


def record(axis: str, calls: float = 2, payload_bytes: float = 10) -> dict[str, Any]:
    return {
        "axis": axis, "collective": "all_reduce", "collective_calls": calls, "collective_bytes": payload_bytes,
    }  # fmt: skip


def test_collectives_are_in_the_order_of_the_grid_from_the_innermost_axis_and_add_up() -> None:
    axes = ["world", "dp_shard+tp", "dp_replicate", "tp", "dp_shard"]
    found = read_collectives({"collectives": [record(axis) for axis in axes]})
    assert found is not None
    assert [each.axis for each in found] == ["tp", "dp_shard", "dp_replicate", "dp_shard+tp", "world"]
    assert sums(found) == {m.COLLECTIVE_CALLS: 10, m.COLLECTIVE_BYTES: 50}


@pytest.mark.parametrize("wrong", [record("tp", calls=-1), record("tp", payload_bytes=-1), {"axis": "tp"}, "tp", None])
def test_a_sum_over_some_of_the_collectives_only_is_never_shown(wrong: object) -> None:
    assert read_collectives({"collectives": [record("tp"), wrong]}) is None
    assert sums(read_collectives({"collectives": None})) == {}
    assert read_collectives({"collectives": []}) == (), "no rank sends anything"
