"""Properties of every product of parallelisms beside the loss: weights in and out, models, settings, record."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import cache
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from litgpt.config import Config
from litgpt.model import GPT

from jobs.data import MicroBatch
from jobs.engines.native import loss_scale
from jobs.engines.native.pipeline import Pipeline
from jobs.errors import ConfigError
from jobs.metrics import COLLECTIVE_BYTES, COLLECTIVE_CALLS, PARAMETERS_HELD
from jobs.parallelism import Schedule, StageSplit
from jobs.plan.compose import compose
from jobs.plan.cost import parameters
from jobs.plan.predict.states import parameters_held
from jobs.rundir import RunDir, load_run
from jobs.schema import ActivationCheckpointing, Precision
from tests.support import ring_on_cpu
from tests.support.real_run import SMALL, events, make_run, printed, steps, train
from tests.support.tiny_data import ALPACA, write_json
from tests.support.training import DEEP, assert_equal, interrupted, long

ONE = ("parallelism=single", "ranks_per_node=1")
TP = ("parallelism=tp", "ranks_per_node=2")
TP_PP = ("parallelism=tp_pp", "ranks_per_node=4")
TP_FSDP = ("parallelism=tp_fsdp", "ranks_per_node=4")
ALL = ("parallelism=tp_pp_fsdp", "ranks_per_node=8")


def done(where: Path, *overrides: str) -> RunDir:
    """A run that has ended well; its record, if a test looks at it, is the last attempt's."""
    run = make_run(where, *DEEP, "name=run", *overrides)
    config = load_run(run.config)
    assert train(run) == [0] * config.ranks, printed(run)
    assert events(run, "layout")[0][PARAMETERS_HELD.name] == parameters_held(config).total, "as planned"
    return run


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """One process: its record and its export."""
    return done(tmp_path_factory.mktemp("reference"), *ONE, "job.export=true")


# --- weights in and out --------------------------------------------------------------------------------------


def stock(export: Path) -> GPT:
    """An exported directory as stock LitGPT reads it."""
    gpt = GPT(Config.from_file(export / "model_config.yaml"))
    gpt.load_state_dict(torch.load(export / "lit_model.pth", weights_only=True))
    return gpt


@pytest.mark.parametrize(
    "product",
    [
        long(TP_PP),
        long(ALL),
        long((*TP_PP, "parallelism.schedule=ZBVZeroBubble")),
        long(("parallelism=tp", "parallelism.tensor=4", "ranks_per_node=4")),
    ],
)
def test_an_export_gives_the_same_logits_in_stock_litgpt(
    product: tuple[str, ...], reference: RunDir, tmp_path: Path
) -> None:
    run = done(tmp_path, *product, "job.export=true")
    tokens = torch.randint(0, 320, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(stock(run.export)(tokens), stock(reference.export)(tokens), rtol=1e-4, atol=1e-5)
    assert not list(run.path.glob(".*")), "nothing half-written is left"


@pytest.mark.slow
@pytest.mark.parametrize("product", [long(TP_PP), long(ALL)])
def test_training_starts_from_a_checkpoint_directory_under_every_kind_of_cut(
    product: tuple[str, ...], reference: RunDir, tmp_path: Path
) -> None:
    start = f"job.init_from={reference.export}"
    expected = steps(done(tmp_path / "one", *ONE, start))
    assert expected[0]["loss"] != pytest.approx(steps(reference)[0]["loss"], abs=1e-3)
    assert_equal(steps(done(tmp_path / "cut", *product, start)), expected)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        long(("tp_pp", 4), ("fsdp_full", 2)),
        long(("single", 1), ("tp_pp_fsdp", 8)),
        long(("tp_pp_fsdp", 8), ("tp", 2)),
        long(("fsdp_full", 2), ("pp", 4, "parallelism.schedule=ZBVZeroBubble")),
        long(("tp", 4, "parallelism.tensor=4"), ("tp_fsdp", 4)),
        long(("pp", 2, "parallelism.schedule=Interleaved1F1B"), ("single", 1)),
        (("tp", 2), ("single", 1)),
    ],
)
def test_resuming_continues_the_same_losses_under_another_product(
    first: tuple[str | int, ...], then: tuple[str | int, ...], reference: RunDir, tmp_path: Path
) -> None:
    def product(name: str | int, ranks: str | int, *more: str | int) -> tuple[str, ...]:
        return (f"parallelism={name}", f"ranks_per_node={ranks}", *map(str, more))

    run = interrupted(tmp_path / "first", *DEEP, *product(*first))
    resumed = make_run(tmp_path / "then", *DEEP, *product(*then), "job.checkpoint_every_steps=3")
    run.checkpoints.rename(resumed.checkpoints)
    resumed.metrics.write_text(run.metrics.read_text())
    assert set(train(resumed)) == {0}, printed(resumed)
    assert events(resumed, "started")[-1]["from_step"] == 3
    assert_equal(steps(resumed), steps(reference))


