"""Adapters on frozen weights in 4 bits (QLoRA): beside the same training on the weights that the 4 bits stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from jobs import versions
from jobs.engines.native.customization import nf4
from jobs.engines.native.parallelize import trained_model
from jobs.engines.native.traffic import parameters_held
from jobs.errors import ConfigError, SubmitError
from jobs.plan.predict.states import parameters_by_place
from jobs.rundir import RunDir
from jobs.submit.launchers import local
from tests.support.composing import one
from tests.support.frozen_weights import (
    NF4,
    ONE,
    logits,
    logits_of_adapters,
    lora_run,
)
from tests.support.real_run import losses, steps
from tests.support.required import need_bitsandbytes
from tests.support.training import assert_equal


@pytest.fixture(scope="module")
def single(one_process: Callable[[str], RunDir]) -> RunDir:
    return one_process("qlora")


@pytest.fixture(scope="module")
def dequantized(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LitGPT directory of what 4 bits leave of the matrices of the base's layers, by bitsandbytes alone."""
    need_bitsandbytes()
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    state = torch.load(base / "lit_model.pth", weights_only=True)
    for name, weight in state.items():
        if ".h." in name and weight.ndim == 2:
            packed = quantize_4bit(weight.flatten(), compress_statistics=True, quant_type="nf4")
            state[name] = dequantize_4bit(*packed).view_as(weight)
    where = tmp_path_factory.mktemp("dequantized")
    torch.save(state, where / "lit_model.pth")
    return where


@pytest.mark.slow
@pytest.mark.long
def test_losses_are_those_of_adapters_on_the_dequantized_weights(
    single: RunDir, dequantized: Path, tmp_path: Path
) -> None:
    plain = lora_run(tmp_path, dequantized, *ONE)
    assert_equal(steps(single), steps(plain))
    # The export is the dequantized weights with the adapters added, and the adapters alone belong to those.
    torch.testing.assert_close(logits(single.export), logits(plain.export), rtol=0, atol=1e-3)
    torch.testing.assert_close(logits(single.export), logits_of_adapters(single, dequantized), rtol=0, atol=1e-5)


def test_the_base_differs_from_its_4_bits(base: Path, dequantized: Path) -> None:
    name = "transformer.h.0.attn.qkv.weight"
    whole, rounded = (torch.load(each / "lit_model.pth", weights_only=True)[name] for each in (base, dequantized))
    error = (whole - rounded).norm() / whole.norm()
    # Or equal losses would show nothing.
    assert 0.05 < error < 0.15


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", ["single", "fsdp_full"])
def test_weights_in_4_bits_train_in_bfloat16_close_to_float32(
    layout: str, single: RunDir, base: Path, tmp_path: Path
) -> None:
    ranks = 1 if layout == "single" else 2
    run = lora_run(tmp_path, base, f"parallelism={layout}", f"ranks_per_node={ranks}", NF4, "job.precision=bfloat16")
    # Rounding to 16 bits moves the weights that lie between two of the 16 levels to the other one.
    assert losses(run) == pytest.approx(losses(single), abs=0.2)
    assert losses(run)[0] == pytest.approx(losses(single)[0], abs=0.05)


def test_the_plan_counts_the_bytes_that_a_matrix_and_its_scales_take() -> None:
    need_bitsandbytes()
    run = one("job=finetune_lora", "data=docstrings", "parallelism=single", "ranks_per_node=1", NF4, "model.layers=1",
              "job.precision=bfloat16").run  # fmt: skip
    gpt = trained_model(run)
    (planned,) = parameters_by_place(run, stored=True)
    assert sum(parameter.numel() for parameter in gpt.parameters()) == planned.total
    scales = 0
    for module in gpt.modules():
        if isinstance(module, nf4.Nf4Linear):
            module.pack(torch.ones(module.out_features, module.in_features))
            scales += sum(each.nbytes for each in (module.scales.absmax, module.scales.state2.absmax))
    assert scales == planned.scale_bytes
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert parameters_held(gpt) == parameters_by_place(run)[0].total > planned.total
    finally:
        dist.destroy_process_group()


def test_without_bitsandbytes_a_run_ends_with_what_to_install() -> None:
    run = one("job=finetune_lora", "data=docstrings", "parallelism=single", "ranks_per_node=1", NF4).run
    with patch.object(nf4, "find_spec", lambda _name: None), pytest.raises(ConfigError, match=r"'\.\[qlora\]'"):
        trained_model(run)
    with (
        patch.object(versions, "find_spec", lambda name: None if name == "bitsandbytes" else object()),
        pytest.raises(SubmitError, match=r"Python has no bitsandbytes.*'\.\[train,qlora\]'"),
    ):
        local.LAUNCHER.check([run])
