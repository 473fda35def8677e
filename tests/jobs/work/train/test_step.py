"""The arithmetic of a step against plain PyTorch: gradients, clipping, loss scale, rates and dropout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from litgpt.config import Config
from litgpt.model import GPT
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from jobs.data import open_dataset
from jobs.data.dataset import IGNORED
from jobs.engines.native import loss_scale
from jobs.engines.native import trainer as native
from jobs.engines.native.customization import lora
from jobs.engines.native.loss_scale import LossScale
from jobs.rundir import RunDir, load_run
from jobs.runtime.learning_rate import learning_rate
from jobs.runtime.steps import Samples, batches_of, samples, steps_of
from jobs.schema import WeightDecayOn
from tests.support.composing import one
from tests.support.real_run import events, losses, make_run, printed, steps, train
from tests.support.tiny_data import ALPACA, huggingface_tokenizer, tokenizer_config, write_json
from tests.support.training import assert_equal, long, rewind
from tests.support.waiting import limit_s

SINGLE = ("parallelism=single", "ranks_per_node=1")


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """The pipeline axis of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("pp",))
    dist.destroy_process_group()


# --- length, rates and weights of losses -----------------------------------------------------------------------


def test_the_rate_rises_in_a_line_and_falls_along_a_cosine_to_its_minimum_at_the_end() -> None:
    job = one("job.learning_rate=1", "job.min_learning_rate=0.2", "job.warmup_steps=4").run.job
    rates = {step: learning_rate(job, step, 12) for step in (1, 4, 6, 8, 12)}
    half_way = 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2
    assert rates == pytest.approx({1: 0.25, 4: 1, 6: half_way, 8: 0.6, 12: 0.2})
    # A run that is all warm-up, of a warm-up that ends with it.
    assert learning_rate(job, 4, 4) == 1


@pytest.mark.parametrize(
    ("decay", "falling"),
    [("cosine", (0.6, 0.2)), ("linear", (0.6, 0.2)), ("sqrt", (1 - 0.8 * math.sqrt(0.5), 0.2)), ("none", (1, 1))],
)
def test_a_decay_of_some_steps_ends_a_constant_rate(decay: str, falling: tuple[float, float]) -> None:
    steps = ("job.warmup_steps=2", *(() if decay == "none" else ("job.decay_steps=4",)))
    job = one("job.learning_rate=1", "job.min_learning_rate=0.2", f"job.decay={decay}", *steps).run.job
    assert [learning_rate(job, step, 20) for step in (1, 2, 9, 16)] == [0.5, 1, 1, 1]
    assert [learning_rate(job, step, 20) for step in (18, 20)] == pytest.approx(falling)
    # Of a run that is no longer than warm-up and decay.
    assert [learning_rate(job, step, 4) for step in (2, 4)] == pytest.approx([1, falling[1]])


def test_a_run_has_its_steps_or_those_of_its_epochs() -> None:
    batches: Any = SimpleNamespace(steps_per_epoch=6)
    assert steps_of(one("job.steps=5").run.job, batches) == 5
    assert steps_of(one("job.steps=null", "job.epochs=3").run.job, batches) == 18


def test_samples_of_equal_fields_are_keys_of_their_own() -> None:
    first, second = (Samples(Path("data"), 3, {"samples": 4.0}, None) for _ in range(2))
    assert {first: 1, second: 2}[first] == 1


@pytest.mark.parametrize(("batching", "sequences"), [("padded", 8), ("packed", 4)])
def test_the_balance_loss_is_weighted_by_the_sequences_of_a_step(batching: str, sequences: int) -> None:
    run = one(
        "ranks_per_node=2", "job.micro_batch_size=2", "scaling.global_batch_size=8", f"job.batching={batching}"
    ).run
    trainer = object.__new__(native.Trainer)
    trainer.run = replace(run, job=replace(run.job, expert_balance_loss=0.5))
    mixture: Any = SimpleNamespace(load=torch.ones(4), balance=None)
    trainer.averaged, trainer.mixtures = 2, {0: mixture}
    trainer.begin_balance(loss_scale=4.0)
    # The scale of the loss is in it, and the average over ranks is made a sum.
    assert mixture.load is None
    assert mixture.balance == pytest.approx(0.5 * 4 * 2 / sequences)


