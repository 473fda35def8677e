"""Mixtures of experts compute what one process computes, also with experts divided over ranks (EP)."""

from __future__ import annotations

import copy
from dataclasses import asdict
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet
from litgpt.config import Config
from litgpt.model import GPT, LLaMAMoE
from torch import nn

from jobs.engines.litgpt.config import OwnConfig
from jobs.engines.native.experts.mixture import activated, use_mixture
from jobs.engines.native.experts.router import BIAS, route, use_router
from jobs.metrics import COLLECTIVE_BYTES, COLLECTIVE_CALLS, EXPERT_IMBALANCE, PARAMETERS_HELD, PARAMETERS_TRAINED
from jobs.parallelism import Schedule
from jobs.plan.cost import parameters
from jobs.plan.model_file import from_config_json
from jobs.plan.predict.activations import GROUPED_MULTIPLE
from jobs.plan.predict.states import parameters_held
from jobs.rundir import RunDir, load_run
from tests.support import ring_on_cpu
from tests.support.frozen_weights import NF4, base_weights, lora_run
from tests.support.real_run import events, make_run, printed, steps, train
from tests.support.required import need_bitsandbytes
from tests.support.tiny_data import write_json
from tests.support.training import DEEP, assert_equal, interrupted, long

# The norm is above 1 at first, so that a wrong one changes the updates too.
MODEL = (
    *DEEP,
    "model.mlp=LLaMAMoE",
    "model.experts=4",
    "model.experts_per_token=2",
    "job.clip_norm=1.0",
)
# As DeepSeek-V3: shared experts, a dense layer, groups of experts, a bias of the choice, latent attention.
DEEPSEEK = (
    "model=deepseek_v3", *DEEP, "model.experts=8", "model.experts_per_token=3", "model.moe_intermediate_size=20",
    "model.dense_layers=1", "model.router.groups=4", "model.router.chosen_groups=2", "model.latent.kv_lora_rank=24",
    "model.latent.q_lora_rank=20", "model.latent.rope_head_size=4", "model.latent.value_head_size=8",
    "model.kv_heads=${model.heads}", "job.clip_norm=1.0", "job.expert_bias_speed=0.05",
)  # fmt: skip
ONE = ("parallelism=single", "ranks_per_node=1", "job.micro_batch_size=4")
EP = ("parallelism=fsdp_full", "parallelism.expert=2", "ranks_per_node=2")
# Each expert on two ranks, whose copies are equal.
REPLICATED = ("parallelism=fsdp_hybrid", "parallelism.data_shard=2", "parallelism.expert=2", "ranks_per_node=4")
# Each expert on two ranks, which have a half of it.
SHARDED = ("parallelism=fsdp_full", "parallelism.expert=2", "ranks_per_node=4")
PP = ("parallelism=pp_fsdp", "parallelism.expert=2", "ranks_per_node=4")


def done(where: Path, *overrides: str, model: tuple[str, ...] = MODEL) -> RunDir:
    """A run that has ended well and holds what is planned."""
    run = make_run(where, *model, "name=run", *overrides)
    config = load_run(run.config)
    assert train(run) == [0] * config.ranks, printed(run)
    (layout,) = events(run, "layout")
    assert layout[PARAMETERS_HELD.name] == parameters_held(config).total
    if config.job.trains_all_weights:
        assert layout[PARAMETERS_TRAINED.name] == parameters(config.model)
    return run


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return done(tmp_path_factory.mktemp("one"), *ONE, "job.export=true")


# --- one rank ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [48, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_the_order_of_their_experts_give_litgpts_results_and_gradients(
    width: int, dtype: torch.dtype, *, bias: bool
) -> None:
    grouped = width % GROUPED_MULTIPLE == 0 and dtype is torch.bfloat16
    torch.manual_seed(1)
    config = OwnConfig(n_embd=32, n_head=4, n_expert=5, n_expert_per_token=2, mlp_class_name="LLaMAMoE", bias=bias,
                       intermediate_size=width, moe_intermediate_size=width)  # fmt: skip
    theirs = LLaMAMoE(config).to(dtype)
    # No token chooses the last expert, and each one the first.
    with torch.no_grad():
        theirs.gate.weight[-1], theirs.gate.weight[0] = 0, 0
    ours = copy.deepcopy(theirs)
    use_mixture(ours)
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    x = torch.randn(2, 19, 32, dtype=dtype)
    found, cotangent = [], torch.randn_like(x)
    for module in (theirs, ours):
        given = x.clone().requires_grad_()
        result = module(given)
        result.backward(cotangent)
        found.append([result, given.grad, *(parameter.grad for parameter in module.parameters())])
    tolerance = 2e-2 if grouped else None
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)


