"""Multi-head latent attention, by itself: what the families' tests (test_families.py) do not meet on CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from jobs.engines.litgpt.config import OwnConfig
from jobs.engines.litgpt.names import litgpt_fields
from jobs.engines.native import attention
from jobs.engines.native.attention import LatentAttention
from tests.support.composing import one
from tests.support.real_run import make_run, printed, steps, train
from tests.support.training import DEEP, assert_equal

# Without experts, which are not compiled.
DENSE = (
    "model=deepseek_v2_lite", *DEEP, "model.kv_heads=8", "model.mlp=LLaMAMLP", "model.experts=0",
    "model.experts_per_token=0", "model.moe_intermediate_size=null", "model.shared_experts=0", "model.dense_layers=0",
    "model.router=null", "model.latent.kv_lora_rank=24", "model.latent.q_lora_rank=20",
    "model.latent.rope_head_size=4", "model.latent.value_head_size=6",
)  # fmt: skip


def test_values_that_are_padded_for_flash_attention_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = LatentAttention(OwnConfig(**litgpt_fields(one(*DENSE).run.model)), 0)
    x, cotangent = torch.randn(2, 2, 20, 64)
    angles = torch.randn(1, 20, 2).repeat(1, 1, 2)

    def computed() -> list[Tensor]:
        given = x.clone().requires_grad_()
        result = layer(given, angles.cos(), angles.sin())
        return [result, *torch.autograd.grad(result, [given, *layer.parameters()], cotangent)]

    plain = computed()
    monkeypatch.setattr(attention, "has_varlen_kernel", lambda _q: True)
    padded = computed()
    for found, expected in zip(padded, plain, strict=True):
        torch.testing.assert_close(found, expected)
    assert plain[0].std() > 0.01


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "layout", [("parallelism=single", "ranks_per_node=1"), ("parallelism=tp", "ranks_per_node=2")], ids="-".join
)
@pytest.mark.parametrize("batching", ["padded", "packed"])
def test_compiled_layers_compute_the_same(layout: tuple[str, ...], batching: str, tmp_path: Path) -> None:
    eager, compiled = (
        make_run(tmp_path, *DENSE, f"name={name}", *layout, f"job.batching={batching}", f"engine.compile={name}")
        for name in ("false", "true")
    )
    for run in (eager, compiled):
        assert set(train(run)) == {0}, printed(run)
    assert_equal(steps(compiled), steps(eager))