# --- models, data and settings -------------------------------------------------------------------------------

MODELS = {
    "multi-head attention": ("model.kv_heads=8",),
    "tied embeddings": ("model.tie_embeddings=true",),
    "mixture of experts": ("model.mlp=LLaMAMoE", "model.experts=4", "model.experts_per_token=2"),
    "GPT-NeoX": ("model=pythia_14m", "model.intermediate_size=128"),
    "mixtral_8x7b, shrunk": ("model=mixtral_8x7b", "model.experts=4"),
    "llama31_8b, shrunk": ("model=llama31_8b", "model.intermediate_size=96"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "product"),
    # Tied weights cannot be on two stages.
    [long("mixture of experts", TP), *(long(name, TP_FSDP if "tied" in name else ALL) for name in MODELS)],
)
def test_every_kind_of_model_trains_the_same_under_all_parallelisms(
    model: str, product: tuple[str, ...], tmp_path: Path
) -> None:
    overrides = MODELS[model]
    expected = steps(done(tmp_path / "one", *ONE, *overrides))
    run = done(tmp_path / "all", *product, *overrides, "job.export=true")
    assert_equal(steps(run), expected)
    assert sum(p.numel() for p in stock(run.export).parameters()) >= parameters(load_run(run.config).model)


@pytest.mark.slow
@pytest.mark.long
def test_samples_of_unequal_length_are_padded_as_the_product_needs_and_compute_the_same(tmp_path: Path) -> None:
    path = write_json(tmp_path / "train.json", ALPACA * 6)
    data = ("data=alpaca", f"data.path={path}", "data.bpe_vocab_size=300", "job.sequence_length=64",
            "job.epochs=null", "data.too_long=truncate", "data.max_samples=null")  # fmt: skip
    one = steps(done(tmp_path / "one", *ONE, *data))
    padded = steps(done(tmp_path / "all", *ALL, *data))
    assert_equal(padded, one)
    assert {row["padded_tokens"] for row in padded} == {8 * 64.0}
    assert max(row["padded_tokens"] for row in one) < 8 * 64
    cut = steps(done(tmp_path / "tp", "parallelism=tp", "parallelism.tensor=4", "ranks_per_node=4", *data))
    assert_equal(cut, one)
    assert all(row["padded_tokens"] % 4 == 0 for row in cut)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        long(("engine.activation_checkpointing=full",)),
        ("engine.activation_checkpointing=selective",),
        long(("engine.activation_checkpointing=full", "engine.checkpointed_layers=1")),
        long(("parallelism.sequence_parallel=false",)),
        long(("parallelism.loss_parallel=false",)),
        long(("parallelism.stage_layers=[1,3]",)),
        long(("parallelism.stage_layers=[1,1,1,1]", "parallelism.schedule=Interleaved1F1B")),
        long(("engine.compile=true",)),
        long(("engine.compile=true", "parallelism.sequence_parallel=false", "engine.loss=chunked")),
        long(
            (
                "engine.compile=true",
                "parallelism.pipeline=1",
                "parallelism.strategy=fsdp",
                "parallelism.sharding=FULL_SHARD",
                "engine.activation_checkpointing=full",
            )
        ),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_a_setting_that_only_changes_how_leaves_the_losses(
    settings: tuple[str, ...], reference: RunDir, tmp_path: Path
) -> None:
    # The compiler is the real one here: it was wrong by 2e-2 under TP where a graph was in pieces.
    assert_equal(steps(done(tmp_path, *TP_PP, *settings)), steps(reference))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("product", "precision", "tolerance"),
    [
        long(("parallelism=tp", "ranks_per_node=2"), "bfloat16", 0.05),
        long(ALL, "bfloat16", 0.05),
        # float16 has three bits more, and gradients that underflow without the loss scale.
        long(("parallelism=tp", "ranks_per_node=2"), "float16", 0.01),
        long(TP_PP, "float16", 0.01),
        (("parallelism=fsdp_full", "ranks_per_node=2", "engine.loss=chunked"), "float16", 0.01),
        long(("parallelism=ddp", "ranks_per_node=2"), "float16", 0.01),
        long(ONE, "float16", 0.01),
        long(ALL, "float16", 0.01),
    ],
)
def test_16_bits_train_close_to_float32_under_a_product_too(
    product: tuple[str, ...], precision: str, tolerance: float, reference: RunDir, tmp_path: Path
) -> None:
    rows = steps(done(tmp_path, *product, f"job.precision={precision}"))
    for key, largest in (("loss", tolerance), ("gradient_norm", 5 * tolerance)):
        differences = [abs(row[key] - expected[key]) for row, expected in zip(rows, steps(reference), strict=True)]
        assert 1e-6 < max(differences) < largest, key


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("product", [("parallelism=tp", "ranks_per_node=2"), ALL])
def test_an_overflow_skips_the_update_on_all_ranks_and_a_checkpoint_keeps_the_scale(
    product: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**30)  # the first steps overflow
    run = done(tmp_path, *product, "job.precision=float16", "job.steps=20", "job.warmup_steps=20",
               "job.checkpoint_every_steps=19", "job.keep_checkpoints=2")  # fmt: skip
    rows = steps(run)
    skipped = [int(row["skipped_updates"]) for row in rows]
    assert skipped[0] == 1
    assert 1 < skipped[-1] < 20
    assert [row["loss_scale"] for row in rows] == [2.0 ** (30 - count) for count in skipped]
    rates = sorted({row["learning_rate"] for row in rows})
    for row, before in zip(rows, [0, *skipped], strict=False):
        assert row["learning_rate"] == rates[int(row["step"]) - before - 1], "a skipped update does not advance it"
    assert all(isfinite(row["loss"]) for row in rows)
    shutil.rmtree(run.checkpoints / "step-00000020")
    assert set(train(run)) == {0}, printed(run)
    assert steps(run)[-1]["loss_scale"] == rows[-1]["loss_scale"]
    assert steps(run)[-1]["loss"] == pytest.approx(rows[-1]["loss"], abs=1e-4)


