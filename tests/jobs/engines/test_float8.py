"""Products in few bits on a processor, where torchao rounds as a GPU does and multiplies what is left in float32.

No GPU has run rowwise and mxfp8 here: these tests hold the numbers, not the kernels.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from jobs.engines.native import float8
from tests.support.composing import one
from tests.support.real_run import losses, make_run, printed, rank, train

LARGEST = 448.0
"""The largest number of E4M3."""
SHAPE = ("model.hidden_size=64", "model.heads=4", "model.kv_heads=2", "model.head_size=16",
         "model.intermediate_size=96", "job.precision=bfloat16")  # fmt: skip
CAPABLE = (*SHAPE, "engine.float8=true", "engine.compile=true")

pytest.importorskip("torchao", reason="the extra float8 is not installed")


def rounded(values: Tensor, recipe: str) -> Tensor:
    """Return values rounded to E4M3 with scales along their last dimension, which a product sums over."""
    blocks = values.double().reshape(len(values), -1, 32 if recipe == "mxfp8" else values.shape[-1])
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    largest = largest.amax(dim=0, keepdim=True) if recipe == "tensorwise" else largest
    # A number of E4M3 stands for itself x scale: the largest one stays below 448, at powers of two.
    scale = largest / LARGEST if recipe == "tensorwise" else torch.exp2(torch.ceil(torch.log2(largest / LARGEST)))
    return ((blocks / scale).float().to(torch.float8_e4m3fn).double() * scale).reshape(values.shape)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "mxfp8"])
def test_products_are_those_of_rounded_operands(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float8, "refuse_float8", lambda *_: None)
    torch.manual_seed(0)
    linear = nn.Linear(96, 64, bias=False, dtype=torch.bfloat16)
    model = nn.Sequential(linear)
    # 48 tokens are no whole blocks of MXFP8: such rows are filled up.
    tokens = torch.randn(2, 24, 96, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(2, 24, 64, dtype=torch.bfloat16) * 1e-3
    weight = linear.weight.detach()
    run = one("parallelism=single", "ranks_per_node=1", "gpu=b200_sxm", *CAPABLE, f"engine.float8_recipe={recipe}").run
    float8.multiply_in_float8(model, torch.device("cpu"), run)
    output = model(tokens)
    output.backward(gradient)
    assert tokens.grad is not None
    assert linear.weight.grad is not None
    x, g = tokens.detach().reshape(48, 96), gradient.reshape(48, 64)
    expected = {
        "output": (output.reshape(48, 64), rounded(x, recipe) @ rounded(weight, recipe).T),
        "input": (tokens.grad.reshape(48, 96), rounded(g, recipe) @ rounded(weight.T, recipe).T),
        "weight": (linear.weight.grad, rounded(filled(g).T, recipe) @ rounded(filled(x).T, recipe).T),
    }
    for name, (found, product) in expected.items():
        if recipe == "tensorwise" and name != "output":
            continue  # Gradients are E5M2, which the reference does not have.
        # bfloat16, of what the product sums.
        assert (found.double() - product).abs().max() < 2**-7 * product.abs().max(), name


def filled(values: Tensor) -> Tensor:
    """Return rows filled up with zeros to whole blocks."""
    return nn.functional.pad(values, (0, 0, 0, -len(values) % 32))


def emulating_rank(directory: Path, number: int, world: int, start: str) -> None:
    """A rank whose processor stands for a GPU."""
    patch = pytest.MonkeyPatch()
    patch.setattr(float8, "refuse_float8", lambda *_: None)
    patch.setattr(torch, "compile", lambda function, **_: function)
    rank(directory, number, world, start)


@pytest.mark.long
@pytest.mark.parametrize(
    ("recipe", "parallelism", "optimizer"),
    [
        ("rowwise", "fsdp_full", "adamw"),
        ("mxfp8", "fsdp_full", "adamw"),
        ("mxfp8", "ddp", "adamw_8bit"),
        # Weights that FSDP sends in float8 have a type of torchao's around them.
        ("tensorwise", "fsdp_full", "adamw_8bit"),
    ],
)
def test_losses_are_near_those_of_bfloat16(recipe: str, parallelism: str, optimizer: str, tmp_path: Path) -> None:
    common = (f"parallelism={parallelism}", "ranks_per_node=2", "gpu=b200_sxm", "job.steps=10", "job.warmup_steps=2",
              f"job.optimizer={optimizer}", "job.checkpoint_every_steps=5")  # fmt: skip
    few = make_run(tmp_path, "name=few", *common, *CAPABLE, f"engine.float8_recipe={recipe}")
    wide = make_run(tmp_path, "name=wide", *common, *SHAPE)
    assert train(few, of_rank=emulating_rank) == [0, 0], printed(few)
    assert train(wide) == [0, 0], printed(wide)
    differences = [abs(a / b - 1) for a, b in zip(losses(few), losses(wide), strict=True)]
    assert 0 < max(differences) < 0.005
