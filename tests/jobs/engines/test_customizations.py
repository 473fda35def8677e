"""The contract of every customization: layouts train it as one process does; it is resumed, exported and evaluated.

Full training is the customization "full": it has every legal product of parallelisms, the others one for each set of
techniques. A customization that is added has a row in tests/support/frozen_weights.py, and its layouts here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet
from torch.distributed.checkpoint.filesystem import FileSystemReader

from jobs.engines.native.customization.prompt_files import read_prompt
from jobs.engines.native.customization.prompt_tuning import PROMPT
from jobs.parallelism import Schedule
from jobs.plan.predict.states import parameters_held
from jobs.rundir import RunDir, load_run
from tests.support.frozen_weights import (
    CUSTOMIZATIONS,
    ONE,
    VIRTUAL_TOKENS,
    assert_evaluated_alike,
    customized,
    logits,
    logits_of_adapters,
    on_a_ring,
)
from tests.support.layouts import TINY, matrix, quick
from tests.support.real_run import events, losses, make_run, printed, steps, train
from tests.support.training import assert_equal, long, rewind

# --- losses and files of one process -------------------------------------------------------------------------

DDP = ("parallelism=ddp", "ranks_per_node=2")
FSDP = ("parallelism=fsdp_full", "ranks_per_node=2")
PP = ("parallelism=pp", "ranks_per_node=2")
TP = ("parallelism=tp", "ranks_per_node=2")
TP_ALONE = (*TP, "parallelism.sequence_parallel=false")
TP_FSDP = ("parallelism=tp_fsdp", "ranks_per_node=4")
ALONE = ("parallelism=single", "ranks_per_node=1")
COMPILED, CHUNKED = "engine.compile=true", "engine.loss=chunked"
FULL, SELECTIVE = "engine.activation_checkpointing=full", "engine.activation_checkpointing=selective"
# CI has one layout of two ranks for adapters, for adapters on 4 bits, and for virtual tokens. TP cannot cut 4 bits.
LAYOUTS = [
    ("lora", PP),
    long("lora", DDP),
    long("lora", TP_ALONE),
    long("lora", (*TP, COMPILED, FULL)),
    long("lora", (*ALONE, COMPILED)),
    long("lora", (*FSDP, SELECTIVE)),
    long("lora", TP_FSDP),
    ("qlora", FSDP),
    long("qlora", DDP),
    long("qlora", PP),
    long("qlora", ("parallelism=fsdp_hybrid", "parallelism.data_shard=2", "ranks_per_node=4")),
    long("qlora", ("parallelism=fsdp_grad_op", "ranks_per_node=2", SELECTIVE)),
    long("qlora", ("parallelism=pp_fsdp", "ranks_per_node=4")),
    long("qlora", (*ALONE, FULL)),
    ("free", PP),
    long("free", (*TP, COMPILED)),
    long("free", (*ALONE, CHUNKED, COMPILED)),
    long("mlp", DDP),
    long("mlp", TP_ALONE),
    long("lstm", (*FSDP, FULL)),
    long("lstm", TP_FSDP),
]


def exported(name: str, run: RunDir) -> torch.Tensor:
    """The embeddings of exported virtual tokens, or the logits of the exported model."""
    return read_prompt(run.export) if name in VIRTUAL_TOKENS else logits(run.export)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=str)
def test_losses_and_files_are_those_of_one_process(
    name: str, layout: tuple[str, ...], one_process: Callable[[str], RunDir], base: Path, tmp_path: Path
) -> None:
    one = one_process(name)
    run = customized(name, base, tmp_path, *layout)
    (counted,), planned = events(run, "layout"), parameters_held(load_run(run.config))
    assert (counted["parameters_held"], counted["parameters_trained"]) == (
        planned.total, events(one, "layout")[0]["parameters_trained"],
    )  # fmt: skip
    assert_equal(steps(run), steps(one))
    torch.testing.assert_close(exported(name, run), exported(name, one), rtol=0, atol=1e-3)
    if name == "lora":
        torch.testing.assert_close(logits(run.export), logits_of_adapters(run, base), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("product", [("ranks_per_node=2",), ("ranks_per_node=4", "parallelism.tensor=2")], ids=" ".join)
@pytest.mark.parametrize("name", ["lora", "mlp"])
def test_sequences_cut_over_ranks_train_alike(
    name: str, product: tuple[str, ...], one_process: Callable[[str], RunDir], base: Path, tmp_path: Path
) -> None:
    one = one_process(name)
    assert_equal(steps(on_a_ring(tmp_path, base, *CUSTOMIZATIONS[name], *product)), steps(one))


# --- every legal product -------------------------------------------------------------------------------------

ALL_MATRICES = "job.lora.targets=[query,key,value,projection,mlp]"
ON_RANDOM_WEIGHTS = {
    "full": TINY,
    "lora": (*CUSTOMIZATIONS["lora"], *TINY, "job.learning_rate=1e-2", ALL_MATRICES),
    "lstm": (*CUSTOMIZATIONS["lstm"], *TINY, "job.learning_rate=3e-3"),
}
CASES = matrix()
QUICK = quick()
IN_CI = (
    "parallelism=tp_pp_fsdp-ranks_per_node=4",
    "parallelism=tp_fsdp",
    "parallelism=pp_fsdp-ranks",
    "parallelism=fsdp_hybrid",
    "parallelism=pp-schedule=Interleaved1F1B",
    "parallelism=pp-schedule=ZBVZeroBubble",
)


def marked(product: str) -> ParameterSet:
    """Mark full training on more than two ranks as slow, and as long where it is not of CI.

    CI has the product of all techniques on four ranks, and on two ranks TP and PP with sharding, hybrid sharding, and
    the two schedules with several stages on a rank that differ most.
    """
    marks = [pytest.mark.slow] if CASES[product].ranks > 2 else []
    in_ci = product in QUICK and product.startswith(IN_CI)
    return pytest.param("full", product, marks=marks if in_ci else [*marks, pytest.mark.long])


PRODUCTS = [
    *map(marked, CASES),
    *(long(name, product) for name in ON_RANDOM_WEIGHTS if name != "full" for product in sorted(QUICK)),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, float]]]:
    """Return the steps of the tiny model on one rank: what every product must reproduce."""

    @cache
    def rows(name: str) -> list[dict[str, float]]:
        run = make_run(tmp_path_factory.mktemp(name), *ON_RANDOM_WEIGHTS[name], *ONE, small=False)
        assert train(run) == [0], printed(run)
        found = steps(run)
        assert len(found) == 5
        assert name != "full" or found[-1]["loss"] < found[0]["loss"] - 0.1, "nothing learned hides a wrong update"
        return found

    return rows


@pytest.mark.parametrize(("name", "product"), PRODUCTS)
def test_every_legal_product_computes_what_one_process_computes(
    name: str, product: str, tiny: Callable[[str], list[dict[str, float]]], tmp_path: Path
) -> None:
    run = make_run(tmp_path, *ON_RANDOM_WEIGHTS[name], *CASES[product].overrides, "name=case", small=False)
    assert train(run) == [0] * CASES[product].ranks, printed(run)
    assert_equal(steps(run), tiny(name))


def test_the_matrix_holds_every_axis_and_schedule_that_a_cpu_can_run() -> None:
    chosen = {override for case in CASES.values() for override in case.overrides}
    assert {f"parallelism.schedule={schedule.name}" for schedule in Schedule} <= chosen
    for axis in ("tensor", "pipeline", "data_replicate", "data_shard"):
        assert {f"parallelism.{axis}={degree}" for degree in (2, 4)} <= chosen, axis
    assert {case.ranks for case in CASES.values()} == {1, 2, 3, 4, 6, 8}


# --- checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lora", (*TP, "job.lora.dropout=0.3")),
        long("qlora", (*ONE, "job.lora.dropout=0.3")),
        long("mlp", PP),
    ],
    ids=str,
)
def test_a_resumed_run_continues_the_losses(name: str, settings: tuple[str, ...], base: Path, tmp_path: Path) -> None:
    run = customized(name, base, tmp_path, *settings, "job.checkpoint_every_steps=3")
    whole = losses(run)
    contained = FileSystemReader(run.checkpoints / "step-00000003").read_metadata().state_dict_metadata
    weights = [each for each in contained if each.startswith("model.")]
    added = PROMPT if name in VIRTUAL_TOKENS else "lora_"
    assert all(added in each for each in weights), "without the frozen weights"
    assert name != "mlp" or len(weights) == 7, "virtual tokens and encoder"
    rewind(run, 3)
    assert set(train(run)) == {0}, printed(run)
    assert events(run, "started")[-1]["from_step"] == 3
    assert losses(run) == pytest.approx(whole, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    # The export has no adapters left to drop from.
    [("lora", ("job.lora.dropout=0.3",)), long("qlora", ("job.lora.dropout=0.3",)), long("lstm", ())],
    ids=str,
)
def test_a_checkpoint_is_evaluated_as_its_export_is(
    name: str, settings: tuple[str, ...], base: Path, tmp_path: Path
) -> None:
    evaluated = ("data.held_out_samples=4", "job.checkpoint_every_steps=6", "stages=all")
    assert_evaluated_alike(customized(name, base, tmp_path, *ONE, *settings, *evaluated))