# --- what a rank holds and sends -----------------------------------------------------------------------------


def sent(run: RunDir) -> dict[tuple[object, object], tuple[int, int]]:
    """Calls and bytes by axis and collective."""
    (event,) = events(run, "layout")
    collectives = event["collectives"]
    assert isinstance(collectives, list)
    return {(c["axis"], c["collective"]): (c[COLLECTIVE_CALLS.name], c[COLLECTIVE_BYTES.name]) for c in collectives}


def test_ddp_holds_all_weights_and_reduces_each_gradient_once_a_step(tmp_path: Path) -> None:
    run = done(tmp_path, "parallelism=ddp", "ranks_per_node=2")
    weights = parameters(load_run(run.config).model)
    assert events(run, "layout")[0][PARAMETERS_HELD.name] == weights
    loss = 4
    assert sent(run)["dp_replicate", "all_reduce"][1] == 4 * weights + loss
    # The rotary tables, 2 kB, are not broadcast before a forward pass; DDP sends its order of buckets once.
    assert sent(run)["dp_replicate", "broadcast"][1] < 2 * 4 * 32 * 8


def test_full_sharding_holds_a_part_and_scatters_every_micro_batch(tmp_path: Path) -> None:
    run = done(tmp_path, "parallelism=fsdp_full", "ranks_per_node=2", "job.micro_batch_size=2")
    weights = parameters(load_run(run.config).model)
    assert events(run, "layout")[0][PARAMETERS_HELD.name] == weights // 2
    micro_batches = 8 // (2 * 2)
    assert sent(run)["dp_shard", "reduce_scatter"][1] == micro_batches * 4 * weights


