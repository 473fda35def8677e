"""The z-loss: its gradient is that of autograd, its sum that of one process in any layout, the loss is without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from jobs import metrics as m
from jobs.data.dataset import IGNORED
from jobs.engines.native.loss import ZLoss, capped, chunked
from jobs.rundir import RunDir, read_records
from tests.support import ring_on_cpu
from tests.support.real_run import losses, make_run, printed, train
from tests.support.training import DEEP, long


@pytest.mark.parametrize("cap", [None, 3.0], ids=["", "capped logits"])
def test_its_gradient_is_autograds_and_the_loss_is_without_it(cap: float | None) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 30, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(50, (2, 30))
    targets[:, :7] = IGNORED
    logits = (hidden @ weight.T).flatten(0, 1)[targets.flatten() != IGNORED]
    if cap is not None:
        logits = capped(logits, cap)
    loss = F.cross_entropy(logits, targets[targets != IGNORED], reduction="sum")
    squares = logits.logsumexp(1).square().sum()
    expected = torch.autograd.grad(loss + 0.25 * squares, (hidden, weight))
    z_loss = ZLoss(0.25)
    for number in (1, 2):
        found = chunked(hidden, weight, targets, 46, 16, z_loss, cap)
        torch.testing.assert_close(found, loss)
        assert z_loss.squares is not None
        torch.testing.assert_close(z_loss.squares, number * squares)
        for ours, autograds in zip(torch.autograd.grad(found, (hidden, weight)), expected, strict=True):
            torch.testing.assert_close(ours, autograds, atol=1e-4, rtol=1e-4)


def trained(where: Path, *overrides: str, ranks: Callable[[RunDir], list[int | None]] = train) -> RunDir:
    """A run that has come to its end."""
    run = make_run(where, "job.z_loss=0.1", "job.steps=4", "ranks_per_node=2", *overrides)
    assert set(ranks(run)) == {0}, printed(run)
    return run


def z_losses(run: RunDir) -> list[float]:
    """The z-loss of each step."""
    return [record[m.Z_LOSS.name] for record in read_records(run.metrics) if m.Z_LOSS.name in record]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        "parallelism=tp parallelism.tensor=2",
        long("parallelism=fsdp_full"),
        long("parallelism=ddp"),
        long("parallelism=pp parallelism.pipeline=2"),
    ],
)
def test_losses_and_z_losses_are_those_of_one_process(layout: str, tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone", "parallelism=single", "ranks_per_node=1")
    run = trained(tmp_path / "run", *layout.split())
    assert losses(run) == pytest.approx(losses(alone), abs=1e-5)
    assert len(z_losses(alone)) == 4
    assert z_losses(run) == pytest.approx(z_losses(alone), abs=1e-4)
    assert z_losses(alone)[-1] < z_losses(alone)[0]
    without = trained(tmp_path / "without", "parallelism=single", "ranks_per_node=1", "job.z_loss=0")
    assert losses(without)[0] == pytest.approx(losses(alone)[0], abs=1e-5)
    assert losses(without) != pytest.approx(losses(alone), abs=1e-5)
    assert not z_losses(without)


@pytest.mark.slow
@pytest.mark.long
def test_ranks_of_a_sequence_have_the_z_loss_of_its_parts(tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone", *DEEP, "parallelism=single", "ranks_per_node=1")
    # Composition refuses context parallelism without GPUs: ring_on_cpu brings a kernel.
    cut = ("parallelism=cp_fsdp", "job.micro_batch_size=2", "launcher=dry", "cluster.gpus=true",
           "cluster.ranks_per_node=8")  # fmt: skip
    run = trained(tmp_path / "run", *DEEP, *cut, ranks=ring_on_cpu.train)
    assert losses(run) == pytest.approx(losses(alone), abs=1e-4)
    assert z_losses(run) == pytest.approx(z_losses(alone), abs=1e-3)
