"""The frozen Run: what OmegaConf would read from config.yaml, and a refusal with its key for anything else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from jobs.frozen import dump_run, run_of
from jobs.schema import OptimizerLoop, Run
from tests.support.composing import one
from tests.support.fake_runs import a_run

TEXTS = ["5", "1e-4", "no", "null", "~", "", " a ", "a: b", "#", "{}", "ü", "a\nb", "\\", "$", "$ {", r"\$", r"\\ ${x}",
         "${x}", r"\${x}", r"\\${x}", r"a\\\${x} ${oc.env:HOME}${", "${${x}}"]  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=demo", "stages=all", "data.held_out_samples=4", "job.export=true"],
        ["model=mixtral_8x7b", "parallelism=tp_fsdp", "cluster=xe9680_h100", "network=infiniband", "nodes=2"],
        ["job=finetune_lora", "data=alpaca", "data.path=/d", "data.tokenizer=/t", "engine.profile.steps=[5,6]"],
        ["job=serve", "engine=vllm", "model=llama3_8b", "cluster=generic_slurm", "cluster.account=0123"],
        ["job=image_train"],
        ["job=checkpoint_io", "cluster.env={A: 'b c'}", "cluster.setup=['a b', 'c \\${x}']"],
        ["engine=deepspeed", "parallelism=zero3", "job.learning_rate=1e-4", "cluster.sbatch={begin: 16:30:00}"],
    ],
    ids=lambda overrides: " ".join(overrides[:2]),
)
def test_a_composed_run_is_read_as_omegaconf_reads_it(overrides: list[str]) -> None:
    run = one(*overrides).run
    written = yaml.safe_load(dump_run(run))
    by_omegaconf = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Run), written))
    assert repr(run_of(written)) == repr(by_omegaconf) == repr(run)


def test_a_key_of_an_earlier_version_is_read_by_its_present_name() -> None:
    written = yaml.safe_load(dump_run(one("engine.optimizer_loop=foreach").run))
    written["engine"]["optimizer"] = written["engine"].pop("optimizer_loop")
    assert run_of(written).engine.optimizer_loop is OptimizerLoop.foreach


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(text: str) -> None:
    run = a_run("r")
    run = replace(run, sweep=text, cluster=replace(run.cluster, env={"A": text}, setup=[text, text]))
    written = yaml.safe_load(dump_run(run))
    assert run_of(written) == run
    assert OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Run), written)) == run


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        ("nodes", "two", "nodes='two' is not a whole number"),
        ("nodes", 2.5, "nodes=2.5 is not a whole number"),
        ("nodes", True, "nodes=True is not a whole number"),
        ("nodes", None, "nodes=None is not a whole number"),
        ("sweep", 5, "sweep=5 is not a text"),
        ("nodez", 2, "nodez is not a key"),
        ("job", None, "job=None is not a section"),
        ("job", [1], "job=[1] is not a section"),
        ("job.learning_rate", "fast", "job.learning_rate='fast' is not a number"),
        ("job.precision", "float8", "job.precision='float8' is not one of float32, bfloat16, float16"),
        ("job.precision", ["float32"], "job.precision=['float32'] is not one of float32, bfloat16, float16"),
        ("job.train", "maybe", "job.train='maybe' is not true or false"),
        ("job.stepz", 2, "job.stepz is not a key"),
        ("cluster.setup", "module load", "cluster.setup='module load' is not a list"),
        ("cluster.setup", [1], "cluster.setup[0]=1 is not a text"),
        ("cluster.env", {1: "a"}, "cluster.env={1: 'a'} is not a mapping with texts as keys"),
        ("cluster.env", {"A": None}, "cluster.env.A=None is not a text"),
        ("model.rope_scaling", {"low_freq_factor": 1.0}, "model.rope_scaling.factor is missing"),
    ],
)
def test_a_value_that_is_not_the_schemas_is_refused_with_its_key(key: str, value: Any, refusal: str) -> None:
    written = yaml.safe_load(dump_run(a_run("r")))
    section, _, last = key.rpartition(".")
    (written[section] if section else written)[last] = value
    with pytest.raises(ValueError, match=r"^(?!.*\n)") as refused:
        run_of(written)
    assert str(refused.value) == refusal


def test_a_key_of_a_later_version_has_its_default_and_a_whole_number_is_a_number() -> None:
    run = a_run("r")
    written = yaml.safe_load(dump_run(run))
    del written["network"], written["engine"]["profile"], written["job"]["seed"]
    written["job"]["learning_rate"] = 1
    read = run_of(written | {"job": written["job"] | {"seed": 1}})
    assert (read.network, read.engine.profile) == (run.network, run.engine.profile)
    assert repr(read.job.learning_rate) == "1.0"
