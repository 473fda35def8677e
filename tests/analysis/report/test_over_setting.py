"""Figures over a batch or a sequence length, where a sweep changed one on one number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.report.digest import Digest
from analysis.report.figures.page import figures
from analysis.report.figures.style import Figure
from analysis.run import RunResult
from analysis.scaling.groups import scaling_groups
from jobs import metrics as m


def a_run(model: str, batch: int, *, micro_batch: int = 1, length: int = 512, nodes: int = 1) -> RunResult:
    config: dict[str, Any] = {
        "nodes": nodes,
        "ranks_per_node": 2,
        "model": {"name": model},
        "parallelism": {"name": "tp"},
        "scaling": {"mode": "strong", "global_batch_size": batch},
        "job": {"micro_batch_size": micro_batch, "sequence_length": length},
    }
    values = {m.TOKENS_PER_S: 100.0 * batch * micro_batch * length * nodes}
    path = Path(f"{model}-{batch}-{micro_batch}-{length}-{nodes}")
    return RunResult(path, config, {"global_batch_size": batch}, values=values)


def throughput(*runs: RunResult) -> Figure:
    (figure,) = [each for each in figures(Digest(groups=scaling_groups(runs))) if each.heading == "Throughput"]
    return figure


@pytest.mark.parametrize(
    ("runs", "axis", "lines"),
    [
        (
            [a_run(model, batch, micro_batch=batch) for model in ("a", "b") for batch in (16, 1, 64)],
            "Global batch (sequences)",
            {"a tp": [1, 16, 64], "b tp": [1, 16, 64]},
        ),
        ([a_run("a", 8, micro_batch=size) for size in (4, 1, 2)], "Micro-batch (sequences)", {"tp": [1, 2, 4]}),
        ([a_run("a", 8, length=length) for length in (64, 128)], "Sequence length (tokens)", {"tp": [64, 128]}),
        # Two sizes of the micro-batch in one global batch: no line.
        ([a_run("a", batch, micro_batch=size) for batch in (8, 16) for size in (1, 2)], "Micro-batch (sequences)",
         {"tp global_batch_size=8": [1, 2], "tp global_batch_size=16": [1, 2]}),
        ([a_run("a", 8, nodes=nodes) for nodes in (1, 2)], "Ranks", {"tp": [2, 4]}),
    ],
)  # fmt: skip
def test_lines_go_over_what_the_sweep_changed(runs: list[RunResult], axis: str, lines: dict[str, list[int]]) -> None:
    plot = throughput(*runs).plot
    assert plot is not None
    assert plot.layout.xaxis.title.text == axis
    assert {trace.name: list(trace.x) for trace in plot.data if trace.hovertext} == lines
    for trace in plot.data:
        assert list(trace.y) == sorted(trace.y), "each value is at its own place"


def test_a_point_names_its_setting() -> None:
    plot = throughput(a_run("a", 8, length=1024), a_run("a", 8, length=512)).plot
    assert plot is not None
    assert "<br>Sequence length (tokens): 1,024<br>2 ranks on 1 node" in plot.data[0].hovertext[1]


def test_models_that_were_measured_once_stand_side_by_side() -> None:
    plot = throughput(a_run("a", 8), a_run("b", 16)).plot
    assert plot is not None
    assert plot.layout.xaxis.title.text == "2 ranks"


def test_the_caption_names_the_axis_and_the_ranks() -> None:
    assert throughput(a_run("a", 8), a_run("a", 16)).caption.endswith(" Over the global batch, 2 ranks on 1 node.")
