"""Training states by arithmetic: exact numbers by layout and engine, and the refusal of runs that cannot fit.

tests/jobs/engines/test_products.py compares the parameters of a rank with those that real runs hold.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.engines.native.rules import pipeline_stages_are_gathered
from jobs.errors import ConfigError
from jobs.plan.compose import compose
from jobs.plan.legality import problems
from jobs.plan.predict.memory import memory
from jobs.plan.predict.speed import speed
from jobs.plan.predict.states import States, states
from jobs.plan.rules.memory import leaves_room
from jobs.schema import Precision
from tests.support.composing import one

H100 = ("cluster=xe9680_h100", "model=llama2_7b", "job.micro_batch_size=1", "scaling.global_batch_size=64")
ANYWAY = "gpu.memory_gb=null"
LLAMA2_7B = 6_738_415_616


def of(*overrides: str) -> States:
    return states(one(*H100, *overrides, ANYWAY).run)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # AdamW in float32: 4 bytes of weights, 4 of gradients, 8 of moments.
        (["parallelism=ddp"], States(4 * LLAMA2_7B, 4 * LLAMA2_7B, 8 * LLAMA2_7B)),
        (["parallelism=ddp", "engine.parameters=bfloat16", "job.precision=bfloat16"],
         States(2 * LLAMA2_7B, 2 * LLAMA2_7B, 4 * LLAMA2_7B)),
        (["parallelism=fsdp_full"], States(LLAMA2_7B // 2, LLAMA2_7B // 2, LLAMA2_7B)),
        # Weights in float32 alone, whatever the arithmetic.
        (["job=evaluate", "job.precision=bfloat16", "data.test_split=4", "ranks_per_node=1"],
         States(4 * LLAMA2_7B, 0, 0)),
        # A replica per node.
        (["parallelism=fsdp_hybrid", "nodes=2"], States(LLAMA2_7B // 2, LLAMA2_7B // 2, LLAMA2_7B)),
        # Gathered weights in bfloat16 stay until backward; one micro-batch has no gradients then.
        (["parallelism=fsdp_grad_op", "job.precision=bfloat16", "scaling.global_batch_size=8"],
         States(LLAMA2_7B // 2, 0, LLAMA2_7B, gathered=2 * LLAMA2_7B)),
    ],
)  # fmt: skip
def test_states_of_the_native_engine_are_exact(overrides: list[str], expected: States) -> None:
    assert of(*overrides) == expected


@pytest.mark.parametrize("model", ["llama2_7b", "deepseek_v2_lite"])
def test_predictions_do_not_keep_a_run_alive(model: str) -> None:
    # A search predicts thousands of runs, and a server of agents searches often.
    run = replace(one(*H100, ANYWAY, f"model={model}", "parallelism=fsdp_full", "job.precision=bfloat16").run, nodes=2)
    assert memory(run).device.point > 0
    assert speed(run) is not None
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None


def test_tensor_parallelism_splits_matrices_and_keeps_norms_whole() -> None:
    norms = (2 * 32 + 1) * 4096
    assert of("parallelism=tp", "parallelism.tensor=8").weights == 4 * ((LLAMA2_7B - norms) // 8 + norms)


def test_expert_parallelism_keeps_the_states_and_gathers_a_part_of_the_experts() -> None:
    moe = ("model=qwen3_30b_a3b", "nodes=2", "job.precision=bfloat16", "gpu.memory_check=false")
    whole, divided = (of(*moe, "parallelism=fsdp_full", f"parallelism.expert={expert}") for expert in (1, 8))
    assert whole == divided
    whole, divided = (of(*moe, "parallelism=fsdp_grad_op", f"parallelism.expert={expert}") for expert in (1, 8))
    assert whole.gathered - divided.gathered == 2 * 7 / 8 * 48 * 128 * 3 * 2_048 * 768


def test_the_first_or_last_pipeline_rank_has_the_most() -> None:
    layer, embedding, norm = 202_383_360, 32_000 * 4096, 4096
    found = of("parallelism=pp", "parallelism.pipeline=4", "parallelism.stage_layers=[9,9,9,5]")
    assert found.weights == 4 * (9 * layer + embedding)
    found = of("parallelism=pp", "parallelism.pipeline=4")
    assert found.weights == 4 * (8 * layer + embedding + norm)


def test_megatrons_distributed_optimizer_shards_the_copies_in_float32() -> None:
    nemo = ("engine=nemo", "parallelism=tp", "parallelism.tensor=1", "job.precision=bfloat16")
    assert of(*nemo) == States(2 * LLAMA2_7B, 4 * LLAMA2_7B, 12 * LLAMA2_7B // 8)
    assert of(*nemo, "engine.distributed_optimizer=false").optimizer == 12 * LLAMA2_7B


# PEFT counts 4,194,304 for query and value at rank 8. All are four of attention and three of the feed-forward, rank 32.
QUERY_VALUE = 32 * 2 * 8 * (4096 + 4096)
ALL_MATRICES = 32 * 32 * (4 * (4096 + 4096) + 3 * (4096 + 11008))


def test_adapters_leave_the_base_weights_without_gradients() -> None:
    lora = ("engine=litgpt", "job=finetune_lora", "data=docstrings", "ranks_per_node=1", "parallelism=single",
            "engine.parameters=bfloat16", "job.precision=bfloat16", "job.clip_norm=null")  # fmt: skip
    assert of(*lora) == States(2 * (LLAMA2_7B + ALL_MATRICES), 2 * ALL_MATRICES, 4 * ALL_MATRICES)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # The base in the type of the arithmetic, adapters with gradients and moments in float32.
        (["parallelism=ddp", "job.lora.rank=8", "job.lora.targets=[query,value]"],
         States(2 * LLAMA2_7B + 4 * QUERY_VALUE, 4 * QUERY_VALUE, 8 * QUERY_VALUE)),
        (["parallelism=fsdp_full"],
         States((2 * LLAMA2_7B + 4 * ALL_MATRICES) // 8, 4 * ALL_MATRICES // 8, ALL_MATRICES)),
        (["parallelism=fsdp_grad_op", "engine.parameters=bfloat16", "scaling.global_batch_size=8"],
         States((2 * LLAMA2_7B + 2 * ALL_MATRICES) // 8, 0, 4 * ALL_MATRICES // 8,
                gathered=2 * (LLAMA2_7B + ALL_MATRICES))),
    ],
)  # fmt: skip
def test_the_native_engine_keeps_gradients_and_moments_of_adapters_only(overrides: list[str], expected: States) -> None:
    assert of("job=finetune_lora", *overrides) == expected


def test_megatron_divides_both_sides_of_its_fused_adapters_by_tensor_parallelism() -> None:
    base = (LLAMA2_7B - (2 * 32 + 1) * 4096) // 8 + (2 * 32 + 1) * 4096
    # Of qkv, proj, gate with up, and down.
    adapters = 32 * 32 * ((4096 + 3 * 4096) + 2 * 4096 + (4096 + 2 * 11008) + (11008 + 4096)) // 8
    nemo = ("engine=nemo", "job=finetune_lora", "parallelism=tp", "parallelism.tensor=8", "data=docstrings")
    assert of(*nemo) == States(2 * (base + adapters), 4 * adapters, 12 * adapters)


# Ten virtual tokens, and PEFT's MLP from 4096 over 1024 to 4096.
VIRTUAL = 10 * 4096
ENCODER = 1024 * 4096 + 1024 + 1024 * 1024 + 1024 + 4096 * 1024 + 4096


def test_virtual_tokens_are_whole_under_tp_and_on_the_first_pipeline_stage() -> None:
    trained = VIRTUAL + ENCODER
    assert of("job=p_tuning", "parallelism=ddp") == States(2 * LLAMA2_7B + 4 * trained, 4 * trained, 8 * trained)
    assert of("job=p_tuning", "parallelism=tp", "parallelism.tensor=8").optimizer == 8 * trained
    halves = ("parallelism=pp", "parallelism.pipeline=2")
    # The last stage has a norm more than the first, but the first trains.
    assert of("job=p_tuning", *halves) == States(LLAMA2_7B - 4096 + 4 * trained, 4 * trained, 8 * trained)
    assert of("job=p_tuning", *halves, "job.prompt_tuning.encoder=null",
              "job.prompt_tuning.encoder_hidden_size=null").optimizer == 8 * VIRTUAL  # fmt: skip


def test_tensor_parallelism_leaves_one_side_of_each_adapter_whole() -> None:
    tp = ("parallelism=tp", "parallelism.tensor=8")
    # A of q, k, v, gate and up, B of the others; in 8 bytes a number.
    whole = 32 * 32 * (3 * 4096 + 2 * 4096 + 2 * 4096)
    assert of("job=finetune_lora", *tp).optimizer == 8 * (whole + (ALL_MATRICES - whole) // 8)


def test_a_run_whose_states_do_not_fit_is_refused_with_what_takes_the_memory_and_what_fits() -> None:
    with pytest.raises(ConfigError) as refused:
        one("cluster=xe9680_h100", "model=llama3_70b")
    text = str(refused.value)
    assert (
        "llama3_70b does not fit gpu=h100_sxm of 80 GB: training states alone take 1,128.9 GB on each (weights " in text
    )
    assert "set gpu.memory_check=false to try it anyway" in text
    assert "Nearest that can run: parallelism.strategy=fsdp parallelism.sharding=FULL_SHARD nodes=4 " in text
    assert one("cluster=xe9680_h100", "model=llama3_70b", ANYWAY).run.gpu.memory_check is False


def proposals(typed: list[str]) -> list[str]:
    """The proposals of a refusal; none for a run that fits."""
    try:
        compose(typed, multirun=False, to_submit=False)
    except ConfigError as refused:
        words = str(refused).partition("Nearest that can run: ")[2].rstrip(".")
        return words.split("; or ") if words else []
    return []


@pytest.mark.long
@settings(deadline=None, max_examples=10)
@given(
    model=st.sampled_from(["llama2_7b", "llama2_70b", "llama31_405b", "mixtral_8x7b"]),
    cluster=st.sampled_from(["xe9680_h100", "xe8640_h100", "r760xa_l40s", "gadi_gpuvolta", "aspire2a"]),
    parallelism=st.sampled_from(["ddp", "fsdp_grad_op", "fsdp_full", "tp", "pp", "tp_pp_fsdp"]),
    nodes=st.sampled_from([1, 2, 3]),
)
def test_every_proposal_composes_and_leaves_room_for_activations(
    model: str, cluster: str, parallelism: str, nodes: int
) -> None:
    typed = [f"model={model}", f"cluster={cluster}", f"parallelism={parallelism}", f"nodes={nodes}",
             "job.precision=float32"]  # fmt: skip
    for proposal in proposals(typed):
        (point,) = compose([*typed, *proposal.split()], multirun=False, to_submit=False)
        assert not problems(point.run)
        assert leaves_room(point.run), proposal


def test_a_warning_names_what_a_stage_of_a_pipeline_with_fsdp_takes_in_a_step() -> None:
    layout = ("parallelism.pipeline=2", "parallelism.tensor=4", "nodes=2", "ranks_per_node=8")
    run = one(*H100, ANYWAY, "model=llama2_7b", "parallelism=fsdp_full", *layout, "job.precision=bfloat16").run
    # Weights of 2 bytes and gradients of 4, of an eighth of 6.74e9.
    assert "float32 gradients of its pipeline stage, about 5.05 GB" in str(pipeline_stages_are_gathered(run))
    narrow = replace(run, engine=replace(run.engine, gradients=Precision.bfloat16))
    assert "bfloat16 gradients of its pipeline stage, about 3.37 GB" in str(pipeline_stages_are_gathered(narrow))
    assert pipeline_stages_are_gathered(replace(run, parallelism=replace(run.parallelism, pipeline=1))) is None
