"""Predicted memory beside the real native engine on fake tensors, which holds every tensor that a run would hold."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from jobs.engines.native.loss import chunked
from jobs.layout import accumulation, pipeline_stages_of
from jobs.parallelism import Schedule
from jobs.plan.predict.activations import cast_weights, kept_by_layers, rotary_table, tokens_of
from jobs.plan.predict.constants import MemoryConstants
from jobs.plan.predict.in_flight import in_flight
from jobs.plan.predict.loss import loss_memory
from jobs.plan.predict.memory import largest_moment
from jobs.schema import Run
from tests.support.composing import one
from tests.support.engine_on_fakes import Live, engine_on_fakes, evaluation_on_fakes
from tests.support.required import need_bitsandbytes

A_GPU = ("cluster=xe9680_h100", "gpu.memory_gb=null", "data=random", "model.layers=2", "job.micro_batch_size=1")
LLAMA2 = ("model=llama2_7b", "job.sequence_length=4096")
LLAMA3 = ("model=llama3_8b", "job.sequence_length=8192")
ALONE = ("parallelism=single", "ranks_per_node=1", "scaling.global_batch_size=2")
IN_16_BITS = ("job.precision=bfloat16", "engine.parameters=bfloat16")
AUTOCAST = ("job.precision=bfloat16",)
QWEN3 = ("model=qwen3_8b", "job.sequence_length=4096")
GEMMA2 = ("model=gemma2_9b", "job.sequence_length=1024")
GEMMA3 = ("model=gemma3_4b", "job.sequence_length=4096")
TIED = ("model=gemma3_4b", "model.layers=2", "job.sequence_length=1024")
GPT_OSS = ("model=gpt_oss_20b", "job.sequence_length=4096")
# Two dense layers: what experts keep depends on the data.
LITE = ("model=deepseek_v2_lite", "model.dense_layers=2", "job.sequence_length=4096")
# Two chunks in each row.
SCOUT = ("model=llama4_scout", "model.full_attention_every=0", "model.sliding_window=2048", "job.sequence_length=4096")
MAVERICK = ("model=llama4_maverick", "model.experts=16", "job.sequence_length=16384", "model.layers=4")
TP = ("parallelism=tp", "parallelism.tensor=8", "scaling.global_batch_size=2")
FSDP = ("scaling.global_batch_size=16", *AUTOCAST)
FSDP_FULL = ("parallelism=fsdp_full", "scaling.global_batch_size=16")
LORA = ("job=finetune_lora", "data=random", *AUTOCAST)
DROPOUT = "job.lora.dropout=0.1"
SIX = ("model.layers=6",)
OF_ATTENTION = "job.lora.targets=[query,key,value,projection]"
ATTENTION_ONLY = "job.lora.targets=[query,value]"


@pytest.mark.parametrize(
    "overrides",
    [
        (*LLAMA2, *ALONE, *IN_16_BITS, "engine.loss=whole"),
        (*LLAMA2, *ALONE, *AUTOCAST, "engine.loss=chunked", "job.micro_batch_size=2"),
        pytest.param(
            (*LLAMA3, *ALONE, *IN_16_BITS, "job.batching=packed", "engine.loss=chunked"), marks=pytest.mark.long
        ),
        (
            *LLAMA2,
            *ALONE,
            *IN_16_BITS,
            "engine.activation_checkpointing=full",
            "engine.checkpointed_layers=1",
            "engine.loss=whole",
        ),
        (*LLAMA3, *TP, *IN_16_BITS, "engine.loss=whole"),
        (*LLAMA2, *ALONE, *LORA, DROPOUT, "engine.loss=whole"),
        (*LLAMA3, *TP, *LORA, DROPOUT, "engine.loss=whole"),
        pytest.param((*LLAMA2, *ALONE, *LORA, ATTENTION_ONLY, "engine.loss=whole"), marks=pytest.mark.long),
        pytest.param(
            (*LLAMA2, *ALONE, *LORA, "job.lora.targets=[mlp]", "job.lora.rank=8", "engine.loss=chunked"),
            marks=pytest.mark.long,
        ),
        pytest.param((*LLAMA3, *ALONE, *LORA, *IN_16_BITS, "engine.loss=chunked"), marks=pytest.mark.long),
        pytest.param((*LLAMA2, *ALONE, *LORA, "job.precision=float32", "engine.loss=whole"), marks=pytest.mark.long),
        pytest.param((*LLAMA3, *TP, *IN_16_BITS, "parallelism.sequence_parallel=false"), marks=pytest.mark.long),
        pytest.param((*LLAMA2, *ALONE, "job.precision=float32", "engine.loss=whole"), marks=pytest.mark.long),
        ("model=llama2_7b", "job=p_tuning", *ALONE, *AUTOCAST, "job.sequence_length=2038", "engine.loss=chunked"),
        pytest.param(
            ("model=llama2_7b", "job=p_tuning", *ALONE, *IN_16_BITS, "job.sequence_length=2038", "engine.loss=whole"),
            marks=pytest.mark.long,
        ),
        (*QWEN3, *TP, *IN_16_BITS, "engine.loss=whole"),
        (*GEMMA3, *ALONE, *IN_16_BITS, "engine.loss=whole"),
        ("model=olmo2_7b", "job.sequence_length=4096", *ALONE, *IN_16_BITS, "engine.loss=whole"),
        pytest.param(
            ("model=olmo2_7b", "job.sequence_length=4096", *ALONE, *AUTOCAST, "engine.loss=whole"),
            marks=pytest.mark.long,
        ),
        (*LITE, *ALONE, *IN_16_BITS, "engine.loss=whole"),
        (*LITE, "model.latent.q_lora_rank=768", *TP, *IN_16_BITS, "engine.loss=whole"),
        pytest.param((*LITE, *ALONE, *AUTOCAST, "engine.loss=whole"), marks=pytest.mark.long),
        (*LITE, "model.latent.q_lora_rank=768", *ALONE, *LORA, OF_ATTENTION, DROPOUT, "engine.loss=whole"),
        pytest.param(
            (*LITE, *TP, *LORA, OF_ATTENTION, "engine.loss=whole"),
            marks=pytest.mark.long,
        ),
        (*SCOUT, "model.dense_layers=2", *ALONE, *IN_16_BITS, "engine.loss=whole"),
        pytest.param((*SCOUT, *ALONE, *IN_16_BITS, "engine.loss=whole"), marks=pytest.mark.long),
        pytest.param((*SCOUT, *ALONE, *IN_16_BITS, "job.batching=packed"), marks=pytest.mark.long),
        pytest.param((*LITE, *ALONE, *IN_16_BITS, "job.batching=packed"), marks=pytest.mark.long),
        pytest.param(
            (*LITE, "model.latent.value_head_size=192", *ALONE, *IN_16_BITS, "engine.loss=whole"),
            marks=pytest.mark.long,
        ),
        (*GEMMA2, *ALONE, *IN_16_BITS, "engine.loss=whole"),
        pytest.param((*GEMMA2, *ALONE, *AUTOCAST, "engine.loss=whole"), marks=pytest.mark.long),
        pytest.param((*GEMMA2, *TP, *IN_16_BITS, "engine.loss=whole"), marks=pytest.mark.long),
        pytest.param((*GEMMA3, *ALONE, *AUTOCAST, "engine.loss=whole"), marks=pytest.mark.long),
        (*GPT_OSS, *ALONE, *IN_16_BITS, "engine.loss=whole"),
        pytest.param((*GPT_OSS, *ALONE, *AUTOCAST, "engine.loss=whole"), marks=pytest.mark.long),
        pytest.param(
            (*LLAMA3[:1], "model.attention_sinks=true", *ALONE, "job.precision=float32", "engine.loss=whole"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("model=qwen3_30b_a3b", "job.sequence_length=4096", *ALONE, *IN_16_BITS, "engine.loss=whole"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            (*GEMMA3, "model.full_attention_every=2", *ALONE, *IN_16_BITS, "job.batching=packed"),
            marks=pytest.mark.long,
        ),
        (*QWEN3, *ALONE, *AUTOCAST, "engine.loss=whole"),
        pytest.param((*QWEN3, *ALONE, *LORA, "engine.loss=whole"), marks=pytest.mark.long),
        pytest.param((*QWEN3, *ALONE, "job.precision=float32", "engine.loss=whole"), marks=pytest.mark.long),
        pytest.param((*QWEN3, *ALONE, *IN_16_BITS, "job.batching=packed"), marks=pytest.mark.long),
        pytest.param(("model=pythia_14m", *ALONE, *IN_16_BITS, "job.sequence_length=512"), marks=pytest.mark.long),
        pytest.param(("model=tiny", *ALONE, *IN_16_BITS, "job.sequence_length=128"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_tensors_kept_for_backward_are_those_of_the_engine(overrides: tuple[str, ...]) -> None:
    run = one(*A_GPU, *overrides).run
    x = tokens_of(run)
    head = overrides[-1] == "engine.loss=whole"
    predicted = kept_by_layers(run, x, range(2)) + loss_memory(run, x).kept + cast_weights(run, range(2), head=head)
    predicted += rotary_table(run, x)
    assert predicted == pytest.approx(engine_on_fakes(run, micro_batches=1).kept, rel=2e-3)


@pytest.mark.parametrize(
    "overrides",
    [
        (*LLAMA2, *ALONE, *IN_16_BITS, "engine.activation_checkpointing=selective"),
        (*LLAMA2, "parallelism=fsdp_full", *FSDP, "engine.activation_checkpointing=full", "model.layers=3"),
        *(
            (*LLAMA2, *layout, f"engine.activation_checkpointing={mode}", f"engine.checkpointed_layers={count}", *SIX)
            for layout, mode, count in [
                ((*ALONE, *AUTOCAST), "full", 2),
                ((*ALONE, *AUTOCAST), "selective", 5),
                ((*ALONE, *IN_16_BITS, "scaling.global_batch_size=1"), "full", 4),
                ((*FSDP_FULL, *AUTOCAST), "selective", 3),
            ]
        ),
        pytest.param((*LLAMA3, *TP, *IN_16_BITS, "engine.activation_checkpointing=full"), marks=pytest.mark.long),
        pytest.param((*LLAMA2, *ALONE, *IN_16_BITS, "engine.activation_checkpointing=full"), marks=pytest.mark.long),
        pytest.param((*LLAMA2, *ALONE, *AUTOCAST, "engine.activation_checkpointing=full"), marks=pytest.mark.long),
        pytest.param((*LLAMA3, *ALONE, *IN_16_BITS), marks=pytest.mark.long),
        pytest.param((*LLAMA2, "parallelism=fsdp_full", *FSDP), marks=pytest.mark.long),
        pytest.param((*LLAMA2, "parallelism=fsdp_full", *FSDP, "engine.gradients=bfloat16"), marks=pytest.mark.long),
        pytest.param((*LLAMA2, "parallelism=fsdp_grad_op", *FSDP, "engine.loss=whole"), marks=pytest.mark.long),
        (*QWEN3, *TP, *IN_16_BITS),
        (*GPT_OSS, *TP, *IN_16_BITS),
        # A tied embedding of 262,144 rows: the end of backward holds three of its gradients, more than the loss does.
        (*TIED, *ALONE, *IN_16_BITS, "scaling.global_batch_size=2", "job.micro_batch_size=1"),
        *(
            pytest.param((*TIED, *layout), marks=pytest.mark.long)
            for layout in [
                (*ALONE, *IN_16_BITS, "scaling.global_batch_size=1", "job.micro_batch_size=1"),
                (*ALONE, *AUTOCAST),
                (*ALONE, *AUTOCAST, "engine.activation_checkpointing=full", "model.layers=6"),
                (*FSDP_FULL, *AUTOCAST),
                (
                    "parallelism=tp",
                    "parallelism.tensor=4",
                    "ranks_per_node=4",
                    "scaling.global_batch_size=2",
                    *IN_16_BITS,
                ),
            ]
        ),
        *(
            pytest.param(
                (*model, "parallelism=fsdp_full", *FSDP, f"engine.activation_checkpointing={mode}", "model.layers=4"),
                marks=pytest.mark.long,
            )
            for model in (GPT_OSS, ("model=mixtral_8x7b", "job.sequence_length=4096"))
            for mode in ("none", "full")
        ),
        *(
            pytest.param((*GEMMA2, *layout, "job.sequence_length=8192"), marks=pytest.mark.long)
            for layout in ((*ALONE, *IN_16_BITS), (*FSDP_FULL, *AUTOCAST))
        ),
        *(
            pytest.param(
                (*MAVERICK, "parallelism=fsdp_full", *FSDP, f"engine.activation_checkpointing={mode}"),
                marks=pytest.mark.long,
            )
            for mode in ("none", "full")
        ),
        (*LITE, *ALONE, *IN_16_BITS),
        pytest.param((*LITE, *TP, *IN_16_BITS), marks=pytest.mark.long),
        pytest.param((*LITE, "parallelism=fsdp_full", *FSDP), marks=pytest.mark.long),
        pytest.param((*LITE, *ALONE, *IN_16_BITS, "engine.activation_checkpointing=selective"), marks=pytest.mark.long),
        pytest.param((*QWEN3, *ALONE, *AUTOCAST), marks=pytest.mark.long),
        pytest.param((*QWEN3, "parallelism=fsdp_full", *FSDP), marks=pytest.mark.long),
        pytest.param(
            (*QWEN3, *ALONE, *IN_16_BITS, "engine.activation_checkpointing=selective"), marks=pytest.mark.long
        ),
        (
            *LLAMA2,
            "parallelism=fsdp_grad_op",
            *AUTOCAST,
            "scaling.global_batch_size=24",
            "parallelism.reduce_each=step",
        ),
        *(
            pytest.param((*LLAMA2, f"parallelism={name}", *AUTOCAST, *settings), marks=pytest.mark.long)
            for name, settings in [
                ("fsdp_grad_op", ("scaling.global_batch_size=24",)),
                ("fsdp_full", ("scaling.global_batch_size=16", "parallelism.reduce_each=step")),
            ]
        ),
        pytest.param((*LLAMA3, *TP, *IN_16_BITS, "engine.activation_checkpointing=selective"), marks=pytest.mark.long),
        (*LLAMA2, *FSDP_FULL, *LORA),
        *(
            pytest.param((*model, *layout, *LORA, *settings), marks=pytest.mark.long)
            for model, layout, settings in [
                (LLAMA2, ALONE, ["engine.loss=whole"]),
                (LLAMA2, ALONE, [DROPOUT, "engine.activation_checkpointing=full"]),
                (LLAMA2, ALONE, ["engine.activation_checkpointing=selective"]),
                (LLAMA3, TP, [DROPOUT, "engine.activation_checkpointing=selective"]),
                (LLAMA3, TP, ["engine.loss=whole"]),
                (LLAMA2, FSDP_FULL, [DROPOUT, "engine.activation_checkpointing=full"]),
                (LLAMA2, ("parallelism=fsdp_grad_op", "scaling.global_batch_size=16"), [ATTENTION_ONLY]),
            ]
        ),
        pytest.param(("model=llama2_7b", "job=finetune_lora", *ALONE, *AUTOCAST), marks=pytest.mark.long),
        pytest.param(("model=llama2_7b", "job=p_tuning", "parallelism=fsdp_full", *FSDP), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_the_largest_moment_of_forward_and_backward_is_that_of_the_engine(overrides: tuple[str, ...]) -> None:
    run = one(*A_GPU, *overrides).run
    terms = largest_moment(run, tokens_of(run), MemoryConstants())
    held = sum(size for term, size in terms.items() if term not in {"weights", "optimizer"})
    assert held == pytest.approx(max(engine_on_fakes(run, micro_batches=accumulation(run)).peaks), rel=0.04)


@pytest.mark.parametrize("layout", [ALONE, pytest.param(FSDP_FULL, marks=pytest.mark.long)], ids=" ".join)
def test_weights_in_4_bits_exist_in_the_type_of_the_arithmetic_one_at_a_time(layout: tuple[str, ...]) -> None:
    need_bitsandbytes()
    full = "engine.activation_checkpointing=full"  # what layers keep would hide it
    run = one(*A_GPU, *LLAMA2, *layout, *LORA, "job.lora.quantize_base=nf4", full).run
    terms = largest_moment(run, tokens_of(run), MemoryConstants())
    held = sum(size for term, size in terms.items() if term not in {"weights", "optimizer"})
    assert held == pytest.approx(engine_on_fakes(run).peaks[-1], rel=0.04)


def test_one_chunk_of_the_loss_is_in_memory_at_a_time() -> None:
    labels, size, vocabulary, width = 4096, 2048, 128_256, 4096
    hidden, weight = (torch.empty(*shape, width, device="meta", dtype=torch.bfloat16, requires_grad=True)
                      for shape in ((1, labels), (vocabulary,)))  # fmt: skip
    targets = torch.empty(1, labels, device="meta", dtype=torch.int64)
    with Live() as live:
        chunked(hidden, weight, targets, labels, size)
    gradients = 2 * labels * width + 4 * vocabulary * width
    # Logits and their log-softmax in float32, and the hidden states.
    assert live.peak_bytes == pytest.approx(gradients + size * (8 * vocabulary + 2 * width), rel=1e-3)


@pytest.mark.parametrize(
    "overrides",
    [
        (*LLAMA3, *AUTOCAST, "engine.loss=whole"),
        pytest.param((*LLAMA2, *AUTOCAST, "engine.loss=chunked"), marks=pytest.mark.long),
        pytest.param((*LLAMA2, "job.precision=float32", "engine.loss=chunked"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_a_run_that_trains_nothing_holds_what_its_forward_pass_does(overrides: tuple[str, ...]) -> None:
    run = one(*A_GPU, *ALONE, "job=evaluate", "data.test_split=8", *overrides).run
    terms = largest_moment(run, tokens_of(run), MemoryConstants())
    held = sum(size for term, size in terms.items() if term != "weights")
    assert held == pytest.approx(evaluation_on_fakes(run), rel=0.04)


@pytest.mark.parametrize(
    ("schedule", "batches"), [*((each, 16) for each in Schedule), *((Schedule[n], 4) for n in ("1F1B", "LoopedBFS"))]
)
def test_micro_batches_in_flight_are_those_of_torchs_schedules(schedule: Schedule, batches: int) -> None:
    run = one("ranks_per_node=4", "parallelism=pp", "parallelism.pipeline=4", "model.layers=8", "model=tiny",
              f"scaling.global_batch_size={batches}", f"parallelism.schedule={schedule.name}",
              "job.micro_batch_size=1").run  # fmt: skip
    assert [in_flight(run, place) for place in range(4)] == [passes_at_once(run, place, batches) for place in range(4)]


def passes_at_once(run: Run, place: int, batches: int) -> float:
    """The most passes whose forward has run and whose backward has not in torch's order, by stages of the rank."""
    kind = get_schedule_class(run.parallelism.schedule.name)
    stages = pipeline_stages_of(run, place)
    count = len(stages) * run.parallelism.pipeline
    given = [
        Mock(stage_index=i, num_stages=count, group_size=4, group_rank=place, submod=nn.Linear(1, 1)) for i in stages
    ]
    schedule: Any = kind(given if issubclass(kind, PipelineScheduleMulti) else given[0], batches, loss_fn=Mock())
    passes = most = 0
    for action in filter(None, schedule.pipeline_order[place]):
        passes += {"FORWARD": 1, "FULL_BACKWARD": -1, "BACKWARD_WEIGHT": -1}.get(action.computation_type.name, 0)
        most = max(most, passes)
    return most / len(stages)
