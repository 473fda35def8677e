"""Choices of speed in the native engine: each trains to the same losses, or is refused with a remedy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from litgpt.model import LLaMAMLP
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from jobs.engines.native import float8
from jobs.engines.native.attention import Attention
from jobs.engines.native.data_parallel import gather_ahead, replicate
from jobs.engines.native.kernels import fuse
from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.model import empty_model
from jobs.engines.native.weights import random_value, values_of
from jobs.parallelism import AXIS_NAMES
from jobs.plan.compose import compose
from jobs.plan.legality import warnings
from jobs.rundir import RunDir
from jobs.schema import LigerKernel
from tests.support.composing import one
from tests.support.real_run import events, losses, make_run, printed, rank, steps, train
from tests.support.training import assert_equal, long

FLOAT8 = "engine.float8=true engine.compile=true job.precision=bfloat16"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """One process, whose export all others start from."""
    run = make_run(
        tmp_path_factory.mktemp("weights"), "parallelism=single", "ranks_per_node=1", "job.export=true", "job.steps=1",
        "job.warmup_steps=0",
    )  # fmt: skip
    assert train(run) == [0], printed(run)
    return run


@pytest.fixture(scope="module")
def plain(weights: RunDir, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """Two ranks of FSDP from these weights, with every choice at its default: what the others must reproduce."""
    run = make_run(tmp_path_factory.mktemp("plain"), "parallelism=fsdp_full", f"job.init_from={weights.export}")
    assert train(run) == [0, 0], printed(run)
    return steps(run)


# --- weights read once a node ----------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [long("fsdp_full"), long("tp_pp")])
def test_weights_read_once_a_node_are_those_that_every_rank_reads(
    parallelism: str, weights: RunDir, plain: list[dict[str, float]], tmp_path: Path
) -> None:
    ranks = {"tp_pp": 4}.get(parallelism, 2)
    run = make_run(tmp_path, f"parallelism={parallelism}", f"ranks_per_node={ranks}", f"job.init_from={weights.export}",
                   "engine.weights=node")  # fmt: skip
    assert train(run) == [0] * ranks, printed(run)
    assert_equal(steps(run), plain)


def test_only_the_first_rank_of_a_node_opens_the_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, f"job.init_from={tmp_path}/nothing", "engine.weights=node")
    assert set(train(run)) == {1}
    errors = {failed["rank"]: str(failed["error"]) for failed in events(run, "failed")}
    assert "has neither lit_model.pth nor *.safetensors. Set it to a Hugging Face directory" in errors[0]
    assert "lit_model.pth" not in errors.get(1, "")


# --- batches made ahead ----------------------------------------------------------------------------------------


def test_batches_made_ahead_are_the_same_in_the_same_order(
    weights: RunDir, plain: list[dict[str, float]], tmp_path: Path
) -> None:
    run = make_run(tmp_path, "parallelism=fsdp_full", f"job.init_from={weights.export}", "engine.prefetch_batches=3")
    assert train(run) == [0, 0], printed(run)
    assert [row["loss"] for row in steps(run)] == [row["loss"] for row in plain], "not a bit may differ"


# --- the optimizer's loop, gathering ahead, types of the weights ----------------------------------------------


@pytest.mark.parametrize(
    ("parallelism", "choices"),
    [
        long("tp", "engine.optimizer_loop=fused"),
        long("fsdp_full", "engine.optimizer_loop=fused"),
        long("tp", "engine.optimizer_loop=foreach"),
        long("fsdp_full", "engine.optimizer_loop=foreach parallelism.prefetch=1"),
        long("fsdp_full", "engine.optimizer_loop=single parallelism.prefetch=5"),
        long("fsdp_grad_op", "parallelism.prefetch=2 engine.activation_checkpointing=full"),
    ],
)  # fmt: skip
def test_how_the_optimizer_loops_and_weights_are_gathered_does_not_change_the_losses(
    parallelism: str, choices: str, weights: RunDir, plain: list[dict[str, float]], tmp_path: Path
) -> None:
    run = make_run(tmp_path, f"parallelism={parallelism}", f"job.init_from={weights.export}", *choices.split())
    assert train(run) == [0, 0], printed(run)
    assert_equal(steps(run), plain)


def test_every_layer_gathers_the_next_ones_and_in_backward_the_ones_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unit(torch.nn.Module):
        def set_modules_to_forward_prefetch(self, modules: list[Unit]) -> None:
            self.after = modules

        def set_modules_to_backward_prefetch(self, modules: list[Unit]) -> None:
            self.before = modules

    units = [Unit() for _ in range(4)]
    gather_ahead(cast(list[FSDPModule], units), 2)
    assert [unit.after for unit in units] == [units[1:3], units[2:4], units[3:], []]
    assert [unit.before for unit in units] == [[], [units[0]], [units[1], units[0]], [units[2], units[1]]]


@pytest.mark.parametrize("parallelism", ["fsdp_full", long("ddp")])
def test_bfloat16_weights_train_close_to_float32_ones_and_are_exported_so(
    parallelism: str, weights: RunDir, plain: list[dict[str, float]], tmp_path: Path
) -> None:
    run = make_run(tmp_path, f"parallelism={parallelism}", f"job.init_from={weights.export}", "job.export=true",
                   "job.precision=bfloat16", "engine.parameters=bfloat16", "job.learning_rate=1e-2")  # fmt: skip
    assert train(run) == [0, 0], printed(run)
    state = torch.load(run.export / "lit_model.pth", weights_only=True)
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    assert losses(run)[0] == pytest.approx(plain[0]["loss"], abs=0.05)
    assert losses(run)[-1] < losses(run)[0]


def rank_that_names_types(directory: Path, number: int, world: int, start: str) -> None:
    """One rank, which writes the types that attention gets."""
    types: set[str] = set()
    forward = Attention.forward

    def named(self: Attention, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *more: Any) -> torch.Tensor:
        types.update({f"activations {x.dtype}", f"table {cos.dtype}", f"table {sin.dtype}"})
        return forward(self, x, cos, sin, *more)

    pytest.MonkeyPatch().setattr(Attention, "forward", named)
    rank(directory, number, world, start)
    (directory / f"types{number}.json").write_text(json.dumps(sorted(types)))


def test_fsdp_in_bfloat16_keeps_the_rotary_table_in_float32(tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=fsdp_full", "ranks_per_node=2", "job.precision=bfloat16", "job.steps=1")
    assert train(run, of_rank=rank_that_names_types) == [0, 0], printed(run)
    found = [json.loads(file.read_text()) for file in run.path.glob("types*.json")]
    assert found == [["activations torch.bfloat16", "table torch.float32"]] * 2


def test_random_weights_of_any_type_are_the_same_but_for_rounding() -> None:
    def drawn(dtype: torch.dtype) -> torch.Tensor:
        return random_value("transformer.h.0.attn.qkv.weight", (8, 8), dtype, torch.device("cpu"), 1, norm=False)

    assert torch.equal(drawn(torch.bfloat16), drawn(torch.float32).bfloat16())


def test_the_plan_warns_of_rounded_updates() -> None:
    (point,) = compose(["job.precision=bfloat16", "engine.parameters=bfloat16"], multirun=False)
    assert any("updates below 1/256 of it are lost" in message for message in warnings(point.run))


# --- fused kernels ---------------------------------------------------------------------------------------------


class Rotated:
    """Rotate queries and keys (batch, heads, seq, head size) by tables (1, seq, head size), as Liger's kernel does."""

    @staticmethod
    def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> list[torch.Tensor]:
        def turned(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, dim=-1)
            return torch.cat((-second, first), dim=-1)

        return [x * cos.unsqueeze(1) + turned(x) * sin.unsqueeze(1) for x in (q, k)]


