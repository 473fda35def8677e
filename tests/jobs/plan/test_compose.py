"""Composition: overrides and configuration files become runs, or a refusal with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import ConfigError
from jobs.frozen import dump_run
from jobs.parallelism import Sharding, Strategy
from jobs.plan.compose import compose
from jobs.plan.legality import warnings
from jobs.plan.table import plan_notes
from jobs.rundir import load_run
from jobs.schema import LauncherKind
from tests.support.composing import CONF, one, options, refusal
from tests.support.training import long

# Values that the files leave to the user.
FILL_IN = {"data.path": "given.json", "cluster.account": "given"}


def choice(group: str, option: str) -> list[str]:
    """An override for an option, with the values that its file leaves to the user."""
    text = (CONF / group / f"{option}.yaml").read_text()
    missing = [line.split(":")[0] for line in text.splitlines() if line.endswith("???")]
    return [f"{group}={option}", *(f"{group}.{key}={FILL_IN[f'{group}.{key}']}" for key in missing)]


ZERO = {"zero1", "zero2", "zero3"}
# Values that some files require.
NEEDS = {
    "single": ("ranks_per_node=1",),
    "tp_pp": ("nodes=2",),
    "tp_pp_fsdp": ("nodes=2",),
    "cp_fsdp": ("cluster=xe9680_h100",),
    "evaluate": ("data.test_split=0.2", "ranks_per_node=1"),
    "litgpt": ("parallelism=single", "ranks_per_node=1", "engine.compile=true", "data.held_out_samples=8"),
    "serve": ("engine=vllm",),
    **dict.fromkeys(("vllm", "vllm_cpu"), ("job=serve",)),
    "program": ("program=hpl",),
    "litgpt_serve": ("job=serve", "serving.client=ab", "serving.prompts=1"),
    "liger": ("cluster=xe9680_h100",),
    **dict.fromkeys(("pilot", "pbs_pilot"), ("launcher.pilot_nodes=1", "launcher.pilot_wall_time_min=61")),
    **dict.fromkeys(("roce", "infiniband", "infiniband_4_adapters"), ("cluster=xe9680_h100",)),
    **dict.fromkeys(("all", "all_and_serve"), ("data.held_out_samples=8", "job.export=true")),
    **dict.fromkeys(ZERO, ("engine=deepspeed",)),
}


@pytest.mark.parametrize(
    ("group", "option"),
    [(group.name, option) for group in sorted(CONF.iterdir()) if group.is_dir() for option in options(group.name)
     if group.name != "experiment" and not group.name.startswith("_")],
)  # fmt: skip
def test_every_file_composes_and_survives_being_frozen(group: str, option: str, tmp_path: Path) -> None:
    point = one(
        *choice(group, option),
        *(("job=program", "nodes=2") if group == "program" else NEEDS.get(option, ())),
        # Scaling has a batch of its own, and programs have none.
        *(() if {group, option} & {"scaling", "program"} else ("scaling.global_batch_size=64",)),
    )
    (tmp_path / "config.yaml").write_text(dump_run(point.run))
    assert load_run(tmp_path / "config.yaml") == point.run


# One of each kind in CI, all in `make test-all`.
KINDS = {"mixtral_8x7b", "falcon_180b"}


@pytest.mark.parametrize("model", [each if each in KINDS else long(each) for each in options("model")])
@pytest.mark.parametrize(("cluster", "ranks"), [pytest.param("local", 4, marks=pytest.mark.long), ("xe9680_h100", 16)])
def test_every_model_composes_with_every_parallelism_on_cpu_and_gpu_clusters(
    model: str, cluster: str, ranks: int
) -> None:
    on_gpus_only = {"cp_fsdp"} if cluster == "local" else set()
    described = one(f"model={model}").run.model
    illegal = {
        # Embedding and head of one weight are on one rank, and stages of unequal length are asked for.
        "pp": described.tie_embeddings or described.layers % 2 == 1,
        # A single head of keys is not divided.
        "tp": described.kv_heads == 1,
        # The ring has no windows, and latent attention's values are of another size.
        "cp": described.sliding_window is not None or described.latent is not None,
    }
    refused = {name for name in options("parallelism") for axis, is_so in illegal.items() if is_so and axis in name}
    choices = ",".join(set(options("parallelism")) - {"single", *ZERO} - on_gpus_only - refused)
    points = compose(
        [
            f"model={model}",
            f"parallelism={choices}",
            f"cluster={cluster}",
            "nodes=2",
            "scaling.global_batch_size=64",
            "gpu.memory_gb=null",
        ],
        multirun=True,
    )
    assert {point.run.ranks for point in points} == {ranks}


def test_nodes_are_a_sweep_axis_and_name_the_runs() -> None:
    points = compose(["nodes=1,2,4", "scaling.global_batch_size=16"], multirun=True)
    assert [point.run.name for point in points] == ["tiny-ddp-n1x2", "tiny-ddp-n2x2", "tiny-ddp-n4x2"]
    assert [point.run.ranks for point in points] == [2, 4, 8]


def test_a_run_that_serves_is_named_by_its_server() -> None:
    for server, program in (
        ("engine=litgpt_serve", "litgpt_serve"), ("engine=vllm", "vllm"),
        ("engine.server.name=sglang engine=vllm", "sglang"),
    ):  # fmt: skip
        run = one(*NEEDS["litgpt_serve"], *server.split()).run
        assert run.name == f"tiny-{program}-ddp-n1x2"


def test_a_swept_value_without_a_place_in_the_name_is_appended_to_it() -> None:
    points = compose(["job.learning_rate=1e-3,1e-4"], multirun=True)
    assert [point.run.name for point in points] == [
        "tiny-ddp-n1x2-learning_rate=0.001",
        "tiny-ddp-n1x2-learning_rate=0.0001",
    ]


def test_points_of_different_models_share_one_sweep_directory() -> None:
    points = compose(["model=tiny,pythia_14m"], multirun=True)
    (sweep,) = {point.run.sweep for point in points}
    assert str(sweep).startswith("tiny-2")


def test_ranges_and_groups_sweep_as_hydra_writes_them() -> None:
    points = compose(["repeat=range(1,4)", "parallelism=ddp,fsdp_full"], multirun=True)
    assert len(points) == 6
    assert {point.run.parallelism.sharding for point in points} == {None, Sharding.FULL_SHARD}


def test_the_command_line_overrides_the_sweep_an_experiment_declares() -> None:
    points = compose(["experiment=demo", "parallelism=ddp", "repeat=1"], multirun=True)
    assert [point.run.ranks for point in points] == [1, 2]


def test_points_that_share_a_composition_do_not_share_values() -> None:
    first, second = compose(["job.seed=1,2"], multirun=True)
    assert (first.run.job.seed, second.run.job.seed) == (1, 2)


@pytest.mark.parametrize(
    "overrides",
    [
        # A name of both swept keys; ranks of a key that is not theirs; a section and a key in it; none of these.
        ["name='n${nodes}-${job.seed}'", "nodes=1,2", "job.seed=1,2"],
        ["nodes=1,2", "cluster.ranks_per_node=1,2", "name='${nodes}x${ranks_per_node}'"],
        ["job=finetune_lora", "job.lora={rank:4},{rank:8}", "job.lora.alpha=8,16", "job.seed=1,2"],
        ["nodes=1,2", "scaling=strong,weak", "job.micro_batch_size=1,2", "job.steps=2,3", "cluster.sbatch={a: 1}"],
    ],
)
def test_the_points_of_a_sweep_are_those_that_are_composed_alone(overrides: list[str]) -> None:
    points = compose([*overrides, "sweep=s"], multirun=True, judge=lambda _run: [])
    assert len(points) >= 4
    for point in points:
        (alone,) = compose([*point.overrides, f"name='{point.run.name}'"], multirun=False, judge=lambda _run: [])
        assert alone.run == point.run


def test_a_value_override_means_the_same_whether_swept_or_not() -> None:
    swept = compose(["job.seed=7,8", "name=same${job.seed}", "sweep=s"], multirun=True)[0]
    alone = one("job.seed=7", "name=same${job.seed}", "sweep=s")
    assert dump_run(swept.run) == dump_run(alone.run)


def test_a_cluster_brings_its_gpu_and_launcher_and_the_user_may_change_both() -> None:
    brought = one("cluster=xe9680_h100", "job.micro_batch_size=1").run
    assert (brought.gpu.name, brought.launcher.kind) == ("h100_sxm", LauncherKind.slurm)
    changed = one("cluster=xe9680_h100", "job.micro_batch_size=1", "gpu=h200_sxm", "launcher=dry").run
    assert (changed.gpu.name, changed.launcher.kind) == ("h200_sxm", LauncherKind.dry)


def test_paths_are_made_absolute_because_a_job_starts_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run = one("data=text", "data.path=some.txt", "data.tokenizer=tok").run
    assert (run.data.path, run.data.tokenizer) == (str(tmp_path / "some.txt"), str(tmp_path / "tok"))


def test_a_site_adds_its_own_files_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster").mkdir()
    generic = (CONF / "cluster/generic_slurm.yaml").read_text()
    (tmp_path / "cluster/mine.yaml").write_text(generic.replace("generic_slurm", "mine"))
    assert one("cluster=mine", f"hydra.searchpath=[file://{tmp_path}]").run.cluster.name == "mine"
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    assert one("cluster=mine").run.cluster.name == "mine"


@pytest.mark.parametrize(
    ("overrides", "mistakes"),
    [
        ("nodes=0 job.steps=-1 launcher.requeues=-1", ["nodes=0 ", "job.steps=-1 ", "launcher.requeues=-1 "]),
        ("name=a/b job.seed=-1 parallelism.tensor=3", ["job.seed=-1 ", "name='a/b' ", "parallelism.tensor=3 "]),
    ],
)
def test_all_mistakes_that_can_be_judged_are_shown_at_once_each_on_its_line(
    overrides: str, mistakes: list[str]
) -> None:
    lines = [line.strip() for line in refusal(*overrides.split()).splitlines() if line.startswith("    ")]
    assert [mistake for mistake in mistakes if not any(line.startswith(mistake) for line in lines)] == []


def test_a_stage_is_left_out_by_null() -> None:
    stages = one("stages=all", "stages.evaluate=null").run.stages
    assert stages.prepare is not None
    assert stages.evaluate is None
    assert one().run.stages.prepare is None


def test_an_experiment_may_choose_what_another_job_does_not_read() -> None:
    """Its file is of the training; the words are for what a user typed, and a site may set a place for all runs."""
    run = one("experiment=one_gpu", "job=image_train", "data.cache_dir=/cache").run
    assert run.data.name == "jpeg"


def test_one_illegal_point_refuses_the_whole_sweep_and_names_every_reason() -> None:
    message = refusal("nodes=1,2,3", "parallelism.tensor=1,3", "scaling.global_batch_size=8", multirun=True)
    assert message.startswith("4 of 6 points cannot run; nothing was prepared or submitted.")
    assert "tiny-ddp-n3x2-tensor=1:\n    GBS 8 is not a multiple" in message


def test_of_many_illegal_points_all_are_named_and_the_first_ten_explained() -> None:
    message = refusal(f"nodes={','.join(str(n) for n in range(1, 31))}", "parallelism.tensor=7", multirun=True)
    assert message.startswith("30 of 30 points cannot run;")
    assert message.count("Nearest that can run") == 10
    assert message.splitlines()[-1].startswith("Neither can these 20: tiny-ddp-n11x2, tiny-ddp-n12x2, ")
    assert message.endswith("tiny-ddp-n30x2.")


def test_points_with_one_name_are_refused() -> None:
    assert "2 points share the name 'same'" in refusal("name=same", "repeat=1,2", multirun=True)


def test_tensor_parallelism_across_nodes_is_a_warning() -> None:
    from jobs.plan.legality import warnings

    run = one("nodes=2", "parallelism.tensor=4").run
    assert "puts ranks of one TP group on different nodes" in warnings(run)[0]
    assert not [w for w in warnings(one("parallelism.tensor=2", "job.micro_batch_size=1").run) if "TP group" in w]


@given(
    nodes=st.integers(1, 5),
    ranks=st.integers(1, 5),
    tensor=st.integers(1, 5),
    pipeline=st.integers(1, 5),
    mbs=st.integers(1, 5),
    gbs=st.integers(1, 64),
    parallelism=st.sampled_from(options("parallelism")),
)
@settings(max_examples=30)
def test_a_random_choice_is_refused_with_words_or_has_a_whole_grid_and_batch(
    nodes: int, ranks: int, tensor: int, pipeline: int, mbs: int, gbs: int, parallelism: str
) -> None:
    from jobs.layout import accumulation, layout_of

    overrides = [f"nodes={nodes}", f"ranks_per_node={ranks}", f"parallelism={parallelism}",
                 f"parallelism.tensor={tensor}", f"parallelism.pipeline={pipeline}",
                 f"job.micro_batch_size={mbs}", f"scaling.global_batch_size={gbs}"]  # fmt: skip
    try:
        run = one(*overrides).run
    except ConfigError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "cannot run; nothing was prepared or submitted." in refused
        return
    layout = layout_of(run)
    assert layout.dp * run.parallelism.tensor * run.parallelism.pipeline == run.ranks
    assert accumulation(run) * mbs * layout.dp == gbs
    assert run.parallelism.strategy is not Strategy.single or run.ranks == 1 or layout.dp == 1


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("nodes=range(4,1)", "nodes=range(4,1): the sweep is empty. Set nodes=A,B,C, or nodes=range(1,5) for 1 to 4."),
        ("model=glob(zzz*)", "model=glob(zzz*): the sweep is empty."),
        ("nodes=range(1,3,0)", "nodes=range(1,3,0): range() arg 3 must not be zero. Set nodes=A,B,C"),
        ("nodes=interval(1,3)", "Set nodes=A,B,C, or nodes=range(1,5) for 1 to 4."),
        ("repeat=range(1,1000000000)", "repeat=range(1,1000000000): a sweep has at most 10,000 points."),
    ],
)
def test_a_sweep_over_nothing_or_too_much_is_refused(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose([override], multirun=True)
    assert expected in str(refused.value)


def test_axes_that_multiply_to_too_many_points_are_refused_before_any_is_composed() -> None:
    with pytest.raises(ConfigError, match="The sweep has 1,000,000 points; the limit is 10,000"):
        compose(["nodes=range(1,1001)", "repeat=range(1,1001)"], multirun=True)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"name: [a", "mine.yaml"),
        (b"name:\n\tgpus: 1", "mine.yaml"),
        (b"partition: gpu\npartition: cpu\n", "found duplicate key partition"),
        (b"defaults: nope\n", "defaults must be a list (got str)"),
        (b"defaults: [mine]\n", "A configuration file cannot be used: "),
        (b"\xff\xfe", "A configuration file cannot be used: "),
        (b'name: "\\ud800"\n', "mine.yaml: "),
    ],
)
def test_a_sites_file_that_is_no_configuration_is_refused_with_where_it_is(
    content: bytes, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/mine.yaml").write_bytes(content)
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    message = refusal("cluster=mine")
    assert expected in message
    assert str(tmp_path) in message


FOUR_LINES = "name: mine\npartition: gpu\nranks_per_node: 4\ngpus: true\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site's own directory with a cluster of four lines."""
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    for group in ("cluster", "experiment", "model"):
        (tmp_path / group).mkdir()
    (tmp_path / "cluster/mine.yaml").write_text(FOUR_LINES)
    return tmp_path


