"""`plan --search`: every legal layout, by expected time, each with the overrides that make it."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from jobs.errors import ConfigError
from jobs.explore.layouts import read_layouts
from jobs.explore.picture import draw
from jobs.explore.propose.predicted import RankedLayout, pareto, ranked
from jobs.explore.search import in_order, search, show
from jobs.parallelism import Strategy
from jobs.plan.compose import compose
from jobs.plan.legality import problems
from jobs.plan.pipeline_stages import layer_counts
from jobs.plan.predict.interval import Interval
from jobs.plan.predict.memory import memory
from jobs.plan.predict.speed import speed
from jobs.plan.rules.memory import Verdict, verdict

GIVEN = ("model=llama3_8b", "cluster=xe9680_h100", "ranks_per_node=4", "job.sequence_length=4096", "data=random",
         "job.steps=100", "job.precision=bfloat16", "scaling.global_batch_size=8")  # fmt: skip


EXPERTS = ("model.mlp=LLaMAMoE", "model.layers=8", "model.experts=8", "model.experts_per_token=2")


@cache
def found(*overrides: str) -> list[RankedLayout]:
    return ranked(read_layouts([*GIVEN, *overrides]).layouts())


@pytest.mark.parametrize(
    "overrides",
    [
        ["nodes=1,2", "job.micro_batch_size=1"],
        ["engine=deepspeed", "nodes=2"],
        ["engine=nemo", "parallelism.context=1"],
        ["parallelism=tp_fsdp", "parallelism.tensor=2,4"],
        [*EXPERTS, "parallelism.context=1", "parallelism.tensor=1"],
    ],
)
def test_typed_behind_the_others_the_overrides_of_a_row_compose_to_its_prediction(overrides: list[str]) -> None:
    space = read_layouts([*GIVEN, *overrides])
    order = ranked(space.layouts())
    assert len(order) > 5
    choices = {each.layout.run.parallelism.name: each for each in reversed(order)}
    for each in [*list(choices.values())[:3], order[-1]]:
        (point,) = compose([*space.common, *each.layout.overrides.split()], multirun=False)
        assert (memory(point.run), speed(point.run)) == (each.memory, each.speed)
        assert point.run.parallelism == each.layout.run.parallelism


def test_experts_are_divided_by_every_degree_that_the_rules_allow_and_only_where_there_are_any() -> None:
    few = ("job.micro_batch_size=1", "parallelism.context=1", "engine.activation_checkpointing=full")
    degrees = {each.run.parallelism.expert for each in read_layouts([*GIVEN, *EXPERTS, *few]).layouts()}
    assert degrees == {1, 2, 4}
    assert {each.run.parallelism.expert for each in read_layouts([*GIVEN, *few]).layouts()} == {1}
    given = read_layouts([*GIVEN, *EXPERTS, *few, "parallelism.expert=4"]).layouts()
    assert {each.run.parallelism.expert for each in given} == {4}


@pytest.mark.parametrize("engine", ["nemo", "native"])
def test_a_pipeline_is_tried_with_virtual_stages_too_unless_the_schedule_is_given(engine: str) -> None:
    common = [*GIVEN, "job.micro_batch_size=1", f"engine={engine}", "scaling.global_batch_size=64"]
    pipelines = [each for each in read_layouts(common).layouts() if each.run.parallelism.pipeline > 1]
    virtual = [each for each in pipelines if "parallelism.schedule=Interleaved1F1B" in each.overrides]
    assert virtual
    assert len(virtual) < len(pipelines)
    for each in virtual:
        p = each.run.parallelism
        assert (p.stages_per_rank or 1) > 1
        assert each.run.model.layers % (p.pipeline * (p.stages_per_rank or 1)) == 0
    given = read_layouts([*common, "parallelism.schedule=1F1B"]).layouts()
    assert not [each for each in given if "Interleaved" in each.overrides]


def test_no_other_number_of_virtual_stages_makes_one_of_the_first_layouts_faster() -> None:
    space = read_layouts([*GIVEN, "job.micro_batch_size=1", "engine=nemo", "scaling.global_batch_size=64", "nodes=4",
                          "model.layers=48", "engine.activation_checkpointing=full"])  # fmt: skip
    layouts, order = in_order(space)
    assert len({each.overrides for each in layouts}) == len(layouts)
    tried = {each.run.parallelism.stages_per_rank for each in layouts}
    # 48 layers by PP 2, 4, 8 and 16: also where a schedule has more than ten stages a rank.
    assert tried >= {2, 3, 4, 6, 8, 12}
    (best, *_) = (each for each in order if each.layout.run.parallelism.pipeline > 1)
    others = list(space.with_other_stages(best.layout))
    assert others
    assert all(best.expected_s <= other.expected_s for other in ranked(others))


@pytest.mark.parametrize(("layers", "stages"), [(16, {2, 4}), (14, {2}), (13, set[int]())])
def test_virtual_stages_are_of_equal_length_where_embedding_and_head_count_as_a_layer_each(
    layers: int, stages: set[int]
) -> None:
    # 126 layers of Llama 3.1 405B on PP 8 have 64 stages: all of two layers but the first and the last.
    space = read_layouts([*GIVEN, "job.micro_batch_size=1", "engine=nemo", f"model.layers={layers}",
                          "parallelism.pipeline=4", "parallelism.tensor=1", "parallelism.context=1"])  # fmt: skip
    tried = {each.run.parallelism.stages_per_rank for each in in_order(space)[0]} - {None}
    assert tried == stages


def test_what_plan_refuses_is_not_listed_and_all_degrees_and_methods_are_tried() -> None:
    order = found("nodes=1,2", "job.micro_batch_size=1")
    assert all(not problems(each.layout.run) for each in order)
    # 8 G parameters in 16 bytes are 128 GB.
    assert all(each.layout.run.parallelism.strategy is not Strategy.ddp for each in order if each.layout.run.nodes == 1
               and each.layout.run.parallelism.tensor * each.layout.run.parallelism.pipeline == 1)  # fmt: skip
    for degree in ("tensor", "pipeline", "context"):
        assert {getattr(each.layout.run.parallelism, degree) for each in order} >= {1, 2, 4}
    assert {each.layout.run.nodes for each in order} == {1, 2}


def test_a_key_that_the_user_sets_keeps_its_value() -> None:
    order = found("parallelism.tensor=2", "job.micro_batch_size=1", "engine.activation_checkpointing=full")
    kept = {(each.layout.run.parallelism.tensor, each.layout.run.job.micro_batch_size) for each in order}
    assert kept == {(2, 1)}
    assert not any("tensor" in each.layout.overrides or "job." in each.layout.overrides for each in order)


@pytest.mark.parametrize("engine", ["native", "nemo"])
@pytest.mark.parametrize(
    ("typed", "uneven"),
    [
        ("model.layers=14", True),  # as Llama 3.1 405B's 126 layers, which 4 does not divide either
        ("model.layers=13", True),
        ("model.layers=16", False),
        ("model.layers=14 parallelism.stage_split=even", False),
        ("model.layers=14 parallelism.pipeline=2", False),
    ],
)
def test_stages_of_unequal_length_are_tried_where_no_others_are(engine: str, typed: str, uneven: bool) -> None:
    space = read_layouts([*GIVEN, "job.micro_batch_size=1", f"engine={engine}", *typed.split()])
    layouts = list(space.layouts())
    split = [each for each in layouts if "parallelism.stage_split=balanced" in each.overrides.split()]
    assert bool(split) is uneven
    for each in layouts:
        stages = each.run.parallelism.pipeline
        assert ("stage_split=balanced" in each.overrides) is (each.run.model.layers % stages != 0)
    for each in split[:1]:
        (point,) = compose([*space.common, *each.overrides.split()], multirun=False)
        counts = layer_counts(point.run)
        assert sum(counts) == point.run.model.layers
        assert len(set(counts)) > 1


def test_the_chance_of_not_fitting_counts_as_lost_time() -> None:
    interval = Interval(60.0, 50.0, 80.0)
    assert interval.chance_below(60.0) == pytest.approx(0.5)
    assert interval.chance_below(80.0) == pytest.approx(0.95)
    assert interval.chance_below(50.0) == pytest.approx(0.05)
    order = found("nodes=1,2", "job.micro_batch_size=1")
    tight = [each for each in order if verdict(each.layout.run, each.memory) is Verdict.tight]
    assert tight
    assert all(0.05 <= each.chance < 0.95 for each in tight)
    for each in tight:
        tokens = each.layout.run.ranks * each.speed.tokens_per_s_per_gpu.point
        assert each.expected_s == pytest.approx((1 + 0.25 * (1 / each.chance - 1)) / tokens)


def test_no_layout_beats_one_of_the_pareto_set_in_time_cost_and_memory() -> None:
    order = found("nodes=1,2", "job.micro_batch_size=1")
    best = pareto(order)
    assert best[0] is order[0]
    assert 1 < len(best) < len(order)
    for each in best:
        for other in order:
            assert other is each or any(a > b for a, b in zip(other.objectives, each.objectives, strict=True))


def test_the_tables_and_the_picture_name_the_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(search([*GIVEN, "parallelism.tensor=1", "parallelism.context=1"], tmp_path / "layouts.html"))
    text = capsys.readouterr().out
    assert text.startswith("uncalibrated: predicted, ")
    first = text.split("overrides")[1].split("\n")[1].split("parallelism=", 1)[1]
    assert f"slurmscale plan {shlex.join(GIVEN)} " in text
    page = (tmp_path / "layouts.html").read_text()
    assert f"parallelism={first.strip()}" in page
    assert "uncalibrated: predicted" in page


@pytest.mark.parametrize(
    "name",
    ["<a href='https://evil.example'>x</a>", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
     "<b>bold</b>", "&lt;i&gt;", "\u2028\x1b[31m"],
)  # fmt: skip
def test_no_name_is_live_in_the_picture_and_only_its_two_scripts_run(name: str, tmp_path: Path) -> None:
    def named(each: RankedLayout) -> RankedLayout:
        run = each.layout.run
        run = replace(run, model=replace(run.model, name=name), gpu=replace(run.gpu, name=name))
        layout = replace(each.layout, run=run, choice=(f"model={name} parallelism.tensor=1",), values=())
        return replace(each, layout=layout)

    order = [named(each) for each in found("parallelism.tensor=1", "parallelism.context=1")]
    draw(order, order[:1], tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    plotly, call = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in (plotly, call)]
    assert [f"'sha256-{digest}'" in policy for digest in digests] == [True, True]
    rest = page.replace(plotly, "").replace(call, "")
    assert name not in rest
    assert not re.search(r"<a\b|<img|<b>|<script|\x1b", call.encode().decode("unicode_escape"))


def test_a_model_that_fits_no_layout_is_refused_with_nodes_on_which_one_fits() -> None:
    given = [*GIVEN, "model=llama3_70b", "nodes=1,2", "parallelism.context=1", "parallelism.pipeline=1"]
    with pytest.raises(ConfigError, match=r"None of \d+ legal layouts of llama3_70b on nodes=1,2 is predicted") as no:
        search(given, None)
    typed = str(no.value).rpartition("Set ")[2].removesuffix(".").split()
    (point,) = compose([*(each for each in given if "nodes=" not in each), *typed], multirun=False)
    assert point.run.nodes > 2


def test_a_search_without_any_legal_layout_or_known_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"No layout of llama3_8b on nodes=1 is legal .* GBS 8\. .*GBS 8 is not"):
        search([*GIVEN, "job.micro_batch_size=3"], None)
    with pytest.raises(ConfigError, match="The rates of gpu=none are not known"):
        search(["model=tiny"], None)
    with pytest.raises(ConfigError, match=r"layouts are ranked by the speed of training. Set job=pretrain"):
        search([*(each for each in GIVEN if not each.startswith("job.steps=")), "job=evaluate"], None)
