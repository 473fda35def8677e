"""The average of the weights (job.ema_decay): what it is, its bytes, and that export and evaluation have it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.engines.native.states import states
from jobs.engines.native.updates.average import AVERAGE, keep_average
from jobs.rundir import RunDir
from tests.support.composing import one
from tests.support.real_run import evaluate, events, make_run, printed, train
from tests.support.training import long, rewind

EMA = ("job.ema_decay=0.7", "job.steps=6", "job.checkpoint_every_steps=3", "job.export=true", "job.learning_rate=1e-2",
       "job.warmup_steps=1")  # fmt: skip


def trained(where: Path, *overrides: str) -> RunDir:
    run = make_run(where, *EMA, "ranks_per_node=2", *overrides)
    assert set(train(run)) == {0}, printed(run)
    return run


def exported(run: RunDir) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(run.export / "lit_model.pth", mmap=True, weights_only=True)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return trained(tmp_path_factory.mktemp("alone"), "parallelism=single", "ranks_per_node=1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_follows_the_weights_in_float32(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    keep_average(optimizer, 0.9)
    expected = None
    for step in range(4):
        weight.grad = torch.full_like(weight, float(step + 1))
        optimizer.step()
        now = weight.detach().float()
        expected = now.clone() if expected is None else 0.9 * expected + 0.1 * now
    kept = optimizer.state[weight][AVERAGE]
    assert kept.dtype is torch.float32
    torch.testing.assert_close(kept, expected)


def test_its_bytes_are_predicted() -> None:
    plain, run = (one("model=tiny", "ranks_per_node=1", "parallelism=single", *each).run
                  for each in ((), ("job.ema_decay=0.9",)))  # fmt: skip
    model = nn.Linear(8, 4, bias=False)
    optimizer = optimizer_of(run).build(model.parameters(), run, torch.device("cpu"))
    keep_average(optimizer, 0.9)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    kept = sum(each.numel() for state in optimizer.state.values() for each in state.values() if each.ndim)
    assert states(run).optimizer / states(plain).optimizer == kept / (2 * model.weight.numel())


@pytest.mark.parametrize(
    "layout",
    [
        "parallelism=fsdp_full",
        long("parallelism=ddp"),
        long("parallelism=tp parallelism.tensor=2"),
        long("parallelism=pp parallelism.pipeline=2"),
        long("parallelism=fsdp_full job.optimizer=muon"),
    ],
)
@pytest.mark.slow
def test_an_export_has_the_average_of_any_layout_also_after_a_restart_in_another(
    layout: str, alone: RunDir, tmp_path: Path
) -> None:
    run = trained(tmp_path, *layout.split())
    if "muon" not in layout:
        for name, value in exported(alone).items():
            torch.testing.assert_close(exported(run)[name], value, atol=1e-4, rtol=1e-3)
    expected = exported(run)
    rewind(run, 3)
    of_job = [each for each in layout.split() if each.startswith("job.")]
    resumed = make_run(tmp_path / "then", *EMA, "parallelism=single", "ranks_per_node=1", *of_job)
    run.checkpoints.rename(resumed.checkpoints)
    resumed.metrics.write_text(run.metrics.read_text())
    assert train(resumed) == [0], printed(resumed)
    for name, value in exported(resumed).items():
        torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_an_evaluation_is_that_of_the_average_from_the_export_and_from_a_checkpoint(tmp_path: Path) -> None:
    held_out = ("parallelism=single", "ranks_per_node=1", "data.test_split=0.2", "data.max_samples=40")
    average, last = (
        trained(tmp_path / "average", *held_out),
        trained(tmp_path / "last", *held_out, "job.ema_decay=null"),
    )
    kept = trained(tmp_path / "kept", *held_out, "job.export=false")
    for each in (average, last, kept):
        assert evaluate(each) == 0, printed(each)
    losses = [float(str(events(each, "evaluated")[-1]["evaluation_loss"])) for each in (average, kept, last)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert abs(losses[0] - losses[2]) > 1e-3
