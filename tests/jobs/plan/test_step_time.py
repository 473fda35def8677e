"""Predicted step times: terms by independent arithmetic, published measurements within their intervals, the columns."""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import replace

import pytest

from analysis.metrics.mfu import Work as CountedWork
from jobs.layout import Layout, layout_of
from jobs.parallelism import CP, DP_REPLICATE, DP_SHARD, EP, PP, TP
from jobs.plan.cost import embedding_parameters, parameters
from jobs.plan.predict.calibration import STEP_TIME_PRIOR
from jobs.plan.predict.communication import dispatch_s, group_of, seconds
from jobs.plan.predict.constants import StepTimeConstants
from jobs.plan.predict.speed import model_flops, speed
from jobs.plan.predict.step_time import StepTime, StepWork, peak_flops_per_s, step_time, step_time_s, step_work
from jobs.plan.rules.parallelism import tensor_crosses_nodes
from jobs.schema import ActivationCheckpointing, Run
from tests.support.composing import one
from tests.support.paths import ROOT

DEFAULTS = StepTimeConstants()
H100 = ("cluster=xe9680_h100", "model=llama31_8b", "gpu.memory_gb=null", "job.precision=bfloat16",
        "job.sequence_length=4096", "job.micro_batch_size=1", "scaling.global_batch_size=64")  # fmt: skip


LAYERS = 1 - 2 * 128_256 * 4_096 / (8_030_261_248 - 4_096)
"""Share of the weights of Llama 3.1 8B that its layers have."""


def of(*overrides: str) -> Run:
    return one(*H100, *overrides).run


def work(*overrides: str) -> StepWork:
    found = step_work(of(*overrides))
    assert found is not None
    return found


def terms(*overrides: str, constants: StepTimeConstants = DEFAULTS) -> StepTime:
    return step_time(work(*overrides), constants)


def test_matrix_products_are_the_6_n_of_the_model_at_the_largest_measured_rate() -> None:
    # Llama 3.1 8B: 8,030,261,248 weights less the embedding of 128,256 x 4,096.
    weights = 8_030_261_248 - 128_256 * 4_096
    (stage,) = work("parallelism=ddp").stages
    norms = 65 * 4_096
    assert stage.matrix_s * 794.5e12 == pytest.approx(6 * (weights - norms) * 4_096)
    # Causal attention computes half of each product, and 3.5 times the forward pass in all.
    # torch's kernel reaches 0.7 of what cuDNN's does on H100.
    assert 0.7 * stage.attention_s * 989e12 == pytest.approx(32 * 3.5 * 4 * 4_096 * 4_096 * 4_096 / 2)


@pytest.mark.parametrize(
    ("gpu", "precise", "rounded"), [("h100_sxm", 67, 494.5), ("v100_sxm2_32gb", 15.7, 15.7), ("mi300x", 163.4, 163.4)]
)
def test_products_of_float32_have_the_peak_of_tf32_where_gpu_and_run_have_it(
    gpu: str, precise: float, rounded: float
) -> None:
    given = (f"gpu={gpu}", "gpu.memory_gb=null", "job.precision=float32", "parallelism=ddp")
    assert peak_flops_per_s(of(*given)) == pytest.approx(rounded * 1e12)
    assert peak_flops_per_s(of(*given, "engine.tf32=false")) == pytest.approx(precise * 1e12)


def test_full_recomputation_repeats_the_forward_pass_of_layers_and_not_the_head() -> None:
    (kept,), (repeated,) = (work("parallelism=ddp", f"engine.activation_checkpointing={mode}").stages
                            for mode in ("none", "full"))  # fmt: skip
    head = 6 * 128_256 * 4_096 * 4_096 / 794.5e12
    assert (repeated.matrix_s - head) / (kept.matrix_s - head) == pytest.approx(4 / 3)
    assert repeated.attention_s / kept.attention_s == pytest.approx(4.5 / 3.5)


def test_recomputation_sends_keys_and_values_round_the_ring_again() -> None:
    ring = ("parallelism=ddp", "parallelism.context=2", "engine=nemo")
    (kept,), (repeated,) = (work(*ring, f"engine.activation_checkpointing={each}").stages for each in ("none", "full"))
    # Forward, the same in backward, and gradients: three rounds of the keys and values of half a sequence.
    assert kept.context.wire_bytes == pytest.approx(32 * 3 * 2_048 * 2 * 1_024 * 2)
    assert repeated.context.wire_bytes / kept.context.wire_bytes == pytest.approx(4 / 3)
    assert repeated.context.collectives / kept.context.collectives == pytest.approx(4 / 3)


