"""Words of refusals and warnings: usual names, quoted spellings, the habits of Hydra, and no nonsense to set."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.cli import main
from jobs.engines.native.loss_chunk import loss_chunk
from jobs.errors import ConfigError
from jobs.explore.search import more_nodes, search
from jobs.plan.compose import compose
from jobs.plan.keys import GROUPS, keys
from jobs.plan.legality import warnings
from jobs.plan.synonyms import usual_names
from tests.support.cli import printed_words
from tests.support.composing import one, options, refusal


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sweep=\udce9t\udce9", "sweep=\\xe9t\\xe9: this is not UTF-8."),
        ("\udce9=1", "this is not UTF-8."),
        ("model=" + "m" * 300, "A configuration file cannot be used: [Errno 36] File name too long"),
    ],
)
def test_odd_characters_and_lengths_are_refused_in_words(override: str, expected: str) -> None:
    assert expected in refusal(override)


def test_no_advice_is_a_number_that_nobody_can_set() -> None:
    for override in ("nodes=99999999999999999999", "job.learning_rate=nan", "job.learning_rate=-inf"):
        advice = refusal(override).partition(" Set ")[2]
        assert not any(wrong in advice for wrong in ("=nan", "=inf", "=-", "9999999", "=1000.0", "=0.0."))


def test_every_usual_name_leads_to_a_key_or_choice_that_exists() -> None:
    for word, here in usual_names().items():
        for each in here:
            key, _, value = each.partition("=")
            assert key in keys() or key in GROUPS, word
            known = options(key) if key in GROUPS else keys()[key].choices if key in keys() else []
            assert not value or value in known, word


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("job.steps=4", "job.warmup_steps=5"), "the learning rate never reaches job.learning_rate=0.0003"),
        (("job.steps=10", "job.checkpoint_every_steps=11"), "the only checkpoint is written after the last step"),
        (("cluster.setup=[false]",), "cluster.setup has no effect with launcher=local"),
        (("cluster.modules=[a]", "cluster.sbatch={a: b}"), "cluster.modules and cluster.sbatch have no effect"),
        (("data=random", "data.path=/x"), "data.path=/x has no effect with data.source=random"),
        (("launcher.max_running=2",), "launcher.max_running has no effect with launcher=local"),
        (("cluster=generic_slurm", "launcher.pilot_nodes=2"), "no effect with launcher=slurm. Leave it out, or set"),
        (("cluster=generic_slurm", "cluster.pbs={v: x}"), "set launcher=pbs."),
        (("cluster=generic_slurm", "launcher.max_running=2"), None),
        (("cluster=aspire2a", "cluster.account=a", "cluster.pbs={v: x}"), None),
        (("job.steps=5", "job.warmup_steps=5"), None),
        (("job.steps=10", "job.checkpoint_every_steps=10"), None),
        (("cluster.env.A=b",), None),
    ],
)
def test_settings_without_their_effect_are_warned_of(overrides: tuple[str, ...], expected: str | None) -> None:
    found = warnings(one(*overrides).run)
    if expected is None:
        assert not [text for text in found if "never reaches" in text or "only checkpoint" in text or "effect" in text]
    else:
        assert any(expected in text for text in found)


@pytest.mark.parametrize(
    "overrides",
    [
        "model=tiny parallelism.context=512 job.sequence_length=128",
        "model=tiny parallelism.context=256 parallelism.tensor=2 parallelism.sequence_parallel=true",
        "model=llama2_7b parallelism.context=4096 nodes=512",
        "model=tiny model.max_sequence_length=2 job.sequence_length=2 parallelism.tensor=4 "
        "parallelism.sequence_parallel=true",
        "model=tiny job=p_tuning job.init_from=/x parallelism.context=512",
    ],
)
def test_a_split_that_no_sequence_of_the_model_allows_is_refused_with_smaller_degrees(overrides: str) -> None:
    message = refusal("cluster=xe9680_h100", "data=random", "nodes=64", *overrides.split())
    assert "is split along the sequence and is not a multiple of" in message
    assert "smaller degrees" in message or "parallelism.sequence_parallel=false" in message


def test_a_search_tries_node_counts_that_pipelines_divide_and_claims_nothing_of_others() -> None:
    run = compose(["cluster=xe9680_h100", "model=llama31_405b", "data=random", "nodes=64"], multirun=False,
                  judge=lambda _run: [], to_submit=False)[0].run  # fmt: skip
    # 126 layers: pipelines of 9 stages on 72 nodes, of 7 on 70; doubles of 64 have no whole stages beyond 2.
    assert {66, 70, 72, 84, 126, 128, 256} <= set(more_nodes(run))
    with pytest.raises(ConfigError) as refused:
        search(["cluster=xe9680_h100", "model=llama31_405b", "data=random", "nodes=1", "cluster.max_nodes=2"], None)
    assert "Nor is one on nodes=2; other counts were not tried." in str(refused.value)


def test_leaving_out_the_memory_check_does_not_change_the_run() -> None:
    gpus = ("cluster=xe9680_h100", "model=llama3_8b", "data=random", "job.precision=bfloat16", "sweep=s",
            "parallelism=fsdp_full", "job.micro_batch_size=8", "job.sequence_length=8192",
            "scaling.global_batch_size=64", "engine.activation_checkpointing=full")  # fmt: skip
    ways: tuple[list[str], ...] = ([], ["gpu.memory_check=false"], ["gpu.memory_gb=null"])
    checked, unchecked, null = (one(*gpus, *way).run for way in ways)
    assert unchecked == null
    assert loss_chunk(checked) == loss_chunk(unchecked) is not None
    unchecked.gpu.memory_check = True
    assert checked == unchecked
    large = ("cluster=xe9680_h100", "model=llama3_70b", "data=random")
    assert "set gpu.memory_check=false to try it anyway" in refusal(*large)
    assert any("memory is too small" in text for text in warnings(one(*large, "gpu.memory_gb=null").run))


def test_a_site_of_one_level_too_deep_is_refused_with_the_directory_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/mine.yaml").write_text("name: mine\nranks_per_node: 2\ngpus: false\n")
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path / "cluster"))
    assert f"SLURMSCALE_SITE={tmp_path}" in refusal("cluster=mine").partition(" is the directory of one group")[2]


@pytest.mark.parametrize("lines", ["gpu: h100_sxm\n", "defaults:\n  - /gpu@_global_.gpu: h100_sxm\n"])
def test_a_gpu_in_a_cluster_file_is_answered_with_how_its_defaults_choose_it(
    lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/mine.yaml").write_text(f"{lines}name: mine\nranks_per_node: 2\ngpus: true\n")
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    assert "defaults: [{override /gpu@_global_.gpu: NAME}, _self_]" in refusal("cluster=mine")


def test_a_cluster_file_is_written_with_its_gpu_and_composes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURMSCALE_SITE", str(tmp_path))
    written = ["cluster", "my_cluster", "--gpu", "h100_sxm", "--ranks-per-node", "4", "--partition", "0123"]
    assert main(written) == 0
    assert "set cluster=my_cluster" in capsys.readouterr().out
    run = one("cluster=my_cluster").run
    assert (run.gpu.name, run.ranks, run.cluster.partition) == ("h100_sxm", 4, "0123")
    assert main(written) == 2
    for arguments, expected in (
        (["a/b"], "is not the name of a file"),
        (["local"], "is a cluster already"),
        (["x", "--gpu", "h100"], "Did you mean h100_pcie or h100_sxm?"),
        (["x", "--ranks-per-node", "0"], "is not a positive number"),
    ):
        assert main(["cluster", *arguments]) == 2
        assert expected in printed_words(capsys)
    assert sorted(path.name for path in tmp_path.rglob("*.yaml")) == ["my_cluster.yaml"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("plan --config-dir=X", "SLURMSCALE_SITE"),
        ("plan -cd X nodes=1", "SLURMSCALE_SITE"),
        ("submit nodes=1 --config-path X", "SLURMSCALE_SITE"),
        ("plan -cn foo", "experiment=NAME"),
        ("tune --config-name foo", "experiment=NAME"),
        ("plan --shell-completion", "slurmscale completion bash"),
        ("plan --hydra-help", "slurmscale explain"),
        ("plan --run nodes=1", "slurmscale submit"),
    ],
)
def test_an_option_of_hydra_is_answered_with_what_takes_its_place(
    arguments: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert "is an option of Hydra" in (printed := printed_words(capsys))
    assert expected in printed


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lr", ["lr is called job.learning_rate here.", "job.learning_rate"]),
        ("fsdp", ["parallelism=fsdp_full", "parallelism.strategy=fsdp"]),
        ("Sequence", ["job.sequence_length", "model.max_sequence_length"]),
        ("checkpoint", ["job.checkpoint_every_steps", "engine.activation_checkpointing"]),
        ("h100", ["gpu=h100_sxm", "cluster=xe9680_h100"]),
    ],
)
def test_explain_lists_what_has_a_word(word: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == 0
    printed = capsys.readouterr().out
    assert [text for text in expected if text not in printed] == []


def test_illegal_points_are_left_out_on_request_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["plan", "-m", "parallelism.tensor=1,3", "scaling.global_batch_size=8"]
    assert main(sweep) == 2
    assert "To run the others, add --skip-illegal" in printed_words(capsys)
    assert main([*sweep, "--skip-illegal"]) == 0
    printed = printed_words(capsys)
    assert "left out: 1 of 2 points cannot run (--skip-illegal)." in printed
    assert "parallelism.tensor=3 does not divide model.heads=8" in printed
    assert printed.count("tiny-ddp-n1x2-tensor=1") == 1
    assert main(["plan", "-m", "parallelism.tensor=3,5", "--skip-illegal"]) == 2
