"""The value of a text key is the text that was typed or written, whatever number or truth it looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.errors import ConfigError
from jobs.explore.campaign.campaign_file import read_trials
from jobs.frozen import dump_run
from jobs.plan.compose import compose
from jobs.plan.measured_table import read_table
from jobs.plan.model_file import read_model_file
from jobs.rundir import load_run
from tests.support.composing import one

# Hydra's grammar makes a number or a boolean of most of them.
TYPED = (
    *("20261127_01", "1_0", "12_34", "3.10", "1e3", "1E+05", "1e-3", "5.", ".5", "-0", "+7", "1_000.0_1", "0"),
    *("true", "TRUE", "False", "nan", "NaN", "inf", "-Inf", "0123", "0x1F", "007", "16:30:00", "1.2.3", "2026-11-27"),
    *("yes", "on", "1 2", "1-2", "123abc", "None", "none", "nUllable", "v1_0", "a/1_0", "%j", "1e", "e3", "1_"),
)
# YAML 1.1 makes a number, a boolean or a time of most of them.
WRITTEN = (
    *("0123", "16:30:00", "12:30", "010", "0b11", "0x1F", "0o17", "1_000", "3.10", "1e3", "1e-3", "5.", ".5", "-0"),
    *("+7", "yes", "No", "on", "OFF", "y", "TRUE", "false", ".inf", "-.INF", ".NaN", "2026-11-27", "190:20:30.15"),
    *("20261127_01", "007", "1.2.3", "none", "2026-11-27 10:00:00", "!!int 5"),
)


def test_a_text_key_of_the_command_line_has_the_characters_that_were_typed() -> None:
    entries = {f"V{number}": text for number, text in enumerate(TYPED)}
    mapping = ", ".join(f"{name}: {text} " for name, text in entries.items())
    run = one(
        *(f"cluster.env.{name}={text}" for name, text in entries.items()),
        f"cluster.modules=[ {' , '.join(TYPED)} ]",
        f"cluster.sbatch={{{mapping}}}",
        f"++network.env={{{mapping}}}",
        f"cluster={{pbs: {{{mapping}}}, qos: 1_0}}",
        "+cluster.partition=1_0",
        "data.cache_dir=/1_0",
    ).run
    assert run.cluster.env == run.cluster.sbatch == run.cluster.pbs == run.network.env == entries
    assert run.cluster.modules == list(TYPED)
    assert (run.cluster.qos, run.cluster.partition, run.data.cache_dir) == ("1_0", "1_0", "/1_0")
    points = compose([f"cluster.account={','.join(TYPED)}"], multirun=True)
    assert [point.run.cluster.account for point in points] == list(TYPED)


def test_a_text_key_of_a_file_has_the_characters_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    for group in ("cluster", "experiment"):
        (tmp_path / group).mkdir()
    mapping = ", ".join(f"V{number}: {text}" for number, text in enumerate(WRITTEN))
    lines = "\n  ".join(f"V{number}: {text}" for number, text in enumerate(WRITTEN))
    (tmp_path / "cluster/mine.yaml").write_text(
        f"name: 1_0\nranks_per_node: 2\ngpus: false\naccount: 0123\nmodules: [{', '.join(WRITTEN)}]\n"
        f"env: {{{mapping}}}\nsbatch:\n  {lines}\n"
    )
    (tmp_path / "experiment/mine.yaml").write_text(
        f"# @package _global_\ndefaults:\n  - override /cluster: mine\nsweep: 1_0\ncluster:\n  qos: on\n"
        f"network:\n  env: &env {{{mapping}}}\nruns_dir: 010\nname: 1e3\n"
    )
    run = one("experiment=mine").run
    written = [text.removeprefix("!!int ") for text in WRITTEN]
    assert run.cluster.modules == written
    for entries in (run.cluster.env, run.cluster.sbatch, run.network.env):
        assert list(entries.values()) == written
    assert (run.cluster.name, run.cluster.account, run.cluster.qos, run.sweep) == ("1_0", "0123", "on", "1_0")
    assert (Path(run.runs_dir).name, run.name) == ("010", "1e3")
    (tmp_path / "config.yaml").write_text(dump_run(run))
    assert load_run(tmp_path / "config.yaml") == run


def test_a_sweep_over_texts_keeps_each_and_names_its_run_after_it() -> None:
    points = compose(["cluster.account=1_0,3.10,TRUE,a,'0 1'", "sweep=20261127_01"], multirun=True)
    assert [point.run.cluster.account for point in points] == ["1_0", "3.10", "TRUE", "a", "0 1"]
    assert [str(point.run.name).rpartition("=")[2] for point in points] == ["1_0", "3.10", "TRUE", "a", "0_1"]
    assert {point.run.sweep for point in points} == {"20261127_01"}
    for point in points:
        assert one(*point.overrides).run.cluster.account == point.run.cluster.account


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("choice(1_0,3.10)", ["1_0", "3.10"]),
        ("str(1_0,3.10)", ["1_0", "3.10"]),
        ("str(20261127_01)", ["20261127_01"]),
        ("shuffle(choice(1_0))", ["1_0"]),
        ("range(8,11)", ["8", "9", "10"]),
        ("int(3.10)", ["3"]),
        ("null", [None]),
        ("null,1_0", [None, "1_0"]),
        ("'null',\"1_0\"", ["null", "1_0"]),
        ("${cluster.name}_1", ["local_1"]),
        ("\\'1_0", ["'1_0"]),
    ],
)
def test_functions_null_quotes_and_interpolations_mean_what_they_did(override: str, expected: list[str | None]) -> None:
    if override.startswith("\\"):
        override = f'"{override[1:]}"'
    points = compose([f"cluster.account={override}"], multirun=True)
    assert [point.run.cluster.account for point in points] == expected


def test_keys_of_other_types_are_read_as_before() -> None:
    run = one("nodes=1_0", "job.learning_rate=1e-4", "job.export=TRUE", "tune=halving", "tune.steps=[8,2_4]",
              "cluster.ranks_per_node=2", "ranks_per_node=${cluster.ranks_per_node}", "scaling.global_batch_size=40",
              "job.precision=float32", "job.checkpoint_every_steps=null").run  # fmt: skip
    assert (run.nodes, run.job.learning_rate, run.job.export, run.ranks_per_node) == (10, 1e-4, True, 2)
    assert run.tune is not None
    assert run.tune.steps == [8, 24]


def test_an_experiment_sweeps_texts_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/2026_11.yaml").write_text(
        "# @package _global_\nsweep: 20261127_01\nhydra:\n  sweeper:\n    params:\n      cluster.account: 0123,4_5\n"
        "      cluster.qos: 0777\n      nodes: 1,2\n"
    )
    points = compose(["experiment=2026_11"], multirun=True)
    assert [(p.run.cluster.account, p.run.cluster.qos, p.run.nodes) for p in points] == [
        ("0123", "0777", 1), ("0123", "0777", 2), ("4_5", "0777", 1), ("4_5", "0777", 2)
    ]  # fmt: skip
    assert points[0].run.sweep == "20261127_01"


def test_names_of_attempts_models_and_columns_of_tables_are_text_too(tmp_path: Path) -> None:
    file = tmp_path / "attempts.yaml"
    file.write_text("1_0: [cluster.account=0123]\non:\n012: []\n")
    assert list(read_trials(file)) == ["1_0", "on", "012"]
    tiny = Path("conf/model/tiny.yaml").read_text().replace("name: tiny", "name: 1_0")
    (tmp_path / "own.yaml").write_text(tiny)
    assert read_model_file(tmp_path / "own.yaml").name == "1_0"
    (tmp_path / "t.csv").write_text("nodes,cluster.account,step_time_s\n1,12_34,3.0\n")
    assert [each.run.cluster.account for each in read_table(tmp_path / "t.csv")] == ["12_34"]


def test_the_printed_configuration_is_the_planned_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--cfg", "job", "sweep=20261127_01", "cluster.env.A=1_0", "model=tiny"]) == 0
    printed = capsys.readouterr().out
    assert "sweep: '20261127_01'" in printed
    assert "A: '1_0'" in printed
    assert main(["explain", "cluster.account", "cluster.account=12_34"]) == 0
    assert "default  '12_34'" in capsys.readouterr().out


@pytest.mark.parametrize("override", ["cluster.env.A=null", "cluster.env={A: null}", "cluster.modules=[null]"])
def test_null_in_place_of_a_text_is_refused_with_the_quoted_spelling(override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        one(override)
    assert "'null'" in str(refused.value)


def test_choices_whose_names_look_like_numbers_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    (tmp_path / "cluster").mkdir()
    for name in ("007", "1_0", "true"):
        lines = {"name": name, "ranks_per_node": 2, "gpus": False}
        (tmp_path / f"cluster/{name}.yaml").write_text(json.dumps(lines))
        assert one(f"cluster={name}").run.cluster.name == name
    points = compose(["cluster=007,1_0,true"], multirun=True)
    assert [point.run.cluster.name for point in points] == ["007", "1_0", "true"]
