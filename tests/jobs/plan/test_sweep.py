"""The axes of a sweep: each key once, each value once, and the sweep of each experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.errors import ConfigError
from jobs.explore.layouts import read_layouts
from jobs.explore.tune import tuning_of
from jobs.plan.compose import compose


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("job.learning_rate=1e-3,1e-2", "job.learning_rate=1e-4"),
        ("job.learning_rate=1e-4", "job.learning_rate=1e-3,1e-2"),
        ("job.steps=5,6", "job.steps=7,8"),
        ("job.steps=range(5,7)", "++job.steps=7"),
        ("network.env.NCCL_ALGO=Tree,Ring", "network.env={NCCL_ALGO: Ring}"),
        ("network.env={NCCL_ALGO: Ring},{NCCL_ALGO: Tree}", "+network.env.NCCL_ALGO=Ring"),
        ("network={env: {NCCL_ALGO: Ring}}", "network.env.NCCL_ALGO=Tree,Ring"),
        ("job={steps: 4}", "job.steps=5,6"),
        ("job.lora=null", "job.lora.rank=4,8"),
        ("model=tiny,pythia_14m", "model=tiny"),
        ("cluster.modules=[a],[b]", "cluster.modules=[c]"),
        ("experiment=demo,one_gpu", "experiment=one_gpu"),
    ],
)
def test_two_overrides_of_one_key_are_refused_by_both_names_if_one_is_swept(first: str, second: str) -> None:
    for overrides in ([first, second], ["nodes=1", second, first]):
        with pytest.raises(ConfigError, match="set the same key") as refused:
            compose(overrides, multirun=True)
        assert first in str(refused.value)
        assert second in str(refused.value)


def test_a_tuning_and_a_search_refuse_a_key_that_is_given_twice() -> None:
    for read in (read_layouts, tuning_of):
        with pytest.raises(ConfigError, match=r"job.micro_batch_size=1,2 and job.micro_batch_size=4 set the same key"):
            read(["job.micro_batch_size=1,2", "job.micro_batch_size=4"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["parallelism=ddp,fsdp_full", "parallelism.tensor=1"],
        ["parallelism.tensor=1,2", "parallelism=ddp", "job.micro_batch_size=1"],
        ["network.env.NCCL_ALGO=Tree,Ring", "network.env={NCCL_PROTO: Simple}"],
        ["network.env.A=1,2", "network.env.AB=3"],
        ["nodes=1", "nodes=2", "job.seed=1,2"],
        ["job.seed=1,2", "job.steps=4", "job.steps=5"],
    ],
)
def test_a_group_and_its_keys_and_different_keys_of_a_section_are_swept_together(overrides: list[str]) -> None:
    points = compose(overrides, multirun=True)
    assert len({point.run.name for point in points}) == 2


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("job.steps=5,5", "5"),
        ("job.learning_rate=1e-3,0.001,1e-4", "0.001"),
        ("model=tiny,tiny", "tiny"),
        ("job.export=true,TRUE", "True"),
        ("cluster.account=a,'a'", "a"),
        ("cluster.modules=[a],[ a ]", "[a]"),
        ("nodes=choice(1,2,1)", "1"),
    ],
)
def test_equal_values_of_a_sweep_are_refused_with_the_word_for_repeats(override: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose([override], multirun=True)
    assert f"{override}: {value} is given more than once" in str(refused.value)
    assert "add repeat=1,2,3" in str(refused.value)


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three experiments: two declare a sweep, one none."""
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    (tmp_path / "experiment").mkdir()
    head = "# @package _global_\n"
    for name, text in {
        "a": "hydra:\n  sweeper:\n    params:\n      nodes: 1,2\n      job.seed: 7\n",
        "b": "hydra:\n  sweeper:\n    params:\n      job.steps: 5,6,7\n",
        "c": "job:\n  steps: 9\n",
    }.items():
        (tmp_path / f"experiment/{name}.yaml").write_text(head + text)


@pytest.mark.usefixtures("experiments")
def test_each_of_several_experiments_has_the_sweep_that_it_declares() -> None:
    points = compose(["experiment=a,b,c", "repeat=1,2"], multirun=True)
    assert len(points) == 2 * (2 + 3 + 1)
    assert len({point.run.name for point in points}) == len(points)
    of_b = [point.run for point in points if "experiment=b" in point.overrides]
    assert [run.job.steps for run in of_b] == [5, 5, 6, 6, 7, 7]
    assert {run.job.seed for run in of_b} != {7}
    given = compose(["experiment=a,b", "job.steps=4", "nodes=2"], multirun=True)
    assert [(point.run.job.steps, point.run.nodes) for point in given] == [(4, 2), (4, 2)]


@pytest.mark.usefixtures("experiments")
def test_a_mapping_that_sets_what_an_experiment_sweeps_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"job.steps=5,6,7 and job=\{steps: 4\} set the same key"):
        compose(["experiment=b", "job={steps: 4}"], multirun=True)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("data.path=/x/a,b.txt", "or set \"data.path='/x/a,b.txt'\" for one value with a comma."),
        ("cluster.modules=a,b", "or set 'cluster.modules=[a,b]' for a list."),
        ("nodes=1,2", "for one run of each value."),
    ],
)
def test_a_comma_in_a_single_run_is_refused_with_the_spelling_of_its_type(override: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose([override], multirun=False)
    assert str(refused.value).endswith(remedy)
