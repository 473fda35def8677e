"""Own times of ranks: a real rank that is slow is named, whatever it is slow at, and equal ranks are not."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from litgpt.model import Block

from analysis.metrics.stragglers import Straggler, stragglers
from jobs.data.batches import Batches, StepBatch
from jobs.layout import Layout
from jobs.rundir import RunDir, read_records
from jobs.runtime.pace import SLOWEST_RANKS, LayerClock, Pace, medians_of_others, summary
from tests.support.composing import refusal
from tests.support.real_run import events, make_run, printed, steps, train

# So long that what else a loaded machine does is short beside it.
DELAY_S = 0.3


def trained(where: Path, parallelism: str, *, windows: int = 4) -> RunDir:
    steps = (f"job.steps={2 + 2 * windows}", "job.unmeasured_steps=2", "engine.pace_every_steps=2")
    run = make_run(where, f"parallelism={parallelism}", "nodes=1", "ranks_per_node=2", *steps)
    assert train(run) == [0, 0], printed(run)
    return run


def delayed(ranks: set[int], method: Callable[..., Any], delay_s: float) -> Callable[..., Any]:
    """The method after a pause in some ranks, which a process knows to be its own by its environment."""

    def late(*args: Any, **kwargs: Any) -> Any:
        if int(os.environ["RANK"]) in ranks:
            time.sleep(delay_s)
        return method(*args, **kwargs)

    return late


def found_in(run: RunDir) -> list[Straggler] | None:
    return stragglers(read_records(run.status), {int(row["step"]): row["step_time_s"] for row in steps(run)})


# --- real runs -------------------------------------------------------------------------------------------------


def test_a_rank_that_gets_its_batches_late_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "step", delayed({1}, Batches.step, DELAY_S))
    run = trained(tmp_path, "fsdp_full")
    found = found_in(run)
    assert found is not None
    assert [(each.ranks, each.by_batch) for each in found] == [((1, 1), True)]
    assert found[0].own_time_s > DELAY_S
    assert [event["step"] for event in events(run, "pace")] == [4, 6, 8, 10]


def test_a_rank_whose_layers_are_slow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "forward", delayed({0}, Block.forward, DELAY_S / 8))
    found = found_in(trained(tmp_path, "ddp"))
    assert found is not None
    assert [(each.ranks, each.by_batch) for each in found] == [((0, 0), False)]


@pytest.mark.slow
@pytest.mark.long
def test_of_ranks_that_are_equally_slow_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "step", delayed({0, 1}, Batches.step, DELAY_S))
    assert found_in(trained(tmp_path, "ddp", windows=10)) == []


# --- the event of a window -------------------------------------------------------------------------------------


def grid(*, nodes: int, ranks_per_node: int, pp: int = 1, tp: int = 1) -> Layout:
    ranks = nodes * ranks_per_node
    degrees = {"pp": pp, "dp_replicate": ranks // pp // tp, "dp_shard": 1, "ep": 1, "cp": 1, "tp": tp}
    return Layout.by_name(nodes, ranks_per_node, degrees)


def window_event(layout: Layout, parts: list[tuple[float, float]]) -> dict[str, Any]:
    nodes = [f"node{rank // layout.ranks_per_node}" for rank in range(layout.world_size)]
    return summary(np.array(parts), layout, nodes)


def test_a_thousand_ranks_make_a_small_event_with_the_slowest_in_it() -> None:
    drawn = random.Random(0)
    parts = [(0.01, drawn.gauss(1, 0.02)) for _ in range(1024)]
    parts[700] = (0.01, 2.0)
    parts[16:24] = [(0.01, 1.5)] * 8
    event = window_event(grid(nodes=128, ranks_per_node=8), parts)
    assert len(json.dumps(event)) < 5000
    assert len(event["slowest_ranks"]) == SLOWEST_RANKS
    assert event["slowest_ranks"][0]["rank"] == 700
    assert event["slowest_ranks"][0]["node"] == "node87"
    assert (event["slowest_nodes"][0]["first_rank"], event["slowest_nodes"][0]["last_rank"]) == (16, 23)
    assert event["median_own_time_s"] == pytest.approx(1.01, abs=0.01)


def test_a_rank_is_compared_with_those_that_hold_the_same_layers() -> None:
    # The second stage has more to do; rank 3 has more than its like.
    event = window_event(grid(nodes=2, ranks_per_node=3, pp=2), [(0, 1), (0, 1), (0, 1), (0, 5), (0, 3), (0, 3)])
    assert event["slowest_ranks"][0] == {
        "rank": 3,
        "node": "node1",
        "own_time_s": 5,
        "batch_time_s": 0,
        "others_own_time_s": 3,
    }
    slowness = [each["own_time_s"] / each["others_own_time_s"] for each in event["slowest_ranks"][1:]]
    assert slowness == pytest.approx([1, 1, 1, 0.75, 0.75])


def test_of_a_tensor_group_the_rank_that_waits_least_reports_the_time_of_the_layers() -> None:
    # Rank 1 got its batch late, and rank 0 waited for it inside its layers.
    event = window_event(grid(nodes=2, ranks_per_node=2, tp=2), [(0, 6), (5, 1), (0, 1), (0, 1)])
    own_s = {each["rank"]: each["own_time_s"] for each in event["slowest_ranks"]}
    assert own_s == {0: 1, 1: 6, 2: 1, 3: 1}


@pytest.mark.parametrize("count", range(2, 9))
def test_the_median_of_the_others_leaves_the_value_itself_out(count: int) -> None:
    drawn = random.Random(count)
    values = [float(drawn.randrange(5)) for _ in range(count)]
    expected = [statistics.median(values[:i] + values[i + 1 :]) for i in range(count)]
    assert medians_of_others(np.array(values)).tolist() == expected


# --- what is timed ---------------------------------------------------------------------------------------------


class Slow(torch.nn.Module):
    """Takes a while."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return x


