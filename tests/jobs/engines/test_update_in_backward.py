"""engine.update_in_backward: the same training, with one gradient at a time."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.engines.native.updates.in_backward import norms_in_float32, update_in_backward
from jobs.plan.predict.memory import memory
from tests.support.composing import one
from tests.support.real_run import losses, make_run, printed, steps, train
from tests.support.training import assert_equal, interrupted, long

WHOLE = ("job.clip_norm=null", "job.steps=6", "scaling.global_batch_size=8")
NARROW = ("engine.parameters=bfloat16", "job.precision=bfloat16", "engine.compile=false")


@pytest.mark.parametrize(
    "chosen", [(), ("job.optimizer=adamw_8bit",), ("job.optimizer=adamw_stochastic", *NARROW)], ids=str
)
def test_weights_and_norms_are_those_of_an_update_after_backward_and_one_gradient_exists_at_a_time(
    chosen: tuple[str, ...],
) -> None:
    run, cpu = one(*WHOLE, *chosen).run, torch.device("cpu")
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.LayerNorm(32))))
    plain.to(torch.bfloat16 if chosen[1:] else torch.float32)
    models = [plain, deepcopy(plain)]
    optimizers = [optimizer_of(run).build([{"params": list(m.parameters())}], run, cpu) for m in models]
    most, (alone,) = 0, update_in_backward([list(models[1].parameters())], optimizers[1])

    def counted(_: Tensor) -> None:
        nonlocal most
        most = max(most, sum(each.grad is not None for each in models[1].parameters()))

    for parameter in models[1].parameters():
        parameter.register_hook(counted)
    for _ in range(5):
        x = torch.randn(16, 32, dtype=next(plain.parameters()).dtype)
        for model in models:
            model(x).square().sum().backward()
        norms = norms_in_float32([each.grad for each in models[0].parameters() if each.grad is not None])
        assert torch.linalg.vector_norm(torch.stack(alone)) == pytest.approx(
            float(torch.linalg.vector_norm(torch.stack(norms))), rel=1e-6
        )
        alone.clear()
        optimizers[0].step()
        optimizers[0].zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))
    assert most <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        ("parallelism=single", "ranks_per_node=1", "job.micro_batch_size=8"),
        long(("ranks_per_node=2", "parallelism=fsdp_full", "job.micro_batch_size=4")),
        ("ranks_per_node=4", "parallelism=tp_fsdp", "job.micro_batch_size=4"),
        long(("ranks_per_node=2", "parallelism=fsdp_grad_op", "job.micro_batch_size=4", "model.tie_embeddings=true")),
        long(("ranks_per_node=2", "parallelism=tp", "job.micro_batch_size=8", "engine.activation_checkpointing=full")),
        long(("ranks_per_node=2", "parallelism=fsdp_no_shard", "job.micro_batch_size=4")),
    ],
    ids=str,
)
def test_a_run_has_the_losses_of_one_that_updates_after_backward_and_resumes_exactly(
    layout: tuple[str, ...], tmp_path: Path
) -> None:
    after, during = (
        make_run(tmp_path / on, *WHOLE, *layout, f"engine.update_in_backward={on}", "job.checkpoint_every_steps=null")
        for on in ("false", "true")
    )
    for run in (after, during):
        assert set(train(run)) == {0}, printed(run)
    assert losses(during) == losses(after)
    assert_equal(steps(during), steps(after))
    stopped = interrupted(tmp_path / "stopped", *WHOLE, *layout, "engine.update_in_backward=true")
    assert set(train(stopped)) == {0}, printed(stopped)
    assert losses(stopped) == losses(after)


def test_its_memory_is_predicted_without_gradients() -> None:
    given = ("model=llama2_7b", "cluster=xe9680_h100", "job.precision=bfloat16", "engine.parameters=bfloat16",
             "engine.activation_checkpointing=full", "parallelism=single", "ranks_per_node=1",
             "job.micro_batch_size=1", "scaling.global_batch_size=1", "job.clip_norm=null", "job.sequence_length=512",
             "gpu.memory_gb=null")  # fmt: skip
    after, during = (
        memory(one(*given, f"engine.update_in_backward={on}").run).allocated.point for on in ("false", "true")
    )
    # 13.5 GB of gradients, of which one layer's and the embedding's are left.
    assert 11e9 < after - during < 13.5e9