@pytest.mark.parametrize(("engine", "slower"), [("nemo", 8), ("native", 1)])
def test_megatrons_attention_has_no_tensor_cores_where_heads_are_no_multiple_of_8(engine: str, slower: int) -> None:
    (aligned,), (odd,) = (work("parallelism=ddp", f"engine={engine}", f"model.head_size={size}").stages
                          for size in (128, 132))  # fmt: skip
    assert odd.attention_s / aligned.attention_s == pytest.approx(slower * 132 / 128)


def test_groups_are_placed_as_the_rank_grid_places_them() -> None:
    for shape in ((2, 2, 2, 1, 1, 4), (1, 1, 4, 1, 2, 4), (4, 1, 1, 1, 1, 8), (1, 4, 1, 4, 1, 2), (1, 1, 2, 16, 1, 1)):
        layout = Layout(math.prod(shape) // 8, 8, shape)
        for axes in ((PP,), (DP_REPLICATE,), (DP_SHARD,), (EP,), (CP,), (TP,)):
            (members, *_) = layout.groups(axes[0])
            group = group_of(of(), layout, axes)
            places = [rank // 8 for rank in members]
            assert (group.ranks, group.local) == (len(members), max(map(places.count, places)))


def test_an_nvlink_domain_of_several_nodes_is_one_place() -> None:
    rack = ("cluster=generic_slurm", "cluster.ranks_per_node=4", "ranks_per_node=4", "gpu=gb200_nvl72", "nodes=32",
            "parallelism=tp_fsdp", "parallelism.tensor=8", "scaling.global_batch_size=256")  # fmt: skip
    for segment, local in (("{}", 9), ("{segment: 16}", 8), ("{segment: 2}", 1)):
        run = of(*rack, f"cluster.sbatch={segment}")
        data, tensor = (group_of(run, layout_of(run), (axis,)) for axis in (DP_SHARD, TP))
        # 18 nodes of 4 GPUs, of which Slurm gives whole segments: 72, 64 or 8 consecutive ranks, in blocks of TP's 8.
        assert (data.ranks, data.local, tensor.domains) == (16, local, 1)
    assert tensor_crosses_nodes(of(*rack)) is None
    for changed in ("gpu.link_domain_gpus=null", "cluster.sbatch={segment: 1}"):
        alone = "parallelism.tensor=8 puts ranks of one TP group on different nodes (ranks_per_node=4): "
        assert alone in str(tensor_crosses_nodes(of(*rack, changed)))


def test_tensor_parallelism_sends_two_all_reduces_of_a_layer_each_way() -> None:
    split = "parallelism.sequence_parallel=false"
    (stage,) = work("parallelism=tp", "parallelism.tensor=8", split, "engine=nemo").stages
    activations = 4_096 * 4_096 * 2
    # A ring's all-reduce sends 2 (n - 1) / n; half a layer's for the head and the embedding.
    assert stage.tensor.wire_bytes == pytest.approx(32.5 * 4 * 2 * 7 / 8 * activations)
    assert stage.tensor.group.domains == 1


def test_a_distributed_optimizer_scatters_gradients_in_float32_and_gathers_weights() -> None:
    nemo = ("parallelism=tp", "parallelism.tensor=2", "engine=nemo", "nodes=2")
    (whole,), (shared,) = (work(*nemo, f"engine.distributed_optimizer={on}").stages for on in ("false", "true"))
    assert whole.replica.wire_bytes / shared.replica.wire_bytes == pytest.approx(2 * 4 / (4 + 2))
    assert shared.replica.group.ranks == 8
    assert whole.optimizer_s / shared.optimizer_s == pytest.approx(8)


MOE = ("model=qwen3_30b_a3b", "parallelism=fsdp_full", "nodes=2", "job.micro_batch_size=2")


def test_expert_parallelism_sends_the_copies_of_tokens_four_times_and_gathers_a_part_of_the_experts() -> None:
    without, inside, across = (work(*MOE, f"parallelism.expert={expert}") for expert in (1, 8, 16))
    (stage,), (divided,), (spread,) = (each.stages for each in (without, inside, across))
    assert stage.expert.inside_bytes == stage.expert.outside_bytes == 0
    # 48 layers; 8 experts for each of 2 x 4,096 tokens of 2,048 numbers in bfloat16; 7 of 8 leave their rank.
    rows = 48 * 8 * 2 * 4_096 * 2_048 * 2
    assert divided.expert.inside_bytes == pytest.approx(4 * 7 / 8 * rows)
    assert (divided.expert.group.domains, spread.expert.group.domains) == (1, 2)
    # Only what goes to the other node, 8 of 16 ranks, takes its time.
    link, network = (without.links.link_bytes_per_s, without.links.network_bytes_per_s)
    assert dispatch_s(divided.expert, inside.links, DEFAULTS) == pytest.approx(4 * 7 / 8 * rows / (0.7 * link))
    latency = 4 * 48 * 15 * DEFAULTS.peer_latency_s
    assert dispatch_s(spread.expert, across.links, DEFAULTS) == pytest.approx(4 / 2 * rows / (0.7 * network) + latency)
    # Gathered twice and reduced once: 128 experts of 3 x 2,048 x 768, of which a rank gathers those of its EP rank.
    experts = 48 * 128 * 3 * 2_048 * 768
    assert divided.expert_shard.each.group.ranks == 2
    assert divided.expert_shard.each.wire_bytes == pytest.approx((2 + 2 + 4) / 2 * experts / 8)
    assert spread.expert_shard.each.wire_bytes == 0
    assert stage.shard.each.wire_bytes == pytest.approx(divided.shard.each.wire_bytes + 15 / 16 * (2 + 2 + 4) * experts)
    # The same arithmetic and update, of larger products.
    assert divided.matrix_s == pytest.approx(stage.matrix_s)
    assert divided.matrix_bytes_s < stage.matrix_bytes_s
    assert divided.optimizer_s == pytest.approx(stage.optimizer_s)


def test_experts_of_unequal_load_widen_the_interval_of_expert_parallelism() -> None:
    divided = (*MOE, "parallelism.expert=16")
    known, found = work(*divided), speed(of(*divided))
    assert found is not None
    of_constants = STEP_TIME_PRIOR.interval(lambda constants: step_time_s(known, constants))
    slower = step_time_s(replace(known, imbalance=1.5), DEFAULTS) / of_constants.point
    assert 1.2 < slower < 1.5
    above = math.log(found.step_time_s.high / of_constants.point)
    assert above == pytest.approx(math.hypot(math.log(of_constants.high / of_constants.point), math.log(slower)))
    assert found.step_time_s.low < of_constants.low


@pytest.mark.parametrize(
    ("settings", "each", "one"),
    [
        # Weights in bfloat16, gradients in float32; those of the layers are gathered again for backward.
        (("parallelism=fsdp_full",), 2 + 2 * LAYERS + 4, 2 + 2 * LAYERS + 4),
        (("parallelism=fsdp_grad_op",), 4, 2 + 4),
        (("parallelism=fsdp_grad_op", "parallelism.reduce_each=step"), 0, 2 + 4),
        (("parallelism=fsdp_full", "parallelism.reduce_each=step"), 2 + 2 * LAYERS, 2 + 2 * LAYERS + 4),
    ],
)
def test_weights_kept_after_forward_are_gathered_once_a_step(
    settings: tuple[str, ...], each: float, one: float
) -> None:
    found = work(*settings, "nodes=2")
    assert found.micro_batches == 4
    (stage,) = found.stages
    whole = 15 / 16 * (8_030_261_248 - 4_096)
    assert stage.shard.each.wire_bytes == pytest.approx(each * whole)
    assert stage.shard.one.wire_bytes == pytest.approx(one * whole)
    assert stage.replica.wire_bytes == 0


def test_a_pipeline_gathers_sharded_weights_once_a_step() -> None:
    found = work("parallelism=pp_fsdp", "parallelism.pipeline=2", "nodes=2")
    embedding, layer = 128_256 * 4_096, (8_030_261_248 - 2 * 128_256 * 4_096 - 4_096) / 32
    for stage in found.stages:
        assert stage.shard.one.wire_bytes == stage.shard.each.wire_bytes == 0
        assert stage.replica.wire_bytes == pytest.approx((4 + 2) * 7 / 8 * (16 * layer + embedding))


@pytest.mark.parametrize(
    ("schedule", "idle"), [("1F1B", 3), ("GPipe", 3), ("Interleaved1F1B", 1.5), ("ZBVZeroBubble", 0)]
)
def test_the_bubble_is_the_schedules(schedule: str, idle: float) -> None:
    found = work("parallelism=pp", "parallelism.pipeline=4", f"parallelism.schedule={schedule}")
    assert found.bubble == idle


def test_a_slower_network_slows_only_groups_that_span_nodes() -> None:
    slow = replace(DEFAULTS, network_efficiency=DEFAULTS.network_efficiency / 4)
    inside, across = ("parallelism=ddp",), ("parallelism=ddp", "nodes=4")
    assert terms(*inside, constants=slow).total == terms(*inside).total
    assert terms(*across, constants=slow).data_parallel > 2 * terms(*across).data_parallel


def sent_s(*overrides: str) -> float:
    """Return the time that the gradients of a step are on the way."""
    found = work(*overrides)
    return seconds(found.stages[0].replica, found.links, DEFAULTS)


def test_traffic_hides_behind_computation_where_the_engine_sends_early_and_slows_it() -> None:
    nemo = ("engine=nemo", "parallelism=tp", "parallelism.tensor=4", "nodes=4")
    hidden, shown = (terms(*nemo, f"engine.overlap_communication={on}") for on in ("true", "false"))
    assert hidden.matrices == shown.matrices
    assert hidden.tensor_parallel == pytest.approx(DEFAULTS.contention * shown.tensor_parallel)
    assert DEFAULTS.contention * shown.data_parallel < hidden.data_parallel < shown.data_parallel
    # Adapters: Transformer Engine's buffers are off (jobs/engines/nemo/recipe.py).
    lora = terms(*nemo, "job=finetune_lora", "data=docstrings")
    assert lora.tensor_parallel == pytest.approx(shown.tensor_parallel, rel=0.01)
    # Products that torch compiles and cuts hide a part of it, and no others.
    native = ("parallelism=tp", "parallelism.tensor=8", "engine.compile=true")
    cut, whole = (terms(*native, f"engine.overlap_communication={on}") for on in ("true", "false"))
    assert 0.3 * whole.tensor_parallel < cut.tensor_parallel < 0.95 * whole.tensor_parallel
    assert terms(*native, "engine.compile=false").tensor_parallel == whole.tensor_parallel
    # A step is never shorter than what is sent.
    slow = ("parallelism=ddp", "nodes=4", "cluster.network_gb_per_s=0.1")
    assert terms(*slow).data_parallel > 0.9 * sent_s(*slow)


def test_a_rank_with_several_stages_completes_gradients_over_a_round_of_micro_batches() -> None:
    nemo = ("engine=nemo", "parallelism=pp", "parallelism.pipeline=4", "nodes=4", "gpu.link_gb_per_s=10")
    one_stage, two_stages = (
        terms(*nemo, f"parallelism.schedule={schedule}", f"parallelism.stages_per_rank={stages}")
        for schedule, stages in (("1F1B", 1), ("Interleaved1F1B", 2))
    )
    assert two_stages.data_parallel < 0.9 * one_stage.data_parallel
    assert two_stages.pipeline_parallel < 2 * one_stage.pipeline_parallel, "and its messages hide"


def test_gradients_in_bfloat16_halve_what_megatron_sends_and_holds_of_them() -> None:
    nemo = ("engine=nemo", "parallelism=ddp", "nodes=2")
    (wide,), (narrow,) = (work(*nemo, f"engine.gradients={kind}").stages for kind in ("float32", "bfloat16"))
    assert narrow.replica.wire_bytes / wide.replica.wire_bytes == pytest.approx((2 + 2) / (4 + 2))


def test_matrices_are_not_predicted_above_the_largest_rate_that_a_gpu_was_measured_at() -> None:
    for gpu, most in (("mi300x", 668.4e12), ("a100_sxm_80gb", 271.2e12), ("gb200_nvl72", 1822e12)):
        found = work("parallelism=ddp", f"gpu={gpu}")
        flops = 6 * (8_030_261_248 - 128_256 * 4_096 - 65 * 4_096) * 4_096
        assert flops / (found.stages[0].matrix_s / DEFAULTS.matrix_share) == pytest.approx(0.9 * most, rel=1e-3)


# Megatron in NeMo 24.09 on H100, step times of NVIDIA/dgxc-benchmarking v24.11.1 (llama3.1/README_70b.md).
@pytest.mark.parametrize(("layout", "step_s"), [
    (("model=llama31_70b", "nodes=8", "parallelism.tensor=4", "parallelism.pipeline=4", "parallelism.context=2",
      "scaling.global_batch_size=128"), 14.72),
    (("model=llama31_70b", "nodes=128", "parallelism.tensor=4", "parallelism.pipeline=4", "parallelism.context=2",
      "scaling.global_batch_size=2048"), 14.92),
])  # fmt: skip
def test_uncalibrated_predictions_are_near_what_nvidia_published_of_megatron(
    layout: tuple[str, ...], step_s: float
) -> None:
    given = ("engine=nemo", "parallelism=tp_pp", "parallelism.schedule=Interleaved1F1B",
             "parallelism.stages_per_rank=5", "job.sequence_length=8192", "engine.gradients=bfloat16",
             "cluster.network_gb_per_s=50")  # fmt: skip
    assert terms(*given, *layout).total == pytest.approx(step_s, rel=0.12)


def test_the_chosen_network_sets_the_bandwidth_between_nodes() -> None:
    across = ("parallelism=ddp", "nodes=4", "cluster.network_gb_per_s=50")
    whole = sent_s(*across)
    assert sent_s(*across, "network=infiniband_4_adapters") == pytest.approx(2 * whole, rel=0.05)
    eight = ",".join(f"mlx5_{i}" for i in range(8))
    assert sent_s(*across, f"network.adapters=[{eight}]") == whole
    assert sent_s(*across, "network=tcp", "network.gb_per_s=5") == pytest.approx(10 * whole, rel=0.05)
    assert terms("parallelism=ddp", "network.gb_per_s=5").total == terms("parallelism=ddp").total, "one node"


def test_on_the_contests_machine_hybrid_sharding_is_faster_on_two_nodes_as_its_document_found() -> None:
    contest = ("experiment=apac_hpc_ai_2024", "cluster=aspire2a", "gpu=a100_sxm_80gb", "job.micro_batch_size=8",
               "cluster.account=mine", "data.path=alpaca")  # fmt: skip
    full, hybrid = (
        step_time(found, DEFAULTS).total
        for name in ("fsdp_full", "fsdp_hybrid")
        if (found := step_work(one(*contest, f"parallelism={name}").run)) is not None
    )
    assert full > 1.5 * hybrid
    # Four steps took 41.42 s.
    assert 4 * full == pytest.approx(41.42, rel=0.25)


def test_small_layers_take_as_long_as_the_host_needs_to_launch_them() -> None:
    small = ("model=pythia_14m", "job.sequence_length=512", "parallelism=ddp")
    slow = replace(DEFAULTS, layer_launch_s=0.1)
    assert terms(*small, constants=slow).launches == pytest.approx(8 * 6 * 0.1, rel=0.05)


def test_both_sums_of_a_step_agree() -> None:
    for overrides in (("parallelism=ddp",), ("parallelism=tp_pp_fsdp", "nodes=2"), ("parallelism=fsdp_full",),
                      ("parallelism=fsdp_grad_op", "parallelism.reduce_each=step", "nodes=2")):  # fmt: skip
        found = work(*overrides)
        assert step_time_s(found, DEFAULTS) == pytest.approx(step_time(found, DEFAULTS).total, rel=0.01)


def test_mfu_counts_the_flops_that_reports_count() -> None:
    run = of("parallelism=ddp")
    left_out = embedding_parameters(run.model)
    counted = CountedWork(parameters(run.model) - left_out, left_out, 6, 32, 4_096, 4_096, left_out)
    assert model_flops(run) == counted.model_flops


# Layers, width and heads: mosaicml/llm-foundry, scripts/train/yamls/pretrain.
MPT = {"mpt_7b": (32, 4096, 32), "mpt_13b": (40, 5120, 40), "mpt_30b": (48, 7168, 56), "mpt_70b": (80, 8192, 64)}
DEVICES = {"NVIDIA H100 80GB HBM3": "h100_sxm", "NVIDIA A100-SXM4-80GB": "a100_sxm_80gb",
           "NVIDIA A100-SXM4-40GB": "a100_sxm_40gb"}  # fmt: skip


def published() -> list[tuple[Run, float]]:
    """LLM Foundry's runs of published.csv and their MFU, which counts 6 N + 12 L a s."""
    base = of("parallelism=fsdp_full", "model.mlp=GptNeoxMLP", "model.tie_embeddings=true", "model.vocab_size=50368")
    gpus = {device: one(f"gpu={name}").run.gpu for device, name in DEVICES.items()}
    found = []
    with (ROOT / "analysis" / "compare" / "published.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["document"] != "llm_foundry" or row["model"] not in MPT:
                continue
            layers, width, heads = MPT[row["model"]]
            model = replace(base.model, layers=layers, hidden_size=width, heads=heads, kv_heads=heads,
                            head_size=width // heads, intermediate_size=4 * width)  # fmt: skip
            kept = (
                ActivationCheckpointing.none if "no checkpointing" in row["software"] else ActivationCheckpointing.full
            )
            job = replace(base.job, sequence_length=int(row["sequence_length"]),
                          micro_batch_size=int(row["micro_batch_size"]))  # fmt: skip
            run = replace(
                base,
                nodes=int(row["nodes"]),
                model=model,
                gpu=gpus[row["gpu"]],
                engine=replace(base.engine, activation_checkpointing=kept),
                job=job,
                scaling=replace(base.scaling, global_batch_size=int(row["global_batch_size"])),
            )
            found.append((run, float(row["value"])))
    return found


def test_published_runs_lie_in_the_intervals_of_uncalibrated_predictions() -> None:
    errors, inside = [], []
    for run, mfu in published():
        predicted = speed(run)
        assert predicted is not None
        errors.append(abs(predicted.mfu.point / mfu - 1))
        inside.append(predicted.mfu.low <= mfu <= predicted.mfu.high)
    assert len(errors) > 40
    assert statistics.median(errors) < 0.15
    assert statistics.fmean(inside) > 0.9


def test_plan_prints_predicted_speed_and_that_nothing_confirmed_it(capsys: pytest.CaptureFixture[str]) -> None:
    from jobs.plan.show import show

    show([*H100, "parallelism=fsdp_full", "job.steps=1000"], multirun=False)
    lines = capsys.readouterr().out.splitlines()
    heading = next(i for i, line in enumerate(lines) if "step (s)" in line)
    assert lines[heading + 1].split()[1] == "uncalibrated"
    found = speed(of("parallelism=fsdp_full", "job.steps=1000"))
    assert found is not None
    assert found.hours is not None
    assert 1000 * found.step_time_s.point < 3600 * found.hours.point < 1000 * found.step_time_s.point + 400
    assert found.step_time_s.high / found.step_time_s.low > 1.5


@pytest.mark.parametrize(("engine", "stall"), [("native", 0.06), ("nemo", 1)])
def test_predicted_hours_contain_the_checkpoint_at_the_end_for_which_a_run_waits(engine: str, stall: float) -> None:
    def besides_steps_s(every: str) -> float:
        saves = f"job.checkpoint_every_steps={every}"
        found = speed(of("parallelism=ddp", f"engine={engine}", "job.steps=1000", saves))
        assert found is not None
        assert found.hours is not None
        return 3600 * found.hours.point - 1000 * found.step_time_s.point

    # Weights in float32 and both moments, at 1 GB/s.
    write_s, without = 12 * 8_030_261_248 / 1e9, besides_steps_s("null")
    for every, earlier in ((300, 3), (500, 1), (1000, 0), (2000, 0)):
        assert besides_steps_s(str(every)) - without == pytest.approx((earlier * stall + 1) * write_s, rel=0.2)


def test_runs_on_cpus_and_runs_that_serve_have_no_predicted_speed(capsys: pytest.CaptureFixture[str]) -> None:
    from jobs.plan.show import show

    assert speed(one("model=tiny").run) is None
    served = one("job=serve", "engine=vllm", "cluster=xe9680_h100", "parallelism=tp", "model=llama2_7b").run
    assert speed(served) is None
    show(["model=tiny"], multirun=False)
    assert "predicted" not in capsys.readouterr().out


def test_layouts_of_100_000_gpus_are_predicted_without_listing_their_ranks() -> None:
    run = of("parallelism=tp_pp", "parallelism.tensor=8", "parallelism.pipeline=14", "nodes=12544",
             "model=llama31_405b", "engine=nemo", "scaling.global_batch_size=12544")  # fmt: skip
    assert layout_of(run).world_size == 100_352
    assert speed(run) is not None