def test_the_clock_sums_the_passes_of_its_layers_and_starts_anew_when_it_is_read() -> None:
    timed, other = Slow(), Slow()
    clock = LayerClock([timed], torch.device("cpu"))
    for layer in (timed, other, timed):
        layer(torch.zeros(1))
    first = clock.read()
    assert first >= 0.04
    assert clock.read() == 0


@pytest.mark.parametrize(
    ("every", "layout"), [(0, grid(nodes=1, ranks_per_node=2)), (5, grid(nodes=1, ranks_per_node=1))]
)
def test_nothing_is_timed_where_it_is_not_wanted_or_there_is_nobody_to_compare_with(every: int, layout: Layout) -> None:
    layer = Slow()
    pace = Pace([layer], layout, torch.device("cpu"), every=every)
    assert not layer._forward_hooks
    assert [pace.step(measured=True) for _ in range(9)] == [None] * 9


def test_the_batch_is_the_next_one_and_getting_it_is_timed() -> None:
    def made() -> Iterator[StepBatch]:
        time.sleep(0.02)
        yield StepBatch(micro_batches=[], labels=7, samples=0, tokens=0, padded_tokens=0)

    pace = Pace([], grid(nodes=1, ranks_per_node=1), torch.device("cpu"), every=1)
    assert pace.batch(made()).labels == 7
    assert pace.batch_time_s >= 0.02


def test_what_the_interval_cannot_be_is_refused() -> None:
    assert "engine.pace_every_steps=-1 is negative. Set engine.pace_every_steps=0 or more." in refusal(
        "engine.pace_every_steps=-1"
    )
    for engine in ("nemo", "litgpt"):
        message = refusal(f"engine={engine}", "engine.pace_every_steps=5")
        assert "Set engine.pace_every_steps=null, or engine=native." in message
