"""AdamW with stochastic rounding: bfloat16 weights move as float32 ones do in the mean, and runs resume exactly."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from jobs.data import open_dataset
from jobs.engines.native.load_sharded import local_shard
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.engines.native.parallelize import device_mesh, parallel_model
from jobs.engines.native.updates.rounded_adamw import RoundedAdamW, pieces
from jobs.layout import layout_of
from jobs.plan.predict.states import states
from jobs.runtime.steps import batches_of, samples_of
from tests.support.composing import one
from tests.support.real_run import losses, make_run, printed, rank, train
from tests.support.training import long, rewind

BFLOAT16 = ("engine.parameters=bfloat16", "job.precision=bfloat16")
STOCHASTIC = (*BFLOAT16, "job.optimizer=adamw_stochastic")
STEPS = 30
CPU = torch.device("cpu")


def movement(*overrides: str) -> torch.Tensor:
    """Return how far the weights of a fine-tuning move while every gradient keeps its sign."""
    run = one("job.learning_rate=2e-5", "job.min_learning_rate=2e-5", "job.weight_decay=0", *overrides).run
    torch.manual_seed(1)
    width = torch.bfloat16 if run.engine.parameters.name == "bfloat16" else torch.float32
    weight = nn.Parameter((0.02 * torch.randn(1 << 10, 1 << 8)).bfloat16().to(width))
    before, weight.grad = weight.detach().clone().float(), torch.ones_like(weight)
    optimizer = optimizer_of(run).build([weight], run, torch.device("cpu"))
    for _ in range(STEPS):
        optimizer.step()
    return before - weight.detach().float()


def test_small_updates_of_bfloat16_weights_are_right_in_the_mean() -> None:
    exact = movement()
    assert exact.mean().item() == pytest.approx(STEPS * 2e-5, rel=1e-3)
    assert movement(*BFLOAT16).mean() < 0.5 * exact.mean(), "rounding to nearest loses most of them"
    assert movement(*STOCHASTIC).mean().item() == pytest.approx(exact.mean().item(), rel=0.01)


def observed_rank(directory: Path, number: int, world: int, start: str) -> None:
    """One rank, which writes the sum of its weights' bits after each update."""
    update = RoundedAdamW.step

    def observed(self: RoundedAdamW, closure: None = None) -> None:
        update(self, closure)
        weights = [local_shard(each).detach().reshape(-1) for group in self.param_groups for each in group["params"]]
        with (directory / f"weights{number}.txt").open("a") as file:
            file.write(f"{crc32(torch.cat(weights).view(torch.int16).numpy().tobytes())}\n")

    with patch.object(RoundedAdamW, "step", observed):
        rank(directory, number, world, start)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", ["ddp", long("fsdp_no_shard"), long("tp parallelism.tensor=2"), "fsdp_full"])
def test_a_resumed_run_rounds_as_an_uninterrupted_one_and_replicas_round_alike(
    parallelism: str, tmp_path: Path
) -> None:
    run = make_run(
        tmp_path, *f"parallelism={parallelism}".split(), "ranks_per_node=2", *STOCHASTIC, "job.checkpoint_every_steps=3"
    )
    assert train(run, of_rank=observed_rank) == [0, 0], printed(run)
    files = sorted(run.path.glob("weights*.txt"))
    first = [file.read_text().split() for file in files]
    assert (first[0] == first[1]) == (parallelism in {"ddp", "fsdp_no_shard"}), "shards differ, replicas do not"
    uninterrupted = losses(run)
    rewind(run, 3)
    for file in files:
        file.unlink()
    assert train(run, of_rank=observed_rank) == [0, 0], printed(run)
    assert losses(run) == uninterrupted
    assert [file.read_text().split() for file in files] == [each[3:] for each in first]


@pytest.mark.parametrize(("gradients", "off_by"), [("float32", (0, 1e-4)), ("bfloat16", (2e-3, 1))])
def test_gradients_of_micro_batches_add_up_in_float32(
    gradients: str, off_by: tuple[float, float], tmp_path: Path
) -> None:
    given = (*STOCHASTIC, f"engine.gradients={gradients}", "parallelism=single", "ranks_per_node=1",
             "scaling.global_batch_size=64", "job.micro_batch_size=1", "job.sequence_length=16", "data=random",
             "data.max_samples=64", f"data.cache_dir={tmp_path}")  # fmt: skip
    run = one("model=tiny", *given).run
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        model = parallel_model(run, device_mesh(layout_of(run), CPU), CPU, lambda _: None)
        dataset = open_dataset(samples_of(run, {}).directory)
        batches = [each.converted(torch.from_numpy) for each in batches_of(run, dataset, 0).step(1).micro_batches]
        assert len(batches) == 64
        exact = [torch.zeros(each.shape, dtype=torch.float64) for each in model.gpt.parameters()]
        for batch in batches:
            model.execution.forward_backward([batch], 1.0)
            for total, parameter in zip(exact, model.gpt.parameters(), strict=True):
                assert parameter.grad is not None
                total.add_(parameter.grad)
                parameter.grad = None
        model.execution.forward_backward(batches, 1.0)
    finally:
        dist.destroy_process_group()
    found = [parameter.grad for parameter in model.gpt.parameters() if parameter.grad is not None]
    errors = [each - total for each, total in zip(found, exact, strict=True)]
    of_all, of_errors = (torch.cat([each.flatten() for each in some]).norm() for some in (exact, errors))
    least, most = off_by
    assert least <= of_errors / of_all <= most
    assert states(run).gradients == sum(each.nbytes for each in found)


def test_an_update_copies_four_million_numbers_at_a_time() -> None:
    weight = torch.empty(6, 1 << 21, dtype=torch.bfloat16)
    # Of weight, gradient and two moments in float32, with their temporaries about 100 MB.
    assert [[each.numel() for each in part] for part in pieces(weight, weight)] == 3 * [[1 << 22, 1 << 22]]
