"""The NeMo engine: Megatron computes what the native engine does, under every parallelism, and refuses the rest.

The runs are NeMo's own on a CPU, by the shim in tests/support/nemo; they prove arithmetic, not GPUs' kernels.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from litgpt.config import Config
from litgpt.model import GPT

from analysis.metrics.goodput import account, starts_of
from jobs import metrics as m
from jobs.engines.nemo.float8 import float8
from jobs.engines.nemo.train import refuse_old_nemo
from jobs.errors import ConfigError
from jobs.layout import accumulation, data_degree
from jobs.plan.compose import compose
from jobs.plan.predict.speed import speed
from jobs.plan.predict.states import states
from jobs.rundir import RunDir, load_run, read_records
from jobs.runtime.transport import gloo_transports
from jobs.schema import Float8Recipe
from jobs.submit.commands import submit
from tests.support.composing import one
from tests.support.nemo.real_nemo import Nemo, shimmed_python
from tests.support.paths import ROOT
from tests.support.real_run import events, losses, make_run, printed, rank_environment, steps, train
from tests.support.tiny_data import ALPACA, huggingface_tokenizer, tokenizer_config, write_json
from tests.support.training import checkpoint_size_bytes, long, mean_loss, small_disk

NEMO = ("engine=nemo", "engine.distributed_optimizer=false", "model.layers=4", "job.micro_batch_size=2")
ONE = ("parallelism=single", "ranks_per_node=1")
TP = ("parallelism=tp", "ranks_per_node=2")
PP = ("parallelism=pp", "ranks_per_node=2")
INTERLEAVED = (*PP, "parallelism.schedule=Interleaved1F1B")
TP_PP = ("parallelism=tp_pp", "ranks_per_node=4")
DP = ("parallelism=ddp", "ranks_per_node=2")
CUT_OPTIMIZER = "engine.distributed_optimizer=true"
LORA = ("job=finetune_lora", "job.epochs=null", "job.precision=float32", "job.lora.rank=4", "job.lora.alpha=8")
# One step, with the rate that `learning_rate` gives it.
FIRST_STEP = ("job.steps=1", "job.warmup_steps=0", "job.min_learning_rate=0")


@pytest.fixture(scope="module")
def nemo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nemo]:
    """NeMo, imported once."""
    server = Nemo(tmp_path_factory.mktemp("nemo") / "log")
    yield server
    server.close()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """One process of the native engine."""
    return steps(native(tmp_path_factory.mktemp("reference")))


def native(where: Path, *overrides: str) -> RunDir:
    """A run of one process by the native engine, done."""
    run = make_run(where / "native", "model.layers=4", *ONE, *overrides)
    assert train(run) == [0], printed(run)
    return run


def done(nemo: Nemo, where: Path, *overrides: str) -> RunDir:
    """A run by NeMo, done."""
    return finished(nemo, make_run(where, *NEMO, *overrides))


def finished(nemo: Nemo, run: RunDir) -> RunDir:
    """A run that has been brought to its end."""
    codes = nemo.train(run)
    assert set(codes) == {0}, printed(run)
    assert events(run, "finished")
    return run


def assert_equal(run: RunDir, reference: list[dict[str, float]]) -> None:
    rows = steps(run)
    assert len(rows) == len(reference)
    for row, expected in zip(rows, reference, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert row["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-4)
        assert row["learning_rate"] == expected["learning_rate"]
        assert row["tokens"] == expected["tokens"]


# --- the same arithmetic -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        long(ONE),
        long(TP),
        long(PP),
        INTERLEAVED,
        long(TP_PP),
        (*DP, CUT_OPTIMIZER),
        long(DP),
        long((*PP, "parallelism.stage_layers=[1,3]")),
        long(("parallelism=tp", "nodes=2", "ranks_per_node=2", CUT_OPTIMIZER)),
        long((*DP, "job.micro_batch_size=1")),
        long((*TP, "engine.activation_checkpointing=full")),
        long((*PP, "engine.activation_checkpointing=selective")),
    ],
    ids=" ".join,
)
def test_losses_and_gradients_equal_the_native_engines(
    layout: tuple[str, ...], nemo: Nemo, reference: list[dict[str, float]], tmp_path: Path
) -> None:
    assert_equal(done(nemo, tmp_path, *layout), reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        long(("model.norm=LayerNorm", "model.mlp=GptNeoxMLP", "model.bias=true", "model.rope_fraction=0.5"), TP_PP),
        long(("model.bias=true",), TP),
        long(("model=llama31_8b", "model.rope_scaling.original_max_sequence_length=16"), PP),
        long(("model.tie_embeddings=true",), TP),
        long(("model.norm_qk=true", "model.sliding_window=8"), TP),
    ],
    ids=["LayerNorm GptNeoxMLP bias", "bias", "rope_scaling", "tie_embeddings", "norm_qk, sliding_window"],
)
def test_other_architectures_are_the_native_engines_too(
    model: tuple[str, ...], layout: tuple[str, ...], nemo: Nemo, tmp_path: Path
) -> None:
    run = done(nemo, tmp_path, *layout, *model, "job.export=true", "job.steps=6")
    reference = native(tmp_path, *model, "job.export=true")
    assert_equal(run, steps(reference))
    ours, theirs = weights(run), weights(reference)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-4, rtol=1e-3, msg=name)


# As Qwen3's mixtures, with a loss that balances the load of experts.
QWEN3 = ("model.mlp=LLaMAMoE", "model.experts=4", "model.experts_per_token=2", "model.moe_intermediate_size=40",
         "model.norm_qk=true", "job.expert_balance_loss=0.5")  # fmt: skip
# Windows, sinks, YaRN, biases of router and experts, and limited SwiGLU, whose limit some values reach.
GPT_OSS = ("model=gpt_oss_20b", "model.layers=4", "model.hidden_size=32", "model.heads=4", "model.kv_heads=2",
           "model.head_size=8", "model.intermediate_size=48", "model.vocab_size=64", "model.max_sequence_length=64",
           "model.experts=4", "model.experts_per_token=2", "model.sliding_window=8", "model.swiglu_limit=0.02",
           "model.rope_scaling.original_max_sequence_length=16")  # fmt: skip
EP = "parallelism.expert=2"
EVERY_STEP = ("job.checkpoint_every_steps=1", "job.keep_checkpoints=9")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (QWEN3, (*DP, CUT_OPTIMIZER, EP)),
        long(QWEN3, ONE),
        long(QWEN3, (*DP, EP)),
        long(QWEN3, ("parallelism=ddp", "ranks_per_node=4", CUT_OPTIMIZER, EP)),
        long(QWEN3, ("parallelism=pp", "parallelism.schedule=Interleaved1F1B", "ranks_per_node=4", EP)),
        long(GPT_OSS, ("parallelism=ddp", "ranks_per_node=4", CUT_OPTIMIZER, "parallelism.expert=4")),
        long(GPT_OSS, PP),
    ],
    ids=str,
)
def test_mixtures_of_experts_are_the_native_engines_with_experts_on_any_ranks(
    model: tuple[str, ...], layout: tuple[str, ...], nemo: Nemo, tmp_path: Path
) -> None:
    run = done(nemo, tmp_path, *layout, *model, "job.export=true")
    reference = native(tmp_path, *model, "job.export=true")
    assert_equal(run, steps(reference))
    ours, theirs = weights(run), weights(reference)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [CUT_OPTIMIZER, "engine.distributed_optimizer=false"])
def test_experts_resume_on_any_division(optimizer: str, nemo: Nemo, tmp_path: Path) -> None:
    layouts = ((*DP, EP), ONE, ("parallelism=ddp", "ranks_per_node=4", "parallelism.expert=4"))
    saved = done(nemo, tmp_path / "0", *layouts[-1], optimizer, *QWEN3, *EVERY_STEP)
    reference = steps(saved)
    for step, layout in enumerate(layouts, 2):
        run = make_run(tmp_path / f"{step}", *NEMO, *layout, optimizer, *QWEN3, *EVERY_STEP)
        name = f"step-{step:08d}"
        shutil.copytree(saved.checkpoints / name, run.checkpoints / name)
        run.metrics.write_text("".join(saved.metrics.read_text().splitlines(keepends=True)[: step + 1]))
        assert_equal(finished(nemo, run), reference)
        assert events(run, "started")[-1]["from_step"] == step
        saved = run


@pytest.mark.long
@pytest.mark.slow
def test_adapters_of_attention_train_in_a_mixture(nemo: Nemo, tmp_path: Path) -> None:
    start = native(tmp_path / "start", *QWEN3, "job.export=true")
    attention = ("job.lora.targets=[query,key,value,projection]", *QWEN3[:-1])
    one = done(nemo, tmp_path / "one", *ONE, *adapting(start), *attention, "job.export=true")
    run = done(nemo, tmp_path / "divided", *DP, CUT_OPTIMIZER, EP, *adapting(start), *attention, "job.export=true")
    assert_equal(run, steps(one))
    for name, tensor in weights(run).items():
        torch.testing.assert_close(tensor, weights(one)[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.long
@pytest.mark.slow
def test_instruction_data_of_uneven_length_trains_as_the_native_engine_does(nemo: Nemo, tmp_path: Path) -> None:
    data = write_json(tmp_path / "alpaca.json", ALPACA * 4)
    tokenizer = tokenizer_config(huggingface_tokenizer(tmp_path / "tokenizer"), eos_token="</s>")
    tuning = ("job=finetune_full", "job.epochs=2", "job.steps=null", "job.precision=float32", "job.warmup_steps=1",
              "job.sequence_length=512", "data=alpaca", f"data.path={data}", f"data.tokenizer={tokenizer}",
              "data.mask_prompt=true", "data.too_long=truncate", "data.max_samples=null",
              "model.max_sequence_length=512")  # fmt: skip
    start = native(tmp_path, "job.export=true", "model.max_sequence_length=512")
    init = f"job.init_from={start.export}"
    reference = steps(native(tmp_path / "tuned", *tuning, init))
    run = done(nemo, tmp_path, "parallelism=tp", "ranks_per_node=4", *tuning, init)
    assert_equal(run, reference)
    assert steps(run)[0]["padded_tokens"] == 8 * 512, "Megatron's sequences have one length"


@pytest.mark.long
@pytest.mark.slow
def test_bfloat16_trains_close_to_float32_but_not_equal(
    nemo: Nemo, reference: list[dict[str, float]], tmp_path: Path
) -> None:
    run = done(nemo, tmp_path, *TP_PP, "job.precision=bfloat16")
    differences = [abs(row["loss"] - expected["loss"]) for row, expected in zip(steps(run), reference, strict=True)]
    assert 1e-5 < max(differences) < 0.05


@pytest.mark.long
@pytest.mark.slow
def test_a_run_without_clipping_still_records_its_norms(nemo: Nemo, tmp_path: Path) -> None:
    free = done(nemo, tmp_path, *DP, "job.clip_norm=null")
    assert_equal(free, steps(native(tmp_path, "job.clip_norm=null")))


# --- checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [long(TP_PP, INTERLEAVED), long(INTERLEAVED, TP_PP), long((*DP, CUT_OPTIMIZER), (*TP_PP, CUT_OPTIMIZER))],
    ids=["tp_pp to interleaved", "interleaved to tp_pp", "optimizer cut over dp 2 to one of tp_pp"],
)
def test_resuming_continues_the_same_losses_on_any_layout(
    first: tuple[str, ...], then: tuple[str, ...], nemo: Nemo, reference: list[dict[str, float]], tmp_path: Path
) -> None:
    run = done(nemo, tmp_path / "first", *first, "job.checkpoint_every_steps=3")
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-00000003", "step-00000006"]
    resumed = make_run(tmp_path / "then", *NEMO, *then)
    shutil.copytree(run.checkpoints / "step-00000003", resumed.checkpoints / "step-00000003")
    (resumed.checkpoints / ".step-00000004.writing").mkdir()
    resumed.metrics.write_text("".join(run.metrics.read_text().splitlines(keepends=True)[:4]))
    assert_equal(finished(nemo, resumed), reference)
    assert events(resumed, "started")[-1]["from_step"] == 3


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_was_killed_after_its_last_checkpoint_only_ends(nemo: Nemo, tmp_path: Path) -> None:
    run = done(nemo, tmp_path, *TP, "job.checkpoint_every_steps=2", "job.keep_checkpoints=1", "job.export=true")
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000006"]
    exported = weights(run)
    shutil.rmtree(run.export)
    finished(nemo, run)
    assert len(steps(run)) == 6
    assert all(torch.equal(tensor, exported[name]) for name, tensor in weights(run).items())


@pytest.mark.long
@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_at_one_step_with_a_checkpoint(nemo: Nemo, tmp_path: Path) -> None:
    run = make_run(tmp_path, *NEMO, *PP, "job.steps=100000", "job.checkpoint_every_steps=100000")
    _, second = nemo.start(run)
    for _ in range(600):
        if len(steps(run)) > 2:
            break
        time.sleep(0.05)
    os.kill(second, signal.SIGTERM)
    assert nemo.exit_codes() == [0, 0], printed(run)
    (end,) = events(run, "stopped")
    assert end["step"] == steps(run)[-1]["step"]
    assert (run.checkpoints / f"step-{end['step']:08d}").is_dir()
    assert not events(run, "failed")


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_diverges_ends_as_such_with_its_last_finite_checkpoint(nemo: Nemo, tmp_path: Path) -> None:
    run = make_run(tmp_path, *NEMO, *TP, "job.steps=8", "job.learning_rate=1000", "job.min_learning_rate=1000",
                   "job.warmup_steps=0", "job.checkpoint_every_steps=1", "job.export=true")  # fmt: skip
    assert nemo.train(run) == [1, 1], printed(run)
    failures = events(run, "failed")
    assert {event["cause"] for event in failures} == {"diverged"}
    (step,) = {event["step"] for event in failures}
    assert isinstance(step, int)
    assert max(run.checkpoints.glob("step-*")).name == f"step-{step - 1:08d}"
    assert not run.export.exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_torn_checkpoint_is_refused_by_name(nemo: Nemo, tmp_path: Path) -> None:
    run = make_run(tmp_path, *NEMO, *ONE)
    (run.checkpoints / "step-00000003").mkdir(parents=True)
    assert nemo.train(run) == [1]
    assert "step-00000003 cannot be read" in str(events(run, "failed")[0]["error"])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", "metadata.json"])
def test_a_checkpoint_cut_short_is_refused_with_what_to_do(file: str, nemo: Nemo, tmp_path: Path) -> None:
    run = done(nemo, tmp_path, *DP, "job.checkpoint_every_steps=2", "job.keep_checkpoints=3")
    shutil.rmtree(run.checkpoints / "step-00000006")
    torn = run.checkpoints / "step-00000004/weights" / file
    os.truncate(torn, torn.stat().st_size // 2)
    assert nemo.train(run) == [1, 1]
    (message,) = {str(event["error"]) for event in events(run, "failed")}
    assert f"Checkpoint {run.checkpoints / 'step-00000004'} cannot be read: " in message
    assert message.endswith("Remove that directory to resume from the one before it.")
    assert "Traceback" not in message
    shutil.rmtree(run.checkpoints / "step-00000004")
    finished(nemo, run)
    assert events(run, "started")[-1]["from_step"] == 2


# --- adapters ------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_full_costs_a_checkpoint_and_not_the_run(nemo: Nemo, tmp_path: Path) -> None:
    made = make_run(tmp_path, *NEMO, *DP, "job.checkpoint_every_steps=2", "job.keep_checkpoints=3")
    size = checkpoint_size_bytes(finished(nemo, made))
    run = RunDir(tmp_path / "test/full")
    with small_disk(run.checkpoints, 1.5 * size):
        shutil.copy(made.config, run.config)
        assert nemo.train(run) == [0, 0]
        assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000002"]
    assert losses(run) == losses(made)
    failed = events(run, "checkpoint_failed")
    assert [event["step"] for event in failed] == [4, 6]
    assert f"The last good one stays. Is the disk full? Run df -h {run.checkpoints}" in str(failed[0]["error"])


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a run of the native engine; adapters are trained on its weights."""
    return native(tmp_path_factory.mktemp("start"), "job.export=true")


