"""AdamW with moments in 8 bits: near AdamW in its losses, exact after a resumption, and read by every layout."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from jobs.engines.native.model import empty_model
from jobs.engines.native.optimizers.adamw_8bit import block_of
from jobs.engines.native.optimizers.optimizer import optimizer_of
from jobs.engines.native.updates.eight_bit_adamw import decoded, encode, mean_code, square_code
from jobs.plan.predict.states import states
from tests.support.composing import one
from tests.support.real_run import losses, make_run, printed, train
from tests.support.training import long, rewind

CPU = torch.device("cpu")
EIGHT_BIT = ("job.optimizer=adamw_8bit", "job.checkpoint_every_steps=3", "model.hidden_size=64", "model.head_size=16",
             "model.intermediate_size=128")  # fmt: skip


def test_blocks_of_usual_rows_are_long_and_are_not_cut_by_8_tp_ranks() -> None:
    lengths = {columns: block_of(columns) for columns in (768, 4096, 11008, 14336, 18944, 53248)}
    assert lengths == {768: 96, 4096: 256, 11008: 172, 14336: 256, 18944: 148, 53248: 256}
    assert all(columns // 8 % length == 0 for columns, length in lengths.items())


def test_numbers_of_seven_decades_keep_their_size_in_8_bits() -> None:
    for code, signs, count in ((mean_code, (-1, 1), 256), (square_code, (1, 1), 255)):
        values = code(CPU).tolist()
        assert len(values) == count
        assert all(first < second for first, second in pairwise(values))
        torch.manual_seed(0)
        numbers = 10 ** (-6 * torch.rand(64, 512)) * torch.tensor(signs)[torch.randint(2, (64, 512))]
        codes, scales = torch.empty(64, 512, dtype=torch.uint8), torch.empty(64, 2)
        encode(code, numbers, codes, scales)
        found = decoded(code, codes, scales)
        assert torch.equal(numbers.view(64, 2, 256).abs().amax(-1), scales)
        large = numbers.abs() > 0.01
        assert ((found - numbers) / numbers)[large].abs().max() < 0.12
        assert (found - numbers)[~large].abs().max() < 1e-3
        encode(code, torch.zeros(64, 512), codes, scales)
        assert torch.equal(decoded(code, codes, scales), torch.zeros(64, 512))


def test_no_second_moment_is_rounded_to_zero_beside_larger_ones() -> None:
    run = one("job.optimizer=adamw_8bit", "job.weight_decay=0").run
    weight = nn.Parameter(torch.zeros(1, 512))
    optimizer = optimizer_of(run).build([weight], run, CPU)
    gradient = torch.full((1, 512), 1e-6)
    gradient[0, 0] = 1.0
    for _ in range(20):
        before, weight.grad = weight.detach().clone(), gradient.clone()
        optimizer.step()
        assert (weight - before).abs().max() <= 2 * run.job.learning_rate


def test_the_plan_counts_its_bytes() -> None:
    run = one("model=tiny", "job.optimizer=adamw_8bit", "ranks_per_node=1", "parallelism=single").run
    model = empty_model(run.model, 24).to_empty(device="cpu")
    for each in model.parameters():
        nn.init.zeros_(each).grad = torch.zeros_like(each)
    optimizer = optimizer_of(run).build(model.parameters(), run, CPU)
    optimizer.step()
    held = sum(each.nbytes for state in optimizer.state.values() for each in state.values() if each.ndim)
    assert states(run).optimizer == held
    usual = one("model=llama2_7b", "job.optimizer=adamw_8bit").run
    assert 2.02 < optimizer_of(usual).state_bytes(usual) < 2.05, "AdamW: 8"


@pytest.mark.parametrize("width", ["float32", "bfloat16"])
def test_a_saved_state_is_loaded_bit_by_bit(width: str) -> None:
    given = ("engine.parameters=bfloat16", "job.precision=bfloat16") if width == "bfloat16" else ()
    run = one("job.optimizer=adamw_8bit", *given).run
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape).to(getattr(torch, width))) for shape in ((8, 512), (8,))]
    first, second = (optimizer_of(run).build(weights, run, CPU) for _ in range(2))
    for each in weights:
        each.grad = torch.randn_like(each)
    first.step()
    second.load_state_dict(first.state_dict())
    for each in weights:
        assert first.state[each].keys() == second.state[each].keys()
        for name, value in first.state[each].items():
            assert value.dtype == second.state[each][name].dtype
            assert torch.equal(value, second.state[each][name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        "parallelism=fsdp_full",
        long("parallelism=tp parallelism.tensor=2"),
        long("parallelism=ddp"),
        long("parallelism=pp parallelism.pipeline=2"),
        long("parallelism=tp_fsdp parallelism.tensor=2 ranks_per_node=4"),
    ],
)
def test_losses_are_near_adamws_and_resumed_runs_and_other_layouts_continue_exactly(
    layout: str, tmp_path: Path
) -> None:
    given = (*EIGHT_BIT, "ranks_per_node=2", *layout.split())
    run = make_run(tmp_path / "run", *given)
    assert set(train(run)) == {0}, printed(run)
    exact = make_run(tmp_path / "exact", *given, "job.optimizer=adamw")
    assert set(train(exact)) == {0}, printed(exact)
    found = losses(run)
    assert found != losses(exact)
    assert found == pytest.approx(losses(exact), abs=0.005)
    rewind(run, 3)
    alone = make_run(tmp_path / "alone", *EIGHT_BIT, "parallelism=single", "ranks_per_node=1")
    alone.metrics.write_text(run.metrics.read_text())
    alone.checkpoints.symlink_to(run.checkpoints)
    assert train(alone) == [0], printed(alone)
    assert losses(alone) == pytest.approx(found, abs=1e-4)
    rewind(run, 3)
    assert set(train(run)) == {0}, printed(run)
    assert losses(run) == found