def test_limited_swiglu_has_the_result_and_gradients_of_its_definition() -> None:
    gate, up, cotangent = (4 * torch.randn(64, 48, dtype=torch.float64).requires_grad_() for _ in range(3))

    def defined(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)

    found, expected = activated(gate, up, 7.0), defined(gate, up)
    torch.testing.assert_close(found, expected)
    assert (up.abs() > 7).any(), "no value is limited"
    gradients = (torch.autograd.grad(result, (gate, up), cotangent) for result in (found, expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("v2", {"topk_method": "greedy", "routed_scaling_factor": 1.5}),
        ("v2", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 16.0}),
        ("v3", {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}),
        ("v3", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0}),
    ],
)
def test_a_router_by_scores_of_all_experts_chooses_and_weights_as_transformers_does(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(
        f"deepseek_{kind}", hidden_size=32, n_routed_experts=16, num_experts_per_tok=4, **settings
    )
    package = import_module(f"transformers.models.deepseek_{kind}.modeling_deepseek_{kind}")
    theirs = package.DeepseekV2MoEGate(config) if kind == "v2" else package.DeepseekV3TopkRouter(config)
    torch.nn.init.normal_(theirs.weight)
    ours = nn.Linear(32, 16, bias=False)
    ours.weight = theirs.weight
    architecture = f"Deepseek{kind.upper()}ForCausalLM"
    write_json(tmp_path / "config.json", config.to_dict() | {"architectures": [architecture]})
    router = from_config_json(tmp_path / "config.json").router
    assert router is not None
    use_router(ours, asdict(router) | {"scores": router.scores.name})
    if kind == "v3":
        theirs.e_score_correction_bias.uniform_(0, 0.5)
        ours.get_buffer(BIAS).copy_(theirs.e_score_correction_bias)
    x = torch.randn(3, 50, 32)
    expected_chosen, expected = theirs(x)
    _, chosen, shares = route(ours, x, 4)
    # transformers does not sort them.
    found = torch.zeros(150, 16).scatter(1, chosen.flatten(0, 1), shares.flatten(0, 1))
    torch.testing.assert_close(found, torch.zeros(150, 16).scatter(1, expected_chosen, expected))


# --- every product -------------------------------------------------------------------------------------------


def products() -> list[ParameterSet]:
    """Every product of EP with the other axes up to eight ranks, and the schedules; of which CI has three."""
    numbers = (1, 2, 4)
    found: list[tuple[str, ...]] = []
    for pipeline, replicate, expert, shard, tensor in product((1, 2), numbers, (2, 4), numbers, (1, 2)):
        ranks = pipeline * replicate * expert * shard * tensor
        if ranks <= 8:
            found.append((
                "parallelism=fsdp_full", f"parallelism.pipeline={pipeline}", f"parallelism.data_replicate={replicate}",
                f"parallelism.data_shard={expert * shard}", f"parallelism.expert={expert}",
                f"parallelism.tensor={tensor}", f"ranks_per_node={ranks}",
            ))  # fmt: skip
    kept = (*PP, "parallelism.sharding=SHARD_GRAD_OP")
    found.extend((*kept, f"parallelism.schedule={schedule.name}") for schedule in Schedule)
    return [pytest.param(EP), pytest.param(REPLICATED, marks=pytest.mark.slow), *map(long, found)]


@pytest.mark.parametrize("overrides", products(), ids="-".join)
def test_every_product_of_ep_computes_what_one_process_computes(
    overrides: tuple[str, ...], one_process: RunDir, tmp_path: Path
) -> None:
    assert_equal(steps(done(tmp_path, *overrides)), steps(one_process))


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return done(tmp_path_factory.mktemp("deepseek"), *ONE, "job.export=true", model=DEEPSEEK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        EP,
        long(SHARDED),
        long(REPLICATED),
        long(PP),
        long(("parallelism=tp_fsdp", "parallelism.tensor=2", "parallelism.expert=2", "ranks_per_node=4")),
        long((*EP, "engine.activation_checkpointing=full")),
    ],
    ids="-".join,
)
def test_shared_experts_dense_layers_and_latent_attention_compute_what_one_process_computes(
    overrides: tuple[str, ...], deepseek: RunDir, tmp_path: Path
) -> None:
    run = done(tmp_path, *overrides, "job.export=true", model=DEEPSEEK)
    assert_equal(steps(run), steps(deepseek))
    found, expected = (torch.load(each.export / "lit_model.pth", weights_only=True) for each in (run, deepseek))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    # By 0.05 after each of six steps, up or down, or 0 for a load that is the mean.
    biases = [found[name] for name in found if name.endswith(BIAS)]
    assert len(biases) == load_run(run.config).model.layers - 1
    assert all(0.05 <= bias.abs().max() <= 0.301 for bias in biases)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(EP, ONE), long(ONE, PP)])
