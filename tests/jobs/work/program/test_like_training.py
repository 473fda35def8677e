"""Memory and speed of a program that declares which training by one of our engines is like it (program.predicted)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from jobs.cli import main
from jobs.submit.preparation.prepare import plan_of
from jobs.work.program.rollouts import RolloutSpeed, rollout_speed
from tests.support.cli import printed_words
from tests.support.composing import one, refusal

MACHINE = ("cluster=xe9680_h100", "nodes=2")
TITAN = ("job=program", "program=torchtitan", *MACHINE, "job.sequence_length=4096")
SET = ("data=random", "job.precision=bfloat16", "job.steps=50", "job.sequence_length=4096", *MACHINE)
CASES = {
    "torchtitan shards, divides matrices and takes a micro-batch of each rank": (
        (*TITAN, "program.params.tensor=2", "program.params.config=llama3.1-8b", "job.micro_batch_size=2"),
        ("model=llama31_8b", "parallelism=fsdp_full", "parallelism.tensor=2", "job.micro_batch_size=2",
         "scaling.global_batch_size=16", "engine.loss=whole", "engine.activation_checkpointing=selective"),
    ),
    "Megatron-LM has keys of ours": (
        ("job=program", "program=megatron_lm", *MACHINE, "job.sequence_length=4096", "model=llama2_13b",
         "parallelism=tp_pp", "program.params.global_batch_size=64"),
        ("model=llama2_13b", "parallelism=tp_pp", "engine=nemo", "engine.overlap_communication=false",
         "scaling.global_batch_size=64"),
    ),
    "Megatron-Bridge has a recipe of a model": (
        ("job=program", "program=megatron_bridge", *MACHINE, "job.sequence_length=4096",
         "program.params.model=mistral_7b", "program.params.tensor=4", "program.params.context=2",
         "job.micro_batch_size=1"),
        ("model=mistral_7b", "parallelism=ddp", "parallelism.tensor=4", "parallelism.context=2", "engine=nemo",
         "scaling.global_batch_size=128", "job.micro_batch_size=1"),
    ),
    "Megatron-Bridge divides experts": (
        ("job=program", "program=megatron_bridge", *MACHINE, "job.sequence_length=4096",
         "program.params.model=qwen3_30b_a3b", "program.params.expert=8", "job.micro_batch_size=1"),
        ("model=qwen3_30b_a3b", "parallelism=ddp", "parallelism.expert=8", "engine=nemo",
         "scaling.global_batch_size=128", "job.micro_batch_size=1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_program_is_predicted_as_the_training_that_it_declares(case: str) -> None:
    of_program, of_training = CASES[case]
    program, training = plan_of(one(*of_program).run), plan_of(one(*SET, *of_training).run)
    assert program["memory"] == training["memory"]
    assert program["speed"] == training["speed"]


def test_the_plan_says_which_training_it_predicts_and_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *TITAN, "program.params.tensor=2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"torchtitan-n2x8 +uncalibrated +fits ", printed)
    assert "memory and speed are those of engine=native with llama3_8b, fsdp, TP 2, micro-batch 2 x 1 = 16" in printed
    # The program may know better than the prediction: nothing is refused.
    assert main(["plan", *TITAN, "program.params.config=llama31_405b"]) == 0
    assert "uncalibrated: does not fit, predicted " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("program.params.config=llama3_9b", "there is no file model/llama3_9b.yaml of the model llama3_9b"),
        ("program.params.global_batch_size=7", "engine=native could not train it: GBS 7 is not a multiple of MBS 2 x "),
        ("program.params.replicate=3", "engine=native could not train it: program.params.replicate=3 does not divide "),
        # No rank is left for a batch of each.
        ("program.params.tensor=32", "engine=native could not train it: program.params.tensor=32 does not divide "),
    ],
)
def test_what_cannot_be_predicted_has_a_reason_and_runs_all_the_same(
    capsys: pytest.CaptureFixture[str], override: str, reason: str
) -> None:
    assert main(["plan", *TITAN, override]) == 0
    assert f"predicted (torchtitan-n2x8): unknown: {reason}" in capsys.readouterr().out
    assert "speed" not in plan_of(one(*TITAN, override).run)


def test_a_prediction_has_the_batch_and_the_sharding_of_the_program_and_not_those_of_other_keys() -> None:
    plain, weak = (one(*TITAN, *more).run for more in ((), ("scaling=weak",)))
    assert plan_of(weak)["speed"] == plan_of(plain)["speed"]
    megatron = ("job=program", "program=megatron_lm", *MACHINE, "model=llama2_13b")
    assert "speed" in plan_of(one(*megatron).run)
    assert "speed" not in plan_of(one(*megatron, "parallelism=fsdp_full").run), "its command shards no weights"
    assert "scaling.global_batch_size=64 has no effect" in refusal(*TITAN, "scaling.global_batch_size=64")


def test_a_prediction_of_limited_gpus_is_shown_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *TITAN, "cluster.gpu_power_limit_w=300"]) == 0
    assert "predicted times are those of GPUs without cluster.gpu_power_limit_w" in capsys.readouterr().out
    assert main(["plan", "--why", *TITAN, "program.params.config=llama3_9b"]) == 0
    assert "predicted memory" not in capsys.readouterr().out, "a table without a row"


def test_keys_that_no_training_has_are_refused_and_values_that_a_key_cannot_have_are_a_reason(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = {"name": "mine", "steps": {"train": {"command": "true {model.name} {params.split}"}},
               "params": {"split": "two"}}  # fmt: skip
    chosen = ("job=program", "program=mine", *MACHINE, "model=llama3_8b")

    def declare(**predicted: dict[str, str]) -> None:
        (site / "mine.yaml").write_text(yaml.safe_dump({**program, "predicted": predicted}))

    declare(parallelism={"tensors": "{params.split}"})
    assert (
        "program.predicted.parallelism.tensors: there is no key parallelism.tensors. Did you mean tensor?"
        in refusal(*chosen)
    )
    declare(parallelism={"tensor": "{params.splits}"})
    assert "program.predicted.parallelism.tensor: {params.splits} has no value. Did you mean" in refusal(*chosen)
    declare(parallelism={"tensor": "{params.split}"})
    assert main(["plan", *chosen]) == 0
    assert (
        "unknown: program.predicted.parallelism.tensor=two: Value 'two' of type 'str' could not be converted to Integer"
    ) in capsys.readouterr().out


GRPO = ("job=program", "program=trl_grpo", *MACHINE, "program.params.model=Qwen3-1.7B", "program.params.dataset=D",
        "job.micro_batch_size=4")  # fmt: skip


def rollouts(*overrides: str) -> RolloutSpeed:
    found = rollout_speed(one(*GRPO, *overrides).run)
    assert isinstance(found, RolloutSpeed)
    return found


def test_a_step_of_reinforcement_learning_is_generation_and_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *GRPO, "program.params.accumulation=2"]) == 0
    printed = printed_words(capsys)
    assert "micro-batch 4 x 2 = 128 after generating as many completions of 512 tokens, at most 1024" in printed
    plain, kept = rollouts(), plan_of(one(*GRPO).run)
    assert plain.step_time_s.low < plain.step_time_s.point < plain.step_time_s.high
    # The step of training alone is no prediction of the run's.
    assert "speed" not in kept
    assert kept["program"]["completions_per_s"]["point"] == pytest.approx(64 / plain.step_time_s.point, rel=1e-3)
    # All wait for the longest completion, and the weights are read for each of its tokens.
    longer = rollouts("program.params.longest_tokens=2048")
    assert longer.generation_s.point == pytest.approx(2 * plain.generation_s.point, rel=0.15)
    # More completions at once read the weights no more often.
    more = rollouts("program.params.accumulation=4")
    assert more.generation_s.point < 1.5 * plain.generation_s.point
    assert more.completions_per_s.point > 2 * plain.completions_per_s.point


def test_completions_that_the_cache_does_not_hold_are_generated_in_waves() -> None:
    long_ones = ("program.params.longest_tokens=8192", "program.params.completion_tokens=8192")
    whole, cramped = rollouts(*long_ones), rollouts(*long_ones, "program.params.memory_fraction=0.06")
    assert cramped.generation_s.point > 1.8 * whole.generation_s.point


def test_a_server_that_leaves_no_memory_for_training_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *GRPO]) == 0
    assert re.search(r"trl_grpo-n2x8 +uncalibrated +fits ", capsys.readouterr().out)
    assert main(["plan", *GRPO, "program.params.memory_fraction=0.9"]) == 0
    assert re.search(r"trl_grpo-n2x8 +uncalibrated +does not fit ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("program.params.completion_tokens=2000", "longest_tokens=1024 is less than the mean of 2000"),
        ("program.params.tensor=3", "tensor=3 does not divide the 16 ranks"),
        ("program.params.memory_fraction=1", "memory_fraction=1 must be below 1"),
        ("program.predicted.rollouts.forward_passes=-1", "forward_passes=-1 must be 0 or more"),
        ("program.predicted.rollouts.forward_passes=many", "forward_passes=many is not a number"),
    ],
)
def test_rollouts_that_no_step_has_are_a_reason(capsys: pytest.CaptureFixture[str], override: str, reason: str) -> None:
    assert main(["plan", *GRPO, override]) == 0
    assert f"predicted (trl_grpo-n2x8): unknown: program.predicted.rollouts.{reason}" in capsys.readouterr().out
