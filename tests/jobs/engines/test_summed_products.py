"""engine.sums_in_products: gradients of matrices are added where they are computed."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

from jobs.engines.native.summed_products import SummedLinear, sum_in_products
from tests.jobs.engines.test_kernel_counts import Calls
from tests.support.real_run import losses, make_run, printed, train


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_micro_batches_are_added_in_the_products_that_compute_them(bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(48, 64, bias=bias), nn.ReLU(), nn.Linear(64, 16, bias=bias))
    exact, summed, narrow, narrow_summed = (
        deepcopy(plain).double(),
        deepcopy(plain),
        *(deepcopy(plain).bfloat16() for _ in range(2)),
    )
    for each in (summed, narrow_summed):
        sum_in_products(each)
        assert [type(layer) for layer in each] == [SummedLinear, nn.ReLU, SummedLinear]
    for _ in range(8):
        x = torch.randn(2, 32, 48)
        for model in (plain, exact, summed, narrow, narrow_summed):
            dtype = next(model.parameters()).dtype
            y = model(x.to(dtype).requires_grad_())
            y.square().sum().backward()
    for a, b in zip(plain.parameters(), summed.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)

    def errors(model: nn.Module) -> list[float]:
        pairs = zip(exact.parameters(), model.parameters(), strict=True)
        gradients = [(a.grad, b.grad) for a, b in pairs if a.ndim > 1]
        return [float((a - b).norm() / a.norm()) for a, b in gradients if a is not None and b is not None]

    assert all(one <= 1.02 * other for one, other in zip(errors(narrow_summed), errors(narrow), strict=True))


def test_a_gradient_that_exists_takes_no_second_one_of_its_size() -> None:
    layer = nn.Linear(64, 32, bias=False, device="meta")
    sum_in_products(models := nn.Sequential(layer))
    made: list[Counter[str]] = []
    for _ in range(2):
        with Calls() as counted:
            models(torch.empty(8, 64, device="meta")).sum().backward()
        made.append(counted.calls)
    assert made[0]["mm"] - made[1]["mm"] == 1
    assert made[1]["addmm_"] == 1
    assert not made[1]["add_"]


@pytest.mark.slow
def test_a_run_that_sums_in_products_has_the_losses_of_one_that_does_not(tmp_path: Path) -> None:
    found = []
    for on in ("false", "true"):
        run = make_run(tmp_path / on, "parallelism=single", "ranks_per_node=1", "job.micro_batch_size=2",
                       f"engine.sums_in_products={on}", "engine.activation_checkpointing=full")  # fmt: skip
        assert set(train(run)) == {0}, printed(run)
        found.append(losses(run))
    assert found[0] == pytest.approx(found[1], abs=1e-5)