@pytest.fixture(scope="module")
def adapted(nemo: Nemo, start: RunDir, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Adapters trained by one rank; all steps see the same samples, so that losses can be compared over steps."""
    return done(nemo, tmp_path_factory.mktemp("adapted"), *ONE, *adapting(start), "job.export=true")


def adapting(start: RunDir, *overrides: str) -> tuple[str, ...]:
    """Overrides of a run that trains adapters at a constant rate."""
    constant = ("job.warmup_steps=0", "job.min_learning_rate=5e-3", "scaling.global_batch_size=16",
                "job.micro_batch_size=4")  # fmt: skip
    return (*LORA, *constant, f"job.init_from={start.export}", *overrides)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [TP_PP, (*DP, CUT_OPTIMIZER), TP, (*INTERLEAVED, "engine.activation_checkpointing=full")],
    ids=" ".join,
)
def test_adapters_train_alike_on_every_layout(
    layout: tuple[str, ...], nemo: Nemo, start: RunDir, adapted: RunDir, tmp_path: Path
) -> None:
    run = done(nemo, tmp_path, *layout, *adapting(start), "job.export=true")
    assert_equal(run, steps(adapted))
    for name, tensor in weights(run).items():
        torch.testing.assert_close(tensor, weights(adapted)[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.long
@pytest.mark.slow
def test_adapters_alone_learn_and_are_merged_into_the_export(
    nemo: Nemo, start: RunDir, adapted: RunDir, tmp_path: Path
) -> None:
    assert losses(adapted)[-1] < losses(adapted)[0] - 0.02
    before, after = weights(start), weights(adapted)
    for name, tensor in before.items():
        change = after[name] - tensor
        # An adapter of rank 4 for each of Megatron's matrices: gate and up are one, so each half has rank 4 too.
        most = 4 if name.startswith("transformer.h.") and "norm" not in name else 0
        assert torch.linalg.matrix_rank(change.reshape(len(change), -1), atol=1e-5) == most, name
    longer = done(nemo, tmp_path / "longer", *ONE, *adapting(start, "job.steps=7"))
    one = done(nemo, tmp_path / "one", *ONE, *FIRST_STEP, "scaling.global_batch_size=16",
               f"job.init_from={adapted.export}")  # fmt: skip
    assert losses(one)[0] == pytest.approx(losses(longer)[6], abs=1e-5)


@pytest.mark.slow
@pytest.mark.long
def test_adapters_resume_from_a_checkpoint_without_the_weights_under_them(
    nemo: Nemo, start: RunDir, tmp_path: Path
) -> None:
    dropout = adapting(start, "job.lora.dropout=0.2", "job.checkpoint_every_steps=3")
    whole = done(nemo, tmp_path / "whole", *TP_PP, *dropout)
    saved = whole.checkpoints / "step-00000003"
    assert sum(file.stat().st_size for file in saved.rglob("*")) < (start.export / "lit_model.pth").stat().st_size * 3
    resumed = make_run(tmp_path / "resumed", *NEMO, *TP_PP, *dropout)
    shutil.copytree(saved, resumed.checkpoints / saved.name)
    finished(nemo, resumed)
    assert losses(resumed) == pytest.approx(losses(whole)[3:], abs=1e-6)


# --- LitGPT checkpoint directories ---------------------------------------------------------------------------


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    """Return the exported weights of a run."""
    state: dict[str, torch.Tensor] = torch.load(run.export / "lit_model.pth", weights_only=True)
    return state


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", [TP_PP, INTERLEAVED], ids=["tp_pp", "interleaved"])
def test_the_exported_directory_loads_in_stock_litgpt_and_as_init_from(
    layout: tuple[str, ...], nemo: Nemo, tmp_path: Path
) -> None:
    run = done(nemo, tmp_path / "run", *layout, "job.export=true")
    stock = GPT(Config.from_file(run.export / "model_config.yaml"))
    stock.load_state_dict(weights(run))
    again = done(nemo, tmp_path / "again", *TP_PP, *FIRST_STEP, f"job.init_from={run.export}")
    assert losses(again)[0] == pytest.approx(mean_loss(stock, again), abs=1e-5)


@pytest.mark.slow
def test_the_export_of_a_run_on_text_carries_its_tokenizer(nemo: Nemo, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("To be, or not to be, that is the question. " * 200)
    run = done(nemo, tmp_path, *ONE, *FIRST_STEP, "job.export=true", "data=text", f"data.path={tmp_path}/some.txt",
               "data.bpe_vocab_size=300")  # fmt: skip
    assert {"lit_model.pth", "model_config.yaml", "tokenizer.json"} <= {file.name for file in run.export.iterdir()}


# --- the record ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_the_record_states_what_ran_where_and_what_a_rank_held(nemo: Nemo, tmp_path: Path) -> None:
    single = done(nemo, tmp_path / "one", *ONE)
    four = done(nemo, tmp_path / "four", "parallelism=tp_pp", "nodes=2", "ranks_per_node=2")
    (begun,) = events(four, "started")
    assert (begun["device"], begun["ranks"], begun["emulated_nodes"]) == ("cpu", 4, True)
    all_weights, held = (float(str(events(run, "layout")[0]["parameters_held"])) for run in (single, four))
    assert 0.25 < held / all_weights < 0.3, "norms are whole on every rank of a stage"
    assert [event["ways"] for run in (single, four) for event in events(run, "transport")] == [gloo_transports()]
    (end,) = events(four, "finished")
    parts = [v for k, v in end.items() if k.endswith("_s") and k != "total_time_s" and isinstance(v, float)]
    assert sum(parts) == pytest.approx(end["total_time_s"], rel=1e-6)
    starts = starts_of(list(read_records(four.status)), read_records(four.metrics), [])
    assert starts is not None
    values = account(starts).values
    # Two clocks: the times of the events, and the rank's own from the start of its process.
    assert values[m.RUN_TIME] == pytest.approx(end["total_time_s"], rel=0.1)
    assert 0 < values[m.GOODPUT] < 1
    assert values[m.LOST_TIME] == 0


# --- on GPUs -------------------------------------------------------------------------------------------------

RECIPE = """
import json, sys, torch
from nemo.collections import llm  # what it imports must not look for a GPU
from jobs.engines.nemo import recipe
from jobs.engines.nemo.recipe import model_config, overlaps, strategy
from jobs.plan.compose import compose
torch.cuda.is_available, torch.cuda.get_device_capability = lambda: True, lambda: (9, 0)
recipe.HAVE_TE = True
nodes = ["engine=nemo", "cluster=xe9680_h100", "nodes=2", "gpu.memory_gb=null"]
for overrides in json.loads(sys.argv[1]):
    run = compose([*nodes, *overrides], multirun=False)[0].run
    callback, ddp = overlaps(run), strategy(run).ddp
    gather = ddp.overlap_param_gather and ddp.overlap_grad_reduce
    overlapped = [callback.tp_comm_overlap, callback.tp_comm_overlap_cfg is not None, gather]
    config = model_config(run)
    fused = [config.bias_dropout_fusion, config.apply_rope_fusion, getattr(config, "moe_grouped_gemm", None)]
    sent = [getattr(config, f"moe_{key}", None) for key in ("token_dispatcher_type", "enable_deepep", "router_dtype")]
    print(json.dumps({"overlapped": overlapped, "fused": fused, "sent": sent}))
"""


@pytest.mark.slow
@pytest.mark.long
def test_the_recipe_overlaps_communication_as_nvidias_own_recipes_do() -> None:
    tp = ["parallelism=tp", "parallelism.tensor=4", "model=llama3_70b", "job.sequence_length=8192",
          "job.precision=bfloat16", "job.micro_batch_size=1", "scaling.global_batch_size=16"]  # fmt: skip
    cases = [
        (tp, [True, True, True]),
        ([*tp, "job.sequence_length=4096"], [True, False, True]),
        ([*tp, "parallelism.sequence_parallel=false"], [False, True, True]),
        (["parallelism=ddp", "model=llama3_8b", "job.micro_batch_size=1"], [False, False, True]),
    ]
    found = on_gpus(overrides for overrides, _ in cases)
    assert [each["overlapped"] for each in found] == [expected for _, expected in cases]


@pytest.mark.slow
@pytest.mark.long
def test_no_fused_kernel_is_asked_for_what_it_leaves_out() -> None:
    experts = ["parallelism=ddp", "parallelism.expert=8", "job.micro_batch_size=1", "scaling.global_batch_size=16"]
    # Grouped experts refuse the fused addition of biases, and the fused rotation has no factor of YaRN.
    cases = {"qwen3_30b_a3b": [True, True, True], "gpt_oss_20b": [False, False, True]}
    found = on_gpus([f"model={model}", *experts] for model in cases)
    assert [each["fused"] for each in found] == list(cases.values())


@pytest.mark.slow
@pytest.mark.long
def test_tokens_go_to_their_experts_by_deepep_where_the_nodes_have_it(tmp_path: Path) -> None:
    plain = ["model=qwen3_30b_a3b", "parallelism=ddp", "parallelism.expert=8", "job.micro_batch_size=1",
             "scaling.global_batch_size=16", "job.precision=bfloat16"]  # fmt: skip
    deepep = [*plain, "engine.expert_dispatcher=deepep"]
    with pytest.raises(AssertionError, match="needs the package deep_ep on the nodes, and Python has none here"):
        on_gpus([deepep])
    (tmp_path / "deep_ep").mkdir()
    (tmp_path / "deep_ep/__init__.py").touch()
    found = on_gpus([plain, deepep], tmp_path)
    assert [each["sent"] for each in found] == [["alltoall", False, None], ["flex", True, "fp32"]]


def on_gpus(cases: Iterable[list[str]], *packages: Path) -> list[dict[str, list[object]]]:
    """Return what the recipe of each case asks for where there are GPUs and Transformer Engine."""
    command = [sys.executable, "-c", RECIPE, json.dumps(list(cases))]
    added = {"PYTHONPATH": os.pathsep.join(map(str, packages))} if packages else {}
    answer = subprocess.run(command, cwd=ROOT, env={**os.environ, **added}, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    # DeepSpeed, where it is installed, prints lines of its own.
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


# --- where it cannot run -------------------------------------------------------------------------------------


def test_a_machine_without_a_gpu_is_refused_with_what_to_set(tmp_path: Path) -> None:
    run = make_run(tmp_path, *NEMO, *ONE)
    assert train(run) == [1]
    assert "computes on GPUs only, and torch sees none here" in str(events(run, "failed")[0]["error"])


def test_an_older_nemo_is_refused_with_its_version() -> None:
    class Strategy:
        def __init__(self, tensor_model_parallel_size: int = 1) -> None: ...

    with pytest.raises(ConfigError, match=r"tested is 2\.7\.3, and NeMo 2\.3\.0 on this node is older"):
        refuse_old_nemo(Strategy, "2.3.0")


@pytest.mark.slow
@pytest.mark.long
def test_a_job_whose_python_has_the_shim_trains_and_any_other_call_is_python(tmp_path: Path) -> None:
    run = make_run(tmp_path, *NEMO, *ONE, *FIRST_STEP)
    place = rank_environment(0, 1, "x")
    python = shimmed_python(tmp_path)
    code = ROOT
    subprocess.run(
        [python, "-u", "-m", "jobs.run", run.path],
        env=os.environ | place | {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"},
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert events(run, "finished")
    answer = subprocess.run([python, "-c", "import sys; print(sys.argv)", "-m"], capture_output=True, check=True)
    assert answer.stdout == b"['-c', '-m']\n"


@pytest.mark.parametrize(
    ("experiment", "degrees", "micro_batches"),
    [("llama2_7b_nemo", (1, 4, 2), 36), ("llama2_70b_nemo", (4, 3, 4), 48)],
)
def test_the_published_runs_compose_and_can_be_looked_at_before_they_are_submitted(
    experiment: str,
    degrees: tuple[int, int, int],
    micro_batches: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = compose([f"experiment={experiment}"], multirun=False)[0].run
    p = run.parallelism
    assert ((p.pipeline, data_degree(run), p.tensor), accumulation(run)) == (degrees, micro_batches)
    assert submit([f"experiment={experiment}", "launcher=dry", f"runs_dir={tmp_path}"], multirun=False, wait=False) == 0
    shown = capsys.readouterr().out
    assert f"#SBATCH --nodes={run.nodes}" in shown
    assert "#SBATCH --gpus-per-node=8" in shown
    frozen = load_run(next(tmp_path.glob("*/*/config.yaml")))
    assert (frozen.model, frozen.parallelism, frozen.job) == (run.model, run.parallelism, run.job)


def test_float8_without_transformer_engine_ends_before_the_first_step(nemo: Nemo, tmp_path: Path) -> None:
    run = make_run(tmp_path, *NEMO, *ONE)
    # No rule of this machine, which has no GPU, lets it start; a node that lacks the package would.
    config = run.config.read_text()
    run.config.write_text(config.replace("float8: false", "float8: true"))
    assert load_run(run.config).engine.float8
    assert nemo.train(run) != [0]
    assert "engine.float8=true needs Transformer Engine on the nodes. Use NVIDIA's NeMo container" in printed(run)
    assert not steps(run)


@pytest.mark.parametrize(
    ("recipe", "version", "expected"),
    [
        ("null", "1.13", {"fp8": "hybrid", "fp8_recipe": "delayed"}),
        ("mxfp8", "2.1.0", {"fp8_recipe": "mxfp8", "reuse_grad_buf_for_mxfp8_param_ag": True}),
        ("nvfp4", "2.7.0", {"fp4": "e2m1"}),
        ("nvfp4", "2.6.1", "nvfp4 needs Transformer Engine 2.7 or later on the nodes, and these have 2.6.1. Use"),
        ("mxfp8", None, "engine.float8_recipe=mxfp8 needs Transformer Engine 2.1 or later on the nodes. Use NVIDIA's"),
    ],
)
def test_a_recipe_is_megatrons_and_needs_its_transformer_engine(
    recipe: str, version: str | None, expected: dict[str, object] | str
) -> None:
    run = one("engine=nemo", "cluster=xe9680_h100", "gpu=b200_sxm", "model=llama2_7b", "data=random",
              "job.precision=bfloat16", "engine.float8=true", f"engine.float8_recipe={recipe}",
              "engine.distributed_optimizer=true").run  # fmt: skip
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=re.escape(expected)):
            float8(run, version)
    else:
        assert expected.items() <= float8(run, version).items()


KEYWORDS = """
import torch
from nemo import lightning as nl
from megatron.core.transformer import TransformerConfig
from jobs.engines.nemo.float8 import FLOAT8, MXFP8_WEIGHTS
for recipe, keywords in FLOAT8.items():
    more = MXFP8_WEIGHTS if recipe.name == "mxfp8" else {}
    made = nl.MegatronMixedPrecision(precision="bf16-mixed", **keywords, **more).dtype_config
    print(recipe.name, made.fp8, made.fp8_recipe, made.fp8_param, made.fp4, hasattr(TransformerConfig, "fp4_recipe"))
"""


@pytest.mark.slow
@pytest.mark.long
def test_megatron_has_every_recipe() -> None:
    answer = subprocess.run([sys.executable, "-c", KEYWORDS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    found = [line for line in answer.stdout.splitlines() if line.split(" ")[0] in Float8Recipe.__members__]
    assert found == [
        "delayed hybrid delayed True None True",
        "tensorwise hybrid tensorwise True None True",
        "blockwise e4m3 blockwise True None True",
        "mxfp8 e4m3 mxfp8 True None True",
        "nvfp4 None delayed False e2m1 True",
    ]


def test_float8_of_nemo_is_planned_under_tensor_and_pipeline_parallelism() -> None:
    common = ("engine=nemo", "cluster=xe9680_h100", "nodes=2", "model=llama2_13b", "data=random", "parallelism=tp_pp",
              "job.precision=bfloat16", "engine.activation_checkpointing=full", "job.sequence_length=4096",
              "scaling.global_batch_size=128")  # fmt: skip
    (wide,), (narrow,) = (compose([*common, f"engine.float8={value}"], multirun=False) for value in ("false", "true"))
    slow, fast = (speed(point.run) for point in (wide, narrow))
    assert slow is not None
    assert fast is not None
    assert fast.point_s < 0.9 * slow.point_s
    # A matrix and its transpose in float8 are as large as one in bfloat16.
    assert states(narrow.run).weights == states(wide.run).weights


@pytest.mark.parametrize(
    ("recipe", "distributed", "more"), [("mxfp8", True, 1 / 16), ("mxfp8", False, 2 + 1 / 16), ("nvfp4", True, 9 / 8)]
)
def test_copies_of_weights_in_blocks_are_planned_with_their_scales(recipe: str, distributed: bool, more: float) -> None:
    common = ("engine=nemo", "cluster=xe9680_h100", "gpu=b200_sxm", "model=llama2_7b", "data=random", "parallelism=ddp",
              "job.precision=bfloat16", f"engine.distributed_optimizer={str(distributed).lower()}",
              "engine.activation_checkpointing=full", "job.micro_batch_size=1", "scaling.global_batch_size=64",
              "job.sequence_length=4096")  # fmt: skip
    wide = one(*common).run
    tensorwise, narrow = (one(*common, "engine.float8=true", f"engine.float8_recipe={name}").run
                          for name in ("tensorwise", recipe))  # fmt: skip
    # Llama-2 7B without embedding, head and norms.
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert states(narrow).weights - states(wide).weights == more * matrices
    seconds = [each.point_s for each in map(speed, (narrow, tensorwise, wide)) if each]
    assert seconds[2] > max(seconds[:2])
    assert (seconds[0] > seconds[1]) == (recipe == "mxfp8"), "MXFP8 has the rate of float8 and rounds more"