# --- clipping ------------------------------------------------------------------------------------------------


def gradient(values: Tensor) -> nn.Parameter:
    """Return a parameter with this gradient."""
    parameter = nn.Parameter(torch.zeros_like(values))
    parameter.grad = values.clone()
    return parameter


@pytest.mark.parametrize("limit", [1e6, 13.1, math.inf, None])
def test_gradients_below_the_limit_are_left_as_they_are(limit: float | None, mesh: DeviceMesh) -> None:
    first, second = gradient(torch.tensor([3.0, 4.0])), gradient(torch.tensor([[12.0]]))
    norm = native.clip([[first], [second]], limit, mesh, 1.0)
    assert norm.item() == 13
    torch.testing.assert_close(first.grad, torch.tensor([3.0, 4.0]), rtol=0, atol=0)
    torch.testing.assert_close(second.grad, torch.tensor([[12.0]]), rtol=0, atol=0)


def test_the_norm_of_bfloat16_gradients_has_the_digits_of_float32(mesh: DeviceMesh) -> None:
    torch.manual_seed(1)
    parameters = [gradient(torch.randn(300, 40).bfloat16()) for _ in range(8)]
    exact = torch.stack([each.grad.double().norm() for each in parameters if each.grad is not None]).norm().item()
    norm = native.clip([parameters], None, mesh, 1.0)
    assert norm.dtype is torch.float32
    assert norm.item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 8.0, 2.0**16])
@pytest.mark.parametrize("share", [0.5, 0.01, 0.9])
def test_gradients_above_the_limit_get_its_norm_whatever_the_loss_scale(
    share: float, scale: float, mesh: DeviceMesh
) -> None:
    parameters = [gradient(scale * torch.randn(5, 3)), gradient(scale * torch.randn(7))]
    norm = torch.cat([each.grad.flatten() / scale for each in parameters if each.grad is not None]).norm()
    found = native.clip([parameters], share * norm.item(), mesh, scale)
    assert found.item() == pytest.approx(norm.item(), rel=1e-5)
    after = torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]).norm()
    assert after.item() == pytest.approx(share * norm.item(), rel=1e-4)


@pytest.mark.parametrize("limit", [None, 1e6])
def test_the_loss_scale_is_taken_out_of_gradients_that_are_not_clipped(limit: float | None, mesh: DeviceMesh) -> None:
    parameter = gradient(torch.tensor([24.0, 32.0]))
    assert native.clip([[parameter]], limit, mesh, 8.0).item() == 5
    torch.testing.assert_close(parameter.grad, torch.tensor([3.0, 4.0]), rtol=0, atol=0)


def test_a_rank_without_gradients_has_no_norm_and_a_missing_gradient_stays_missing(mesh: DeviceMesh) -> None:
    assert native.clip([[]], 1.0, mesh, 1.0).item() == 0
    frozen, trained = nn.Parameter(torch.zeros(2)), gradient(torch.tensor([2.0]))
    assert native.clip([[frozen, trained]], 1.0, mesh, 1.0).item() == 2
    assert frozen.grad is None


# --- loss scale ----------------------------------------------------------------------------------------------