@pytest.mark.long
def test_tensor_parallel_moves_activations_and_a_pipeline_sends_them_once_each_way(tmp_path: Path) -> None:
    traffic = sent(done(tmp_path, *TP_PP, "job.micro_batch_size=2"))
    micro_batches, activation = 4, 2 * 32 * 64 * 4
    # Each stage of two layers gathers before attention and feed-forward, forward and backward; so do its norms' inputs.
    assert traffic["tp", "all_gather"][1] % activation == 0
    assert traffic["tp", "reduce_scatter"][1] % activation == 0
    assert traffic["pp", "send"] == (micro_batches, micro_batches * activation // 2)  # cut over two TP ranks
    assert not any(axis == "dp_shard" for axis, _ in traffic)


def test_a_pipeline_stage_is_given_tensors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # In the split backward of zero-bubble schedules torch 2.11 asks every argument whether it needs a gradient.
    stage, given_to = Mock(wte=None, lm_head=None), Mock()
    run = compose(["parallelism=pp", "parallelism.schedule=InterleavedZeroBubble"], multirun=False)[0].run
    pipeline = Pipeline([stage], run, Mock(), torch.device("cpu"), lambda _tokens: nullcontext())
    monkeypatch.setattr(pipeline, "schedule", lambda: given_to)
    pipeline.forward_backward([MicroBatch(torch.ones(1, 4), torch.ones(1, 4), labels) for labels in (3, 4)], 1.0)
    arguments = dict(given_to.call_args.kwargs)
    assert not given_to.call_args.args
    assert arguments.pop("return_outputs") is False
    assert arguments.keys() == {"targets"}
    assert isinstance(arguments["targets"], torch.Tensor)
    assert stage.labels == 4


# --- random choices ------------------------------------------------------------------------------------------


# Shrinking would run hundreds of trainings; the choices of a failure are short enough to read.
UNSHRUNK = [Phase.explicit, Phase.reuse, Phase.generate]


def override(key: str, values: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
    return values.map(lambda value: f"{key}={str(value).lower() if isinstance(value, bool) else value}")


def names(choices: type) -> st.SearchStrategy[object]:
    return st.sampled_from([choice.name for choice in choices])  # type: ignore[attr-defined]


def mostly(usual: object, *others: object) -> st.SearchStrategy[object]:
    return st.sampled_from([usual] * 4 * len(others) + list(others))


FSDP = ("full", "grad_op", "no_shard", "hybrid")
CHOICES = st.tuples(
    override("parallelism", st.sampled_from(["single", "ddp", "pp", "tp", *[f"fsdp_{name}" for name in FSDP]])),
    override("ranks_per_node", st.sampled_from([1, 2, 2, 3, 4, 4, 6, 8])),
    override("parallelism.tensor", st.sampled_from([1, 1, 2, 2, 3, 4])),
    override("parallelism.pipeline", st.sampled_from([1, 2, 2, 3, 4])),
    override("parallelism.context", mostly(1, 2)),
    override("parallelism.data_shard", mostly("null", 1, 2, 4)),
    override("parallelism.data_replicate", mostly("null", 1, 2)),
    override("parallelism.schedule", names(Schedule)),
    override("parallelism.stages_per_rank", mostly("null", 1, 2)),
    override("parallelism.stage_split", names(StageSplit)),
    override("parallelism.sequence_parallel", st.sampled_from(["null", True, False])),
    override("parallelism.loss_parallel", st.booleans()),
    override("engine.activation_checkpointing", names(ActivationCheckpointing)),
    override("engine.compile", mostly(False, True)),
    override("model.kv_heads", st.sampled_from([2, 4, 8, 8])),
    override("model.tie_embeddings", mostly(False, True)),
    override("job.precision", names(Precision)),
    override("job.micro_batch_size", mostly(1, 2, 3)),
    override("job.sequence_length", st.sampled_from([12, 16])),
    override("scaling.global_batch_size", mostly(24, 8)),
)


def refusal(overrides: tuple[str, ...]) -> str | None:
    """Return the refusal of the choices by composition, or None."""
    try:
        compose([*SMALL, *DEEP, *overrides], multirun=False)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.slow
@settings(max_examples=25, phases=UNSHRUNK, suppress_health_check=[HealthCheck.too_slow])
@given(CHOICES)
def test_random_choices_are_refused_with_what_to_set_or_not_at_all(overrides: tuple[str, ...]) -> None:
    message = refusal(overrides)
    if message is not None:
        first, *reasons = message.splitlines()
        assert "nothing was prepared or submitted" in first
        assert all(
            any(word in line for word in ("Set ", "Use ", "Nearest ", "Choose ", "Type ")) for line in reasons[1:]
        )


TWO_STEPS = ("data.max_samples=24", "job.steps=2", "job.warmup_steps=0")


@cache
def on_one_rank(choices: tuple[str, ...]) -> list[dict[str, float]]:
    """The record of the same model, data and arithmetic without any parallelism."""
    with TemporaryDirectory() as where:
        return steps(done(Path(where), *choices, *ONE, *TWO_STEPS))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(max_examples=4, phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(overrides=CHOICES.filter(lambda overrides: refusal(overrides) is None))
def test_random_choices_that_are_not_refused_train_as_one_rank_does(
    overrides: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = steps(done(tmp_path_factory.mktemp("random"), *overrides, *TWO_STEPS))
    same = [
        choice for choice in overrides
        if choice.startswith(("model.", "job.", "scaling.")) and not choice.startswith("job.micro_batch_size")
    ]  # fmt: skip
    tolerance = 1e-5 if "job.precision=float32" in overrides else 0.05
    for row, expected in zip(rows, on_one_rank(tuple(same)), strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], abs=tolerance), overrides


# --- context parallelism -------------------------------------------------------------------------------------


# Composition refuses context parallelism without GPUs, and rightly: only this test brings a CPU kernel.
GPUS = ("cluster.gpus=true", "cluster.ranks_per_node=8")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "product",
    [
        ("ranks_per_node=2",),
        long(("ranks_per_node=4", "parallelism.sharding=HYBRID_SHARD", "parallelism.data_replicate=2")),
        long(("ranks_per_node=4", "parallelism.tensor=2")),
        long(("ranks_per_node=4", "parallelism.pipeline=2")),
        long(("ranks_per_node=4", "parallelism.context=4")),
    ],
    ids="-".join,
)
def test_sequences_cut_over_ranks_compute_the_same_where_attention_goes_round_the_ring(
    product: tuple[str, ...], reference: RunDir, tmp_path: Path
) -> None:
    # Two rows at a time: collectives of the ring on one processor take most of the time.
    choices = ("parallelism=cp_fsdp", *product, "job.micro_batch_size=2", "launcher=dry", *GPUS)
    run = make_run(tmp_path, *DEEP, "name=run", *choices)
    assert ring_on_cpu.train(run) == [0] * load_run(run.config).ranks, printed(run)
    assert_equal(steps(run), steps(reference))


@pytest.mark.long
@pytest.mark.slow
def test_a_tensor_parallel_run_exports_biases_in_litgpts_order_as_weights(tmp_path: Path) -> None:
    more = ("model.attention_bias=true", "job.export=true", "job.steps=2", "scaling.global_batch_size=2")
    runs = [make_run(tmp_path, *more, *each) for each in (
        ("parallelism=single", "ranks_per_node=1"), ("parallelism=tp", "parallelism.tensor=2", "ranks_per_node=2")
    )]  # fmt: skip
    for run, ranks in zip(runs, (1, 2), strict=True):
        assert train(run) == [0] * ranks, printed(run)
    one, split = (torch.load(run.export / "lit_model.pth", weights_only=True) for run in runs)
    assert any(name.endswith("qkv.bias") and value.count_nonzero() for name, value in one.items())
    torch.testing.assert_close(split, one, rtol=1e-3, atol=1e-4)