def test_the_bias_of_experts_continues_with_another_layout(
    first: tuple[str, ...], then: tuple[str, ...], deepseek: RunDir, tmp_path: Path
) -> None:
    run = interrupted(tmp_path / "first", *DEEPSEEK, *first)
    resumed = make_run(tmp_path / "then", *DEEPSEEK, *then, "job.checkpoint_every_steps=3", "job.export=true")
    run.checkpoints.rename(resumed.checkpoints)
    resumed.metrics.write_text(run.metrics.read_text())
    assert set(train(resumed)) == {0}, printed(resumed)
    assert_equal(steps(resumed), steps(deepseek))
    found, expected = (torch.load(each.export / "lit_model.pth", weights_only=True) for each in (resumed, deepseek))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        long(("engine.activation_checkpointing=full",)),
        ("engine.activation_checkpointing=selective",),
        long(("parallelism.sharding=SHARD_GRAD_OP", "job.micro_batch_size=2", "parallelism.reduce_each=step")),
        long(("parallelism.prefetch=2", "engine.loss=chunked")),
        long(("job.weight_decay_on=matrices",)),
        long(("model.moe_intermediate_size=48", "model.norm_qk=true")),
        (
            "model.bias=true",
            "model.swiglu_limit=7",
            "model.attention_sinks=true",
            "model.sliding_window=8",
            "model.full_attention_every=2",
        ),
    ],
    ids=" ".join,
)
def test_settings_compute_the_same_with_divided_experts(
    settings: tuple[str, ...], one_process: RunDir, tmp_path: Path
) -> None:
    of_model = [each for each in settings if each.startswith(("model.", "job.weight"))]
    one = done(tmp_path / "one", *ONE, *of_model) if of_model else one_process
    assert_equal(steps(done(tmp_path / "ep", *EP, *settings)), steps(one))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_16_bits_train_close_to_float32(precision: str, one_process: RunDir, tmp_path: Path) -> None:
    for row, expected in zip(
        steps(done(tmp_path, *SHARDED, f"job.precision={precision}")), steps(one_process), strict=True
    ):
        assert row["loss"] == pytest.approx(expected["loss"], abs=0.02)
        assert row["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=0.05)


@pytest.mark.slow
@pytest.mark.long
def test_experts_are_divided_within_a_ring_of_sequences(one_process: RunDir, tmp_path: Path) -> None:
    ring = ("parallelism=cp_fsdp", "parallelism.expert=2", "ranks_per_node=4", "job.micro_batch_size=2",
            "launcher=dry", "cluster.gpus=true", "cluster.ranks_per_node=8")  # fmt: skip
    run = make_run(tmp_path, *MODEL, "name=run", *ring)
    assert ring_on_cpu.train(run) == [0] * 4, printed(run)
    assert_equal(steps(run), steps(one_process))


# --- balance -------------------------------------------------------------------------------------------------


def imbalances(run: RunDir) -> list[float]:
    return [row[EXPERT_IMBALANCE.name] for row in steps(run)]


def test_the_imbalance_of_experts_is_that_of_all_ranks(one_process: RunDir, tmp_path: Path) -> None:
    found = imbalances(done(tmp_path, *EP, "job.steps=2"))
    assert found == pytest.approx(imbalances(one_process)[:2], abs=0.02), (
        "a few tokens may choose otherwise by rounding"
    )
    assert all(1 < each <= 2 for each in found), "of 4 experts each token has 2"


BALANCED = ("job.expert_balance_loss=0.5", "job.steps=12")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("overrides", [EP, SHARDED, PP, ("parallelism=tp", "ranks_per_node=2")], ids="-".join)
def test_a_balance_loss_lowers_the_imbalance_and_is_the_same_under_every_product(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    without, balanced = (
        done(tmp_path / each, *ONE, *BALANCED[1:], *own) for each, own in (("0", ()), ("1", BALANCED[:1]))
    )
    assert imbalances(balanced)[-1] < imbalances(without)[-1] - 0.05
    assert_equal(steps(done(tmp_path / "all", *overrides, *BALANCED)), steps(balanced))


# --- what travels, and what is held ---------------------------------------------------------------------------


def test_tokens_travel_to_their_experts_and_back_in_both_directions(tmp_path: Path) -> None:
    run = done(tmp_path, *EP, "job.micro_batch_size=4")
    (event,) = events(run, "layout")
    config = load_run(run.config)
    collectives = event["collectives"]
    assert isinstance(collectives, list)
    sent = {(each["axis"], each["collective"]): each for each in collectives}
    exchanges = sent["ep", "all_to_all"]
    # Counts, rows and results in forward, results and rows in backward.
    assert exchanges[COLLECTIVE_CALLS.name] == 5 * config.model.layers
    rows = config.job.micro_batch_size * config.job.sequence_length * config.model.experts_per_token
    # Every row is sent or stays; a rank receives as many as its experts draw.
    least = 4 * rows * config.model.hidden_size * 4 * config.model.layers
    assert least <= exchanges[COLLECTIVE_BYTES.name] <= 2 * least
    assert event[PARAMETERS_HELD.name] == parameters(config.model) // 2


# --- weights in and out ---------------------------------------------------------------------------------------


def stock(export: Path) -> GPT:
    """An exported directory as stock LitGPT reads it."""
    gpt = GPT(Config.from_file(export / "model_config.yaml"))
    gpt.load_state_dict(torch.load(export / "lit_model.pth", weights_only=True))
    return gpt


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [EP, long(SHARDED), long(REPLICATED), long((*PP, "parallelism.schedule=1F1B"))])
def test_an_export_of_divided_experts_gives_the_same_logits_in_stock_litgpt(
    overrides: tuple[str, ...], one_process: RunDir, tmp_path: Path
) -> None:
    run = done(tmp_path, *overrides, "job.export=true")
    tokens = torch.randint(0, 320, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(stock(run.export)(tokens), stock(one_process.export)(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (EP, ONE),
        long(ONE, EP),
        long((*EP[:1], "parallelism.expert=4", "ranks_per_node=4"), SHARDED),
        long(SHARDED, ("parallelism=fsdp_full", "ranks_per_node=2")),
        long(REPLICATED, PP),
        long(PP, ("parallelism=tp_fsdp", "parallelism.expert=2", "ranks_per_node=4")),
    ],
)
def test_resuming_continues_the_same_losses_with_another_division_of_experts(
    first: tuple[str, ...], then: tuple[str, ...], one_process: RunDir, tmp_path: Path
) -> None:
    run = interrupted(tmp_path / "first", *MODEL, *first)
    resumed = make_run(tmp_path / "then", *MODEL, *then, "job.checkpoint_every_steps=3")
    run.checkpoints.rename(resumed.checkpoints)
    resumed.metrics.write_text(run.metrics.read_text())
    assert set(train(resumed)) == {0}, printed(resumed)
    assert events(resumed, "started")[-1]["from_step"] == 3
    assert_equal(steps(resumed), steps(one_process))


@pytest.mark.slow
@pytest.mark.long
def test_one_rank_of_a_node_reads_the_experts_for_those_that_hold_the_same(one_process: RunDir, tmp_path: Path) -> None:
    start = f"job.init_from={one_process.export}"
    expected = steps(done(tmp_path / "one", *ONE, start))
    assert_equal(steps(done(tmp_path / "ep", *SHARDED, start, "engine.weights=node")), expected)


# --- adapters ------------------------------------------------------------------------------------------------

OF_EXPERTS = ("model.mlp=LLaMAMoE", "model.experts=4", "model.experts_per_token=2")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "overrides",
    [EP, SHARDED, (*EP, "parallelism.tensor=2", "ranks_per_node=4"), (*EP, NF4), (*SHARDED, NF4)],
    ids=" ".join,
)
def test_adapters_of_divided_experts_train_as_in_one_process(overrides: tuple[str, ...], tmp_path: Path) -> None:
    base, in_4_bits = base_weights(tmp_path, *OF_EXPERTS), [each for each in overrides if each == NF4]
    if in_4_bits:
        need_bitsandbytes()
    one = lora_run(tmp_path / "one", base, *OF_EXPERTS, *ONE, *in_4_bits)
    run = lora_run(tmp_path / "ep", base, *OF_EXPERTS, *overrides)
    assert_equal(steps(run), steps(one))
    assert events(run, "layout")[0][PARAMETERS_HELD.name] == parameters_held(load_run(run.config)).total
    assert events(run, "layout")[0][PARAMETERS_TRAINED.name] == events(one, "layout")[0][PARAMETERS_TRAINED.name]
    for file in ("lit_model.pth", "lit_model.pth.lora"):
        weights, expected = (torch.load(each.export / file, weights_only=True) for each in (run, one))
        torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)
