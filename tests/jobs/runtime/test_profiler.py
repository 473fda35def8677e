"""Profiles of real runs: chosen steps and ranks have a trace and shares, other steps and ranks do not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs import metrics as m
from jobs.errors import ConfigError
from jobs.ranks import Rank
from jobs.rundir import load_run
from jobs.runtime.profiling.profiler import StepProfiler
from tests.support.composing import refusal
from tests.support.real_run import events, make_run, printed, steps, train

PROFILE = ("job.unmeasured_steps=2", "engine.profile.steps=[4,5]")
TWO_RANKS = ("parallelism=fsdp_full", "nodes=1", "ranks_per_node=2")


def test_two_ranks_profile_the_chosen_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path, *TWO_RANKS, *PROFILE, "engine.profile.ranks=[0,1]")
    assert train(run) == [0, 0], printed(run)
    assert [row["step"] for row in steps(run) if row.get(m.PROFILED.name)] == [3, 4, 5]
    (profile,) = events(run, "profile")
    ranks: Any = profile["ranks"]
    assert [(rank["rank"], rank["steps"]) for rank in ranks] == [(0, [4, 5]), (1, [4, 5])]
    (layout,) = events(run, "layout")
    counted: Any = layout["collectives"]
    calls = {each["collective"]: each["collective_calls"] for each in counted if each["axis"] == "dp_shard"}
    for rank in ranks:
        with gzip.open(run.path / rank["trace"]) as file:
            trace = json.load(file)
        assert rank["trace_bytes"] == (run.path / rank["trace"]).stat().st_size
        assert sum(rank[share.name] for share in m.PROFILE_SHARES) == pytest.approx(1)
        assert rank[m.COMMUNICATION_SHARE.name] == pytest.approx(sampled_communication(trace), abs=0.02)
        found = {(each["axis"], each["collective"]): each["collective_calls"] for each in rank["collectives"]}
        # gloo's reduce-scatter is an all-reduce, beside those of the norm and the loss.
        assert found == {
            ("dp_shard", "all_gather"): calls["all_gather"],
            ("dp_shard", "all_reduce"): calls["all_reduce"] + calls["reduce_scatter"],
        }
        assert rank["kernels"]


def sampled_communication(trace: dict[str, Any], points: int = 4000) -> float:
    """Return the share of moments of the steps at which a range of gloo is under way."""
    ranges = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in trace["traceEvents"] if e.get("ph") == "X"]
    inside = [(begin, end) for name, begin, end in ranges if name.startswith("gloo:")]
    moments = [
        begin + (end - begin) * (i + 0.5) / points
        for name, begin, end in ranges
        if name.startswith("ProfilerStep#")
        for i in range(points)
    ]
    return sum(any(begin <= moment < end for begin, end in inside) for moment in moments) / len(moments)


@pytest.mark.long
@pytest.mark.parametrize(
    "engine", [("engine=deepspeed", "parallelism=zero3"), ("engine=litgpt", "parallelism=fsdp_hybrid")]
)
def test_other_engines_are_profiled_in_the_same_way(tmp_path: Path, engine: tuple[str, ...]) -> None:
    compiled = ["engine.compile=true"] if "engine=litgpt" in engine else []
    run = make_run(tmp_path, *engine, *compiled, "ranks_per_node=2", *PROFILE)
    assert train(run) == [0, 0], printed(run)
    (profile,) = events(run, "profile")
    ranks: Any = profile["ranks"]
    (rank,) = ranks
    assert rank["rank"] == 0
    assert {each["axis"] for each in rank["collectives"]} <= {"dp_shard", "dp_replicate"}
    assert rank["collectives"]


def test_steps_and_ranks_that_cannot_be_profiled_are_refused() -> None:
    refusals = {
        ("engine.profile.steps=[6,8]",): "Set engine.profile.steps=[6,7].",
        ("engine.profile.steps=[1,2]", "job.unmeasured_steps=2"): "Set engine.profile.steps=[4,5]",
        ("engine.profile.steps=[8,9]", "job.steps=8"): "end after job.steps=8. Set job.steps=9 or more",
        ("engine.profile.steps=7",): "It is a list: set engine.profile.steps=[A,B].",
        ("engine.profile.ranks=[2]",): "choose one or more of ranks 0 to 1, each once. Set engine.profile.ranks=[0].",
        ("engine.profile.steps=[5]", "engine=nemo"): "Set engine.profile.steps=[] engine.profile.program=nsys",
        ("engine.profile.steps=[5]", "engine.profile.program=nsys"): "records chosen steps by a call of CUDA",
        ("engine.profile.steps=[5]", "engine.profile.program=rocprof"): "records the whole rank",
    }
    for overrides, message in refusals.items():
        assert message in refusal(*overrides), overrides


def test_steps_after_the_last_one_of_the_data_are_refused_before_training(tmp_path: Path) -> None:
    run = make_run(tmp_path, "job.steps=null", "job.epochs=1", "job.warmup_steps=0", "engine.profile.steps=[90]")
    with pytest.raises(ConfigError, match=r"engine.profile.steps=\[90\] are not all among the 2 steps of this run."):
        StepProfiler(load_run(run.config), run, Rank(0, 1, 0, "127.0.0.1", "1"), torch.device("cpu"), steps=2)