@pytest.mark.usefixtures("site")
def test_a_cluster_file_of_four_lines_is_enough() -> None:
    run = one("cluster=mine").run
    assert (run.launcher.kind, run.cluster.account, run.ranks, run.global_batch_size) == (
        LauncherKind.slurm,
        None,
        4,
        8,
    )


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("cluster/mine.yaml", FOUR_LINES.replace("partition", "partitoin"),
         ", line 2: cluster.partitoin is not a configuration key. Did you mean cluster.partition"),
        ("cluster/mine.yaml", FOUR_LINES.replace("4", "four"),
         ", line 3: Value 'four' of type 'str' could not be converted to Integer (key: cluster.ranks_per_node)"),
        ("cluster/mine.yaml", FOUR_LINES + "qos: ${oops}\n", ", line 5: Interpolation key 'oops' not found"),
        ("cluster/mine.yaml", FOUR_LINES + "account: ???\n", "cluster.account has no value, and this choice needs"),
        ("experiment/mine.yaml", "# @package _global_\njob:\n  learning_rate: ???\n", "job.learning_rate has no value"),
        ("cluster/mine.yaml", "- a\n", ": Invalid type assigned: list is not a subclass of Cluster."),
        ("experiment/mine.yaml", "# @package _global_\njob:\n  stepz: 5\n", ", line 3: job.stepz is not a"),
        ("experiment/mine.yaml", "job:\n  steps: 5\n", "its first line must be `# @package _global_`"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_sites_file_is_refused_with_file_and_line(
    file: str, content: str, expected: str, site: Path
) -> None:
    (site / file).write_text(content)
    message = refusal(f"{Path(file).parent}=mine")
    assert str(site / file) in message
    assert expected in message


def test_what_a_cluster_file_leaves_to_the_user_may_be_set_by_an_experiment_or_an_override(site: Path) -> None:
    (site / "cluster/mine.yaml").write_text(FOUR_LINES + "qos: ???\n")
    (site / "experiment/mine.yaml").write_text("# @package _global_\ncluster:\n  qos: long\n")
    assert one("cluster=mine", "experiment=mine").run.cluster.qos == "long"
    for override in ("cluster.qos=short", "++cluster.qos=short"):
        assert one("cluster=mine", override).run.cluster.qos == "short"


def test_an_empty_file_of_a_cluster_is_refused_with_what_it_lacks(site: Path) -> None:
    (site / "cluster/mine.yaml").write_text("")
    assert "cluster/mine.yaml: cluster.ranks_per_node is not set. Set cluster.ranks_per_node=NUMBER" in refusal(
        "cluster=mine"
    )


def test_a_path_as_a_choice_is_refused_with_how_to_make_it_one(site: Path) -> None:
    message = refusal(f"model={site}/model/mine.yaml")
    assert f"a choice is a name, not a path. Set SLURMSCALE_SITE={site} and model=mine." in message
    assert "Move the file to DIR/model/own.yaml, set SLURMSCALE_SITE=DIR" in refusal("model=./own.yaml")


@pytest.mark.parametrize(
    ("overrides", "batch"),
    [
        ("cluster=xe9680_h100", 16),
        ("nodes=1,2", 8),
        ("nodes=1,3 job.micro_batch_size=1", 12),
        ("job.micro_batch_size=3", 12),
        ("parallelism=pp ranks_per_node=4 parallelism.pipeline=4 job.micro_batch_size=4", 16),
        ("nodes=1,2 scaling.global_batch_size=32", 32),
    ],
)
def test_the_default_global_batch_is_one_that_fits_every_point(overrides: str, batch: int) -> None:
    points = compose(overrides.split(), multirun=True)
    assert {point.run.global_batch_size for point in points} == {batch}
    # Also recomposed by itself, as an attempt's baseline is.
    assert one(*points[0].overrides).run.global_batch_size == batch


def test_a_plan_needs_neither_account_nor_data_path() -> None:
    overrides = ["cluster=gadi_gpuvolta", "data=alpaca"]
    (point,) = compose(overrides, multirun=False, to_submit=False)
    assert point.unset == ("cluster.account", "data.path")
    assert "cluster.account and data.path have no value" in refusal(*overrides)
    (point,) = compose([*overrides, "cluster.account=ab12", "data.path=x"], multirun=False, to_submit=False)
    assert point.unset == ()


def test_a_site_that_is_no_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "typo"))
    assert "typo is not a directory. Set it to the directory that holds your cluster/NAME.yaml" in refusal("nodes=1")


@pytest.mark.parametrize(("steps", "is_warned_of"), [(1, True), (2, True), (3, False), (8, False)])
def test_a_run_without_a_steady_step_is_warned_of(steps: int, is_warned_of: bool) -> None:
    found = warnings(one(f"job.steps={steps}", "job.unmeasured_steps=2").run)
    assert any("leaves no steady step after job.unmeasured_steps=2" in text for text in found) == is_warned_of


def test_the_plan_of_a_storage_test_contains_the_space_that_it_needs() -> None:
    given = ("job=checkpoint_io", "model=llama3_8b", "storage.path=/fast")
    # 8.03 G parameters x 12 bytes: weights and two moments in float32.
    assert any("needs 96.4 GB in /fast" in note and "REDUCED" not in note for note in plan_notes([one(*given).run]))
    reduced = plan_notes([one(*given, "storage.checkpoint.fraction=0.5").run])
    assert any("needs 48.2 GB in /fast, REDUCED to 0.5 of its rows" in note for note in reduced)
