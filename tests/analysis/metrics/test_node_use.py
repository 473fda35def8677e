"""Nodes of a run that differ from the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.metrics.node_use import Interval, NodeUse, differences, node_use_values
from analysis.run import RunResult
from jobs import metrics as m
from jobs.metrics import StoragePhase


def a_node(name: str, busy: float, received: float) -> NodeUse:
    steps = Interval(2.0, 2.0, StoragePhase.train, {m.NODE_CPU_BUSY: busy, m.NODE_RECEIVED: received})
    loading = Interval(1.0, 8.0, StoragePhase.load, {m.NODE_CPU_BUSY: 1.0, m.NODE_RECEIVED: 0.0})
    return NodeUse(name, [loading, steps])


def test_a_node_differs_by_a_tenth_of_its_time_and_not_by_its_traffic() -> None:
    nodes = (a_node("a", 0.5, 10.0), a_node("b", 0.55, 10.0), a_node("c", 0.62, 2e6), a_node("d", 0.2, 10.0))
    run = RunResult(Path("run"), node_use=nodes)
    assert differences(run) == {
        "d": "Node CPU busy (%) 20.0, median 52.5",
    }
    assert node_use_values(nodes)[m.NODE_CPU_BUSY] == pytest.approx(1.87 / 4)
    assert differences(RunResult(Path("run"), node_use=nodes[:1])) == {}
