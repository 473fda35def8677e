"""Rehearsals: every experiment made small for CPU ranks, with its structure kept, and named a rehearsal everywhere."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.errors import ConfigError
from jobs.layout import layout_of
from jobs.parallelism import TABLE_AXES
from jobs.plan.compose import compose
from jobs.plan.cost import parameters
from jobs.plan.rules.rehearsal import samples
from jobs.schema import Run
from tests.support.composing import one, options

EXPERIMENTS = options("experiment")


def techniques(run: Run) -> list[object]:
    """Return what a rehearsal has in common with its experiment."""
    p, stages = run.parallelism, run.stages
    return [
        [p.strategy, p.sharding, *(layout_of(run).degree(axis) > 1 for axis in TABLE_AXES)],
        [run.scaling.mode, run.job.name, run.job.epochs, run.data.name, run.network.name],
        [stage is not None for stage in (stages.prepare, stages.evaluate, stages.report)],
        [run.engine.activation_checkpointing, run.engine.compile, run.job.checkpoint_every_steps is not None],
    ]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_has_a_rehearsal_of_the_same_points_and_techniques(experiment: str) -> None:
    full = compose([f"experiment={experiment}", "repeat=1"], multirun=True, to_submit=False)
    small = compose([f"experiment={experiment}", "rehearsal=cpu"], multirun=True)
    assert [techniques(point.run) for point in small] == [techniques(point.run) for point in full]
    for run in (point.run for point in small):
        assert run.ranks <= 4
        assert not run.cluster.gpus
        assert parameters(run.model) < 2e7
        assert (run.job.steps or 6) <= 6
        assert run.model.name.endswith("_rehearsal")
        assert str(run.sweep) == f"{experiment}_rehearsal"
    assert len({point.run.name for point in small}) == len({point.run.name for point in full}) == len(full)


def test_an_experiment_that_compares_repeats_its_points_in_turns_and_its_rehearsal_does_not() -> None:
    def repeats(*overrides: str) -> list[int]:
        return [point.run.repeat for point in compose(list(overrides), multirun=True, to_submit=False)]

    assert repeats("experiment=llama31_8b_deepspeed") == [1, 1, 2, 2, 3, 3]
    assert repeats("experiment=llama31_8b_deepspeed", "repeat=1") == [1, 1]
    assert repeats("experiment=llama31_8b_deepspeed", "rehearsal=cpu") == [1, 1]
    assert repeats("experiment=llama31_70b_deepspeed") == [1, 1], "three would be 1,419 GPU-hours"


def test_the_ratios_between_models_and_between_heads_stay() -> None:
    small, large = (one(f"model={name}", "rehearsal=cpu").run.model for name in ("llama3_8b", "llama3_70b"))
    assert large.hidden_size == 2 * small.hidden_size
    assert large.layers == 2.5 * small.layers
    assert (small.heads, small.kv_heads, small.hidden_size) == (8, 2, 8 * small.head_size)
    assert one("model=mixtral_8x7b", "rehearsal=cpu").run.model.experts == 8


def test_what_is_typed_stays_as_typed() -> None:
    typed = {"job.steps": 30, "nodes": 4, "model.layers": 6, "sweep": "mine"}
    lines = [f"{key}={value}" for key, value in typed.items()]
    run = one("experiment=llama2_7b_nemo", "rehearsal=cpu", "scaling.global_batch_size=24", *lines).run
    assert [attrgetter(key)(run) for key in typed] == list(typed.values())
    assert run.scaling.global_batch_size == 24
    assert run.job.sequence_length == 512


def test_a_rehearsal_on_gpus_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape(
        "rehearsal=cpu runs on CPUs, and cluster=xe9680_h100 has GPUs. Set cluster=local or cluster=generic_slurm, or "
        "leave rehearsal out."
    )):  # fmt: skip
        one("experiment=llama2_7b_nemo", "rehearsal=cpu", "cluster=xe9680_h100")


def test_the_plan_names_a_rehearsal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "experiment=llama2_7b_nemo", "rehearsal=cpu"]) == 0
    # Megatron keeps gradients in this type, also where one replica sends none.
    narrow = ("engine.gradients=bfloat16", "parallelism=tp", "parallelism.tensor=2", "ranks_per_node=2")
    assert main(["plan", "experiment=llama2_7b_nemo", "rehearsal=cpu", *narrow]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "warning (llama2_7b_rehearsal-tp-n1x2): a rehearsal on CPU, with a model, data and steps made small" in printed
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_rehearsal_ends_in_the_tables_of_its_document_without_a_comparison(tmp_path: Path) -> None:
    small = ["job.steps=3", "job.checkpoint_every_steps=3", "job.unmeasured_steps=1", "scaling.global_batch_size=2",
             "job.sequence_length=64"]  # fmt: skip
    given = ["experiment=llama2_7b_nemo", "rehearsal=cpu", f"runs_dir={tmp_path}", *small]
    assert main(["submit", "-m", "--wait", *given]) == 0
    sweep = tmp_path / "llama2_7b_nemo_rehearsal"
    assert main(["report", str(sweep)]) == 0
    page = (sweep / "report.md").read_text()
    assert "Rehearsal on CPU" in page.splitlines()[2]
    (published,) = (part for part in page.split("\n## ") if part.startswith("Measured and published"))
    rows = [line for line in published.splitlines() if "llama2_7b_rehearsal" in line]
    assert len(rows) == 5
    for row in rows:
        assert row.startswith("| Rehearsal on CPU:")
        assert "No ratio: a rehearsal measures nothing of the experiment." in row


@pytest.mark.slow
def test_a_rehearsal_of_serving_needs_no_model_server_or_load_generator(tmp_path: Path) -> None:
    small = ["serving.concurrency=4", "serving.requests=16", "serving.warmup_requests=2", "model=llama2_7b"]
    given = ["experiment=serve_llama2", "rehearsal=cpu", f"runs_dir={tmp_path}", *small]
    assert main(["submit", "-m", "--wait", *given]) == 0
    sweep = tmp_path / "serve_llama2_rehearsal"
    assert main(["report", str(sweep)]) == 0
    page = (sweep / "report.md").read_text()
    assert "Rehearsal on CPU" in page
    assert "Output tokens/s over concurrent requests" in page


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["apac_hpc_ai_2024", "customization", "lora_mi300x", "prompt_engineering"])
def test_the_samples_made_for_rehearsals_serve_every_format_and_template(experiment: str, tmp_path: Path) -> None:
    given = [f"experiment={experiment}", "rehearsal=cpu", f"data.cache_dir={tmp_path}"]
    assert main(["data", "-m", *given]) == 0


def test_the_samples_made_for_rehearsals_are_as_many_as_a_rehearsal_takes() -> None:
    assert len(samples().read_text().splitlines()) == one("rehearsal=cpu").run.data.max_samples