class Normalized:
    @staticmethod
    def apply(
        x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float, casting: str, in_place: bool
    ) -> torch.Tensor:
        assert (casting, in_place) == ("gemma", False)
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight + offset, eps)


class Gated:
    @staticmethod
    def apply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(a) * b


@pytest.mark.parametrize("norm_qk", [False, True])
def test_the_layers_that_call_fused_kernels_compute_what_litgpts_do(
    norm_qk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Liger's kernels run on GPUs only (test_gpu.py); their arithmetic in torch, and how they are called, here.
    stand_in = ModuleType("liger_kernel.ops")
    stand_in.__dict__.update(LigerRopeFunction=Rotated, LigerRMSNormFunction=Normalized, LigerSiLUMulFunction=Gated)
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.ops", stand_in)
    (point,) = compose(["model=tiny", f"model.norm_qk={norm_qk}"], multirun=False)
    gpt = empty_model(point.run.model, 16)
    load_sharded(gpt, torch.device("cpu"), values_of(None, 1), tensor=1, tied=False)
    tokens = torch.arange(32).reshape(2, 16)
    # Whole rows, and one packed row of samples of 9 and 7 tokens.
    rows = [(tokens, tokens + 1, 32), (tokens[:1], tokens[:1] + 1, 16, torch.tensor([[0, 9, 16]]))]

    def losses_and_gradient() -> list[torch.Tensor]:
        found = [gpt(*row) for row in rows]
        return [*found, torch.autograd.grad(found[0], gpt.transformer.wte.weight)[0]]

    names = [name for name, _ in gpt.named_parameters()]
    expected = losses_and_gradient()
    fuse(gpt, [LigerKernel.swiglu])
    assert {type(module) for module in gpt.modules() if "forward" in vars(module)} == {LLaMAMLP}
    assert not any("rotate" in vars(module) for module in gpt.modules())
    fuse(gpt, list(LigerKernel))
    torch.testing.assert_close(losses_and_gradient(), expected)
    norms = ("norm_1", "norm_2", *(("attn.norm_q", "attn.norm_k") if norm_qk else ()))
    layer = {f"transformer.h.0.{part}" for part in (*norms, "attn", "mlp")}
    replaced = {name for name, module in gpt.named_modules() if {"forward", "rotate"} & vars(module).keys()}
    assert layer | {"transformer.ln_f"} <= replaced
    assert [name for name, _ in gpt.named_parameters()] == names


def test_where_a_rank_has_no_gpu_fused_kernels_fall_back_on_record_or_end_the_run(
    weights: RunDir, plain: list[dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one = (f"job.init_from={weights.export}", "parallelism=single", "ranks_per_node=1")
    falls_back = make_run(tmp_path, "name=falls_back", *one, "engine.kernels=liger_or_torch")
    assert train(falls_back) == [0], printed(falls_back)
    assert events(falls_back, "started")[0]["kernels"] == "torch"
    assert_equal(steps(falls_back), plain)
    # Claims a GPU, and has none.
    ends = make_run(tmp_path, "name=ends", *one, "engine.kernels=liger", "gpu=h100_sxm")
    assert train(ends) == [1]
    assert "torch sees no GPU here (device cpu). Set engine.kernels=liger_or_torch, or engine.kernels=torch." in str(
        events(ends, "failed")[0]["error"]
    )


# --- DDP -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning")
def test_ddps_buckets_have_the_chosen_size() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not list it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,) * len(AXIS_NAMES), mesh_dim_names=AXIS_NAMES)
        runs = [one("parallelism=ddp", f"parallelism.bucket_mb={size}").run for size in ("null", 7)]
        sizes = [replicate(torch.nn.Linear(2, 2), mesh, run).bucket_bytes_cap for run in runs]
    finally:
        dist.destroy_process_group()
    assert sizes == [25 << 20, 7 << 20]


# --- float8 ----------------------------------------------------------------------------------------------------


def test_a_rank_whose_gpu_has_no_float8_ends_the_run_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = make_run(tmp_path, "parallelism=single", "ranks_per_node=1", "gpu=h100_sxm", *FLOAT8.split())
    assert train(run) == [1]
    assert "this rank has no NVIDIA GPU. Set engine.float8=false." in str(events(run, "failed")[0]["error"])


@dataclass(frozen=True)
class Scales:
    """The configuration of torchao's products."""

    recipe: str
    pad_inner_dim: bool = False
    enable_fsdp_float8_all_gather: bool = False
    emulate: bool = False

    @classmethod
    def from_recipe_name(cls, name: str) -> Scales:
        return cls(name)


def float8_rank(directory: Path, number: int, world: int, start: str) -> None:
    """One rank of a machine without float8, whose torchao writes its calls."""
    calls: list[str] = []

    def convert(gpt: torch.nn.Module, config: Scales, module_filter_fn: Callable[..., bool]) -> None:
        linear = {name: each for name, each in gpt.named_modules() if isinstance(each, torch.nn.Linear)}
        layers = [name for name, each in linear.items() if module_filter_fn(each, name)]
        calls.append(json.dumps(vars(config) | {"layers": layers}))

    torchao = ModuleType("torchao.float8")
    torchao.__dict__.update(
        Float8LinearConfig=Scales,
        convert_to_float8_training=convert,
        precompute_float8_dynamic_scale_for_fsdp=lambda _: calls.append("scales"),
    )
    sys.modules.update({"torchao": ModuleType("torchao"), "torchao.float8": torchao})
    patch = pytest.MonkeyPatch()
    patch.setattr(float8, "refuse_float8", lambda *_: None)
    patch.setattr(torch, "compile", lambda function, **_: function)
    try:
        rank(directory, number, world, start)
    finally:
        (directory / f"calls{number}.json").write_text(json.dumps(calls))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallelism", "recipe", "gathers"),
    [
        ("fsdp_full", "tensorwise", True),
        pytest.param("fsdp_full", "rowwise", False, marks=pytest.mark.long),
        pytest.param("ddp", "tensorwise", False, marks=pytest.mark.long),
    ],
)
def test_fsdp_sends_weights_in_float8_and_scales_them_once_a_step(
    parallelism: str, recipe: str, gathers: bool, tmp_path: Path
) -> None:
    run = make_run(tmp_path, f"parallelism={parallelism}", "ranks_per_node=2", "job.steps=3", "gpu=h100_sxm",
                   *FLOAT8.split(), f"engine.float8_recipe={recipe}")  # fmt: skip
    assert set(train(run, of_rank=float8_rank)) == {0}, printed(run)
    for file in run.path.glob("calls*.json"):
        converted, *scaled = json.loads(file.read_text())
        assert (json.loads(converted)["recipe"], json.loads(converted)["enable_fsdp_float8_all_gather"]) == (
            recipe, gathers)  # fmt: skip
        names = {layer.rpartition(".")[2] for layer in json.loads(converted)["layers"]}
        assert names == {"qkv", "proj", "fc_1", "fc_2"}, "all but the head"
        assert scaled == ["scales"] * (3 if gathers else 0)


class Wrapped(torch.Tensor):
    """A tensor around another one, as torchao wraps the weights that FSDP sends in float8."""

    @staticmethod
    def __new__(cls, tensor: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, tensor.size(), dtype=tensor.dtype)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub takes it for no class method
        cls, operator: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Wrapped:
        return cls(operator(*[each._tensor if isinstance(each, cls) else each for each in args], **(kwargs or {})))


def test_checkpoints_contain_weights_without_torchaos_type() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh, inner = init_device_mesh("cpu", (2,)), torch.ones(2, 3)
        weight = DTensor.from_local(
            Wrapped(inner), mesh, [Shard(0)], run_check=False, shape=torch.Size((3, 3)), stride=(3, 1)
        )
        found = float8.plain(weight)
        assert isinstance(found, DTensor)
        assert type(found.to_local()) is torch.Tensor
        assert found.to_local().data_ptr() == inner.data_ptr()
        assert (found.shape, found.placements) == (weight.shape, weight.placements)
        assert float8.plain(found) is found
    finally:
        dist.destroy_process_group()