def test_the_loss_scale_doubles_after_good_updates_in_a_row_and_halves_at_an_overflow(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    scale, found = LossScale(), []
    for norm in (1.0, 1.0, 1.0, 1.0, 1.0, math.inf, 1.0, 1.0, math.nan, 1.0, 1.0, 1.0):
        skipped = scale.overflows(torch.tensor(norm))
        assert skipped == (not math.isfinite(norm))
        found.append((math.log2(scale.value), scale.skipped))
    assert found == [
        (16, 0), (16, 0), (17, 0), (17, 0), (17, 0), (16, 1), (16, 1), (16, 1), (15, 2), (15, 2), (15, 2), (16, 2),
    ]  # fmt: skip


def test_an_overflow_at_a_scale_of_one_is_none_of_the_scale(mesh: DeviceMesh) -> None:
    scale = LossScale()
    scale.state[0] = 2
    assert scale.overflows(torch.tensor(math.inf))
    assert scale.value == 1
    assert not scale.overflows(torch.tensor(math.inf)), "the norm, which is not finite, ends the run"
    assert scale.state.tolist() == [1, 0, 1]


def of_two(rank: int, store: Path, work: Any, out: Any) -> None:
    """Run the work of one of two ranks; put its result."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    out.put((rank, work(rank)))
    dist.destroy_process_group()


def on_two_ranks(where: Path, work: Any) -> list[Any]:
    """Return the results of two ranks."""
    context = get_context("fork")
    out = context.SimpleQueue()
    ranks = [context.Process(target=of_two, args=(rank, where / "store", work, out)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(limit_s(60))
    assert [process.exitcode for process in ranks] == [0, 0]
    return [value for _, value in sorted(out.get() for _ in ranks)]


def overflow_of_one(rank: int) -> tuple[list[bool], list[float]]:
    """Return what a rank decides where the norm of rank 1 alone is infinite in the second step."""
    scale = LossScale()
    decisions = [scale.overflows(torch.tensor(norm)) for norm in (1.0, math.inf if rank else 1.0, 1.0)]
    return decisions, scale.state.tolist()


def test_ranks_skip_an_update_together(tmp_path: Path) -> None:
    first, second = on_two_ranks(tmp_path, overflow_of_one)
    assert first == second == ([False, True, False], [2.0**15, 1, 1])


@pytest.mark.slow
def test_a_skipped_update_does_not_advance_the_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, infinite = native.clip, iter([False, True, True, False])

    def clip(*given: Any) -> Tensor:
        norm = honest(*given)
        return norm * math.inf if next(infinite) else norm

    monkeypatch.setattr(native, "clip", clip)
    run = make_run(tmp_path, *SINGLE, "job.precision=float16", "job.steps=4", "job.warmup_steps=4")
    assert train(run) == [0], printed(run)
    first, *skipped, after = [row["learning_rate"] for row in steps(run)]
    assert skipped == [2 * first] * 2
    assert after == 2 * first, "the update that was skipped is made at its own rate"
    assert [row["skipped_updates"] for row in steps(run)] == [0, 1, 2, 2]
    losses_of = losses(run)
    assert losses_of[1] != losses_of[0], "the first update was made"


# --- against plain PyTorch -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides for records of uneven length with masked prompts, from weights that can be read again."""
    where = tmp_path_factory.mktemp("tuned")
    first = make_run(where, *SINGLE, "name=first", "job.steps=1", "job.export=true", "model.max_sequence_length=256")
    assert train(first) == [0], printed(first)
    data = write_json(where / "alpaca.json", ALPACA * 5)
    tokenizer = tokenizer_config(huggingface_tokenizer(where / "tokenizer"), eos_token="</s>")
    return (
        f"job.init_from={first.export}", "data=alpaca", f"data.path={data}", f"data.tokenizer={tokenizer}",
        "data.mask_prompt=true", "job.sequence_length=256", "model.max_sequence_length=256", "data.too_long=truncate",
        "data.max_samples=null", "scaling.global_batch_size=4", "job.micro_batch_size=2", "job.steps=3",
    )  # fmt: skip


def plain(run: RunDir) -> Iterator[tuple[float, float]]:
    """Yield loss and gradient norm of each step of a run, by a loop of plain PyTorch over its samples and rates."""
    config = load_run(run.config)
    assert config.job.init_from is not None
    export = Path(config.job.init_from)
    model = GPT(Config.from_file(export / "model_config.yaml"))
    model.load_state_dict(torch.load(export / "lit_model.pth", weights_only=True))
    job, batches = config.job, batches_of(config, open_dataset(samples(config, run)), 0)
    kept = [each for each in model.parameters() if each.ndim < 2 and job.weight_decay_on is WeightDecayOn.matrices]
    others = [each for each in model.parameters() if not any(each is one for one in kept)]
    groups = [{"params": others, "weight_decay": job.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(job.beta1, job.beta2))
    for number, row in enumerate(steps(run), 1):
        micro_batches = batches.step(number).micro_batches
        labels = sum(int((each.targets != IGNORED).sum()) for each in micro_batches)
        tokens = sum(each.targets.size for each in micro_batches)
        assert len(micro_batches) == 2
        assert labels < 0.8 * tokens, "prompts and padding are no labels"
        total = torch.zeros(())
        for each in micro_batches:
            logits, targets = model(torch.from_numpy(each.inputs)), torch.from_numpy(each.targets)
            total = total + nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten().long(), ignore_index=IGNORED, reduction="sum"
            )
        loss = total / labels
        optimizer.zero_grad()
        loss.backward()
        limit = math.inf if job.clip_norm is None else job.clip_norm
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        for group in optimizer.param_groups:
            group["lr"] = row["learning_rate"]
        optimizer.step()
        yield loss.item(), norm.item()


@pytest.mark.parametrize(("clip_norm", "decayed"), [("null", "all"), ("1e6", "matrices"), ("0.05", "all")])
def test_fine_tuning_on_masked_prompts_computes_what_plain_pytorch_does(
    clip_norm: str, decayed: str, tuned: tuple[str, ...], tmp_path: Path
) -> None:
    # A decay large enough to show in the losses of three steps.
    decay = ("job.weight_decay=2", f"job.weight_decay_on={decayed}")
    run = make_run(tmp_path, *SINGLE, *tuned, *decay, f"job.clip_norm={clip_norm}")
    assert train(run) == [0], printed(run)
    for row, (loss, norm) in zip(steps(run), plain(run), strict=True):
        assert row["loss"] == pytest.approx(loss, abs=2e-5)
        assert row["gradient_norm"] == pytest.approx(norm, rel=2e-4)


# --- two ranks -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_of_tensor_parallel_ranks_resumes_where_it_was(tmp_path: Path) -> None:
    given = ("parallelism=tp", "ranks_per_node=2", "job.checkpoint_every_steps=3", "job.keep_checkpoints=2")
    run = make_run(tmp_path, *given)
    assert train(run) == [0, 0], printed(run)
    whole = steps(run)
    rewind(run, 3)
    assert train(run) == [0, 0], printed(run)
    assert [event["from_step"] for event in events(run, "started")] == [0, 3]
    assert_equal(steps(run), whole)


@pytest.mark.parametrize(("parallelism", "differ"), [("ddp", True), ("tp", False)])
def test_each_step_and_data_parallel_rank_drops_other_activations_and_tensor_parallel_ranks_the_same(
    parallelism: str, differ: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seeds"
    seen.mkdir()

    def seed(*given: Any) -> None:
        honest(*given)
        with (seen / str(dist.get_rank())).open("a") as file:
            file.write(f"{torch.initial_seed()}\n")

    honest = lora.seed_dropout
    monkeypatch.setattr(native, "seed_dropout", seed)
    run = make_run(
        tmp_path, f"parallelism={parallelism}", "ranks_per_node=2", "job=finetune_lora", "job.epochs=null",
        "data=random", "job.precision=float32", "job.lora.rank=4", "job.lora.dropout=0.1", "job.steps=3",
        "job.warmup_steps=0",
    )  # fmt: skip
    assert train(run) == [0, 0], printed(run)
    first, second = (file.read_text().split() for file in sorted(seen.iterdir()))
    assert len(set(first)) == len(set(second)) == 3
    assert len({*first, *second}) == (6 if differ else 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("job.batching=packed", "data=docstrings", "data.bpe_vocab_size=300", "data.too_long=truncate"),
        long(("model.mlp=LLaMAMoE", "model.experts=4", "model.experts_per_token=2")),
        long(("job=finetune_lora", "data=random", "job.epochs=null", "job.lora.dropout=0.1", "job.warmup_steps=0")),
        long(("engine.compile=true", "engine.activation_checkpointing=full")),
    ],
    ids=lambda overrides: overrides[0],
)
def test_a_deterministic_run_resumes_with_the_same_bits(overrides: tuple[str, ...], tmp_path: Path) -> None:
    given = (*SINGLE, "job.steps=6", "job.checkpoint_every_steps=3", "job.keep_checkpoints=2", "job.precision=float32")
    run = make_run(tmp_path, *given, *overrides, "engine.deterministic=true")
    assert train(run) == [0], printed(run)
    whole = [(row["loss"], row["gradient_norm"]) for row in steps(run)]
    rewind(run, 3)
    assert train(run) == [0], printed(run)
    assert [(row["loss"], row["gradient_norm"]) for row in steps(run)] == whole
    assert [event["deterministic"] for event in events(run, "started")] == [True, True]
    assert not torch.are_deterministic_algorithms_enabled()
