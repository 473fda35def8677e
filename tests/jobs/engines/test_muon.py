"""Muon: matrices of layers move as under torch's Muon, all other weights as under AdamW, and in any layout alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from jobs.engines.native.load_sharded import load_sharded
from jobs.engines.native.model import empty_model
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.engines.native.updates.muon import orthogonal
from jobs.engines.native.weights import values_of
from jobs.plan.predict.states import states
from jobs.plan.predict.weights import Weight
from jobs.rundir import RunDir
from jobs.schema import Run
from tests.support.composing import one
from tests.support.real_run import events, losses, make_run, printed, train
from tests.support.training import rewind

MUON = ("job.optimizer=muon", "job.learning_rate=1e-2", "job.warmup_steps=1", "job.checkpoint_every_steps=3")


def optimizer_on(model: nn.Module, run: Run) -> torch.optim.Optimizer:
    """The run's optimizer of all parameters of a model."""
    chosen = optimizer_of(run)
    return chosen.build(chosen.divided([{"params": list(model.parameters())}], model), run, torch.device("cpu"))


def trained(where: Path, *overrides: str) -> RunDir:
    """A run that has come to its end."""
    run = make_run(where, *MUON, "ranks_per_node=2", *overrides)
    assert set(train(run)) == {0}, printed(run)
    return run


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The run of one process."""
    return trained(tmp_path_factory.mktemp("alone"), "parallelism=single", "ranks_per_node=1")


def test_weights_move_as_under_torchs_muon_and_adamw() -> None:
    run = one("model=tiny", *MUON, "job.weight_decay=0.1", "ranks_per_node=1").run
    models = [empty_model(run.model, 24) for _ in range(2)]
    for model in models:
        load_sharded(model, torch.device("cpu"), values_of(None, 5), tensor=1, tied=False)
    ours, theirs = models
    optimizer = optimizer_on(ours, run)
    matrices = [p for name, p in theirs.named_parameters() if ".h." in name and p.ndim == 2]
    others = [p for p in theirs.parameters() if not any(p is each for each in matrices)]
    assert len(matrices) == 5 * run.model.layers
    assert {tuple(p.shape) for p in others if p.ndim == 2} == {(run.model.vocab_size, run.model.hidden_size)}
    expected = [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=1e-2, weight_decay=0.1, betas=(run.job.beta1, run.job.beta2)),
    ]
    before = [p.detach().clone() for p in ours.parameters()]
    for seed in range(3):
        torch.manual_seed(seed)
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        for each in (optimizer, *expected):
            each.step()
    for start, own, other in zip(before, ours.parameters(), theirs.parameters(), strict=True):
        # torch's iteration is in bfloat16, ours in the type of the arithmetic.
        within = 0.02 if any(other is each for each in matrices) else 1e-6
        assert (own - other).norm() <= within * (other - start).norm()


def test_the_plan_counts_its_moments_and_products() -> None:
    run = one("model=tiny", "job.optimizer=muon", "ranks_per_node=1", "parallelism=single").run
    model = empty_model(run.model, 24).to_empty(device="cpu")
    optimizer = optimizer_on(model, run)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    moments = [each for state in optimizer.state.values() for each in state.values() if each.ndim]
    assert states(run).optimizer == 4 * sum(each.numel() for each in moments)
    for shape in ((48, 32), (32, 48), (32, 32)):
        with FlopCounterMode(display=False) as counted:
            orthogonal(torch.randn(shape))
        assert optimizer_of(run).update_flops(Weight(*shape)) == counted.get_total_flops()


@pytest.mark.parametrize(
    "layout",
    [
        ("parallelism=fsdp_full",),
        ("parallelism=tp", "parallelism.tensor=2"),
        pytest.param(("parallelism=pp", "parallelism.pipeline=2"), marks=pytest.mark.long),
        pytest.param(("parallelism=ddp",), marks=pytest.mark.long),
        pytest.param(("parallelism=fsdp_grad_op",), marks=pytest.mark.long),
        pytest.param(("parallelism=tp_fsdp", "parallelism.tensor=2", "ranks_per_node=4"), marks=pytest.mark.long),
        pytest.param(("parallelism=fsdp_hybrid", "nodes=2"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_losses_are_those_of_one_process_and_another_layout_continues_exactly(
    layout: tuple[str, ...], alone: RunDir, tmp_path: Path
) -> None:
    run = trained(tmp_path, *layout)
    assert losses(run) == pytest.approx(losses(alone), abs=1e-5)
    # Each rank has parts of the moments, in an order of its own.
    rewind(run, 3)
    resumed = make_run(tmp_path / "then", *MUON, "parallelism=single", "ranks_per_node=1")
    run.checkpoints.rename(resumed.checkpoints)
    resumed.metrics.write_text(run.metrics.read_text())
    assert train(resumed) == [0], printed(resumed)
    assert events(resumed, "started")[-1]["from_step"] == 3
    assert losses(resumed) == pytest.approx(losses(alone), abs=1e-5)
