"""The LitGPT engine: its own scripts on the run's samples, their record, and their limits."""

from __future__ import annotations

import csv
import os
import signal
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from lightning.fabric.connector import _Connector
from lightning.fabric.plugins.precision.amp import MixedPrecision
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import check_valid_checkpoint_dir

import jobs.engines.litgpt.train  # noqa: F401 (imported once here, for all forked ranks)
from analysis.load.discover import read
from analysis.report.report import report
from jobs import metrics as m
from jobs.cli import main
from jobs.data import Batches, open_dataset
from jobs.engines.native.loss import whole
from jobs.errors import DataError
from jobs.plan.compose import compose
from jobs.plan.show import show
from jobs.rundir import RunDir, SweepDir, load_run
from jobs.runtime.steps import batches_of, samples
from jobs.runtime.transport import gloo_transports
from jobs.submit.preparation.prepare import prepare_samples
from jobs.work.serve.conversion import convert
from tests.support.real_run import SMALL, events, losses, make_run, printed, steps, train
from tests.support.tiny_data import ALPACA, huggingface_tokenizer, sentencepiece_tokenizer, tokenizer_config, write_json
from tests.support.training import long
from tests.support.waiting import limit_s, wait_until

LITGPT = ("engine=litgpt", "parallelism=single", "ranks_per_node=1", "job.export=true")
SHARDED = ("parallelism=fsdp_full", "ranks_per_node=2", "engine.activation_checkpointing=full")
TUNING = ("job=finetune_full", "job.epochs=null", "job.steps=3", "job.precision=float32", "job.warmup_steps=1",
          "job.min_learning_rate=0", "job.clip_norm=null", "job.sequence_length=256", "model.max_sequence_length=256",
          "data.max_samples=null", "data.held_out_samples=4", "data.mask_prompt=true", "data.too_long=truncate",
          "scaling.global_batch_size=8", "job.micro_batch_size=8")  # fmt: skip
LORA = ("job=finetune_lora", "job.lora.rank=4", "job.lora.alpha=8", "job.lora.targets=[query,value]")
PRETRAINING = ("data.held_out_samples=4", "data.max_samples=20", "engine.compile=true", "job.steps=3")


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides for Alpaca's records, of uneven length."""
    where = tmp_path_factory.mktemp("instructions")
    data = write_json(where / "alpaca.json", ALPACA * 5)
    tokenizer = tokenizer_config(huggingface_tokenizer(where / "tokenizer"), eos_token="</s>")
    return ("data=alpaca", f"data.path={data}", f"data.tokenizer={tokenizer}")


@pytest.fixture(scope="module")
def native(instructions: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The native engine's run of the same samples; the others start from what it started from."""
    where = tmp_path_factory.mktemp("native")
    first = ended(make_run(where, *LITGPT[1:], "name=first", "job.steps=2", "model.max_sequence_length=256"))
    return ended(
        make_run(where, *LITGPT[1:], *TUNING, *instructions, f"job.init_from={first.export}", "engine.tf32=false")
    )


@pytest.fixture(scope="module")
def full(native: RunDir, instructions: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """finetune_full on one rank, from the same weights in Hugging Face's layout."""
    where = tmp_path_factory.mktemp("full")
    convert(Path(str(load_run(native.config).job.init_from)), where / "hub")
    return tuned(where, native, *instructions, start=where / "hub")


@pytest.fixture(scope="module")
def sharded(native: RunDir, instructions: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """finetune_full on two ranks, two micro-batches each; nothing is held out."""
    given = (*instructions, *SHARDED, "job.micro_batch_size=2", "data.held_out_samples=0")
    return tuned(tmp_path_factory.mktemp("sharded"), native, *given)


@pytest.fixture(scope="module")
def lora(native: RunDir, instructions: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """finetune_lora on one rank."""
    return tuned(tmp_path_factory.mktemp("lora"), native, *LORA, *instructions)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Pretraining on one rank; the compiler, which takes half a minute, leaves the model as it is."""
    with torch._dynamo.config.patch(disable=True):
        return ended(make_run(tmp_path_factory.mktemp("pretrained"), *LITGPT, *PRETRAINING))


def tuned(where: Path, native: RunDir, *overrides: str, start: Path | None = None) -> RunDir:
    """A fine-tuning by LitGPT from what the native engine started from, done."""
    start = start or Path(str(load_run(native.config).job.init_from))
    adapters = [each for each in overrides if each in LORA]
    given = [each for each in overrides if each not in LORA]
    tuning = [each for each in TUNING if not (adapters and each.startswith("job="))]
    return ended(make_run(where, *LITGPT, *adapters, *tuning, *given, f"job.init_from={start}"))


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def ended(run: RunDir) -> RunDir:
    """A run whose ranks have been brought to their end."""
    assert set(train(run)) == {0}, printed(run)
    assert events(run, "finished")
    return run


# --- the same work -------------------------------------------------------------------------------------------


def test_the_first_loss_is_the_native_engines_on_the_same_weights_and_samples(native: RunDir, full: RunDir) -> None:
    assert losses(full)[0] == pytest.approx(losses(native)[0], abs=1e-5)
    assert [row["tokens"] for row in steps(full)] == [row["tokens"] for row in steps(native)]


def test_float32_products_are_those_of_litgpts_command_unless_the_run_says_otherwise(
    native: RunDir, full: RunDir
) -> None:
    (exact,), (as_litgpt,) = (events(run, "started") for run in (native, full))
    # litgpt/__main__.py calls torch.set_float32_matmul_precision("high"); its scripts alone do not.
    assert (exact["float32_products"], as_litgpt["float32_products"]) == ("highest", "high")


def test_a_chosen_template_is_trained_on_as_litgpts_own(
    native: RunDir, full: RunDir, instructions: tuple[str, ...], tmp_path: Path
) -> None:
    chosen = tuned(tmp_path, native, *instructions, "data.prompt=alpaca")
    assert losses(chosen) == pytest.approx(losses(full), abs=1e-5)


def test_adapters_begin_as_the_weights_under_them(lora: RunDir, full: RunDir) -> None:
    assert losses(lora)[0] == pytest.approx(losses(full)[0], abs=1e-5)
    assert losses(lora)[-1] != pytest.approx(losses(full)[-1], abs=1e-4)


def test_pretraining_starts_from_the_runs_random_weights(pretrained: RunDir, tmp_path: Path) -> None:
    reference = ended(make_run(tmp_path, *LITGPT[1:], *PRETRAINING[:2], "job.steps=1"))
    assert losses(pretrained)[0] == pytest.approx(losses(reference)[0], abs=1e-5)


def test_random_weights_are_written_in_the_type_that_they_train_in_and_are_the_native_engines(tmp_path: Path) -> None:
    narrow = ("job.precision=bfloat16", "engine.parameters=bfloat16", "job.steps=1")
    with torch._dynamo.config.patch(disable=True):
        run = ended(make_run(tmp_path, *LITGPT, *PRETRAINING[:2], "engine.compile=true", *narrow))
    written = torch.load(run.path / "litgpt/start/lit_model.pth", weights_only=True)
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    reference = ended(make_run(tmp_path, "name=reference", *LITGPT[1:], *PRETRAINING[:2], *narrow))
    assert losses(run)[0] == pytest.approx(losses(reference)[0], abs=1e-2)


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
@pytest.mark.long
def test_as_a_job_of_slurm_it_has_the_losses_that_it_has_here(
    full: RunDir, instructions: tuple[str, ...], tmp_path: Path
) -> None:
    start = f"job.init_from={load_run(full.config).job.init_from}"
    there = ("cluster=generic_slurm", f"runs_dir={tmp_path}", "sweep=s", f"data.cache_dir={tmp_path}/cache")
    assert main(["submit", "--wait", *SMALL, *LITGPT, *TUNING, *instructions, start, *there]) == 0
    (run,) = SweepDir(tmp_path / "s").runs()
    assert events(run, "started")[0]["nodes"] == ["node01"]
    assert losses(run) == pytest.approx(losses(full), abs=1e-5)


def test_the_loss_of_several_ranks_is_the_mean_of_their_micro_batches_means(sharded: RunDir, full: RunDir) -> None:
    run = load_run(sharded.config)
    gpt = GPT(Config.from_file(sharded.path / "litgpt/start/model_config.yaml"))
    gpt.load_state_dict(torch.load(sharded.path / "litgpt/start/lit_model.pth", weights_only=True))
    dataset = open_dataset(samples(run, sharded))
    means = []
    for rank in range(2):
        for inputs, targets, *_ in batches_of(run, dataset, rank).step(1).micro_batches:
            labels = torch.from_numpy(targets)
            with torch.no_grad():
                means.append(whole(gpt(torch.from_numpy(inputs)), labels).item() / int((labels >= 0).sum()))
    assert len(means) == 4
    assert losses(sharded)[0] == pytest.approx(sum(means) / 4, abs=1e-5)
    assert losses(sharded)[0] != pytest.approx(losses(full)[0], abs=1e-4), "micro-batches have unequal labels here"


@pytest.mark.parametrize(("name", "micro_batches"), [long("full", 1), ("sharded", 2)])
def test_litgpt_itself_counts_the_global_batches_of_the_run(
    name: str, micro_batches: int, request: pytest.FixtureRequest
) -> None:
    directory: RunDir = request.getfixturevalue(name)
    run = load_run(directory.config)
    batches: Batches = batches_of(run, dataset := open_dataset(samples(run, directory)), rank=0)
    logged = table(directory.path / "litgpt/out/logs/csv/version_0/metrics.csv")
    counted = [int(row["tokens"]) for row in logged if row["tokens"]]
    assert len(counted) == 3 * micro_batches
    # LitGPT's counts are rank 0's, summed over micro-batches, and count the last token of a sample too.
    expected = 0
    for step in (1, 2, 3):
        expected += sum(int(dataset.lengths[sample]) + 1 for sample in batches.samples(step))
        assert counted[step * micro_batches - 1] == expected


def test_steps_beyond_an_epoch_go_on_with_the_next_ones_order(full: RunDir, native: RunDir) -> None:
    run = load_run(full.config)
    batches = batches_of(run, open_dataset(samples(run, full)), rank=0)
    assert batches.steps_per_epoch == 2, "the third step is of the second epoch"
    assert [row["padded_tokens"] for row in steps(full)] == [row["padded_tokens"] + 8 for row in steps(native)]


@pytest.mark.parametrize("overflows", [long(0), 1])
def test_float16_trains_as_float32_does_and_records_skipped_updates(
    overflows: int, full: RunDir, instructions: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = f"job.init_from={load_run(full.config).job.init_from}"
    run = make_run(tmp_path, *LITGPT, *TUNING, *instructions, start, "job.precision=bfloat16")
    # Fabric, and so our rules, have float16 on GPUs only; its plugin computes in float16 here too.
    run.config.write_text(run.config.read_text().replace("precision: bfloat16", "precision: float16"))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126 if overflows else 2.0**10)
    monkeypatch.setattr(
        _Connector, "_check_and_init_precision", lambda _: MixedPrecision("16-mixed", "cpu", scaler=scaler)
    )
    ended(run)
    assert losses(run)[:2] == pytest.approx(losses(full)[:2], abs=1e-2)
    skipped = [row[m.SKIPPED_UPDATES.name] for row in steps(run)]
    assert skipped == ([1, 2, 3] if overflows else [0, 0, 0])
    assert steps(run)[0][m.LOSS_SCALE.name] == (2.0**125 if overflows else 2.0**10)
    assert (losses(run)[2] == pytest.approx(losses(full)[2], abs=1e-2)) != bool(overflows)


# --- the record ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["full", long("sharded"), "lora", "pretrained"])
def test_the_record_is_as_complete_as_any_engines(name: str, request: pytest.FixtureRequest) -> None:
    run: RunDir = request.getfixturevalue(name)
    of_float16 = {m.LOSS_SCALE.name, m.SKIPPED_UPDATES.name}
    of_gpus = {m.MEMORY_RESERVED_PEAK.name}
    elsewhere = {m.CHECKPOINT_TIME.name, m.PROFILED.name, m.DATA_WAIT_TIME.name}
    unknown = {m.GRADIENT_NORM.name, m.EXPERT_IMBALANCE.name, m.Z_LOSS.name} | elsewhere | of_float16 | of_gpus
    assert [row["step"] for row in steps(run)] == [1, 2, 3]
    for row in steps(run):
        assert row.keys() == {metric.name for metric in m.STEP_METRICS} - unknown
    (begun,), (end,) = events(run, "started"), events(run, "finished")
    assert begun["litgpt"] == "0.5.12"
    assert begun["ranks"] == (2 if name == "sharded" else 1)
    assert [event["ways"] for event in events(run, "transport")] == ([gloo_transports()] if name == "sharded" else [])
    parts = [v for k, v in end.items() if k.endswith("_s") and k != "total_time_s" and isinstance(v, float)]
    assert sum(parts) == pytest.approx(end["total_time_s"], rel=1e-6)
    (own,) = events(run, "litgpt")
    assert float(str(own["litgpt_training_time_s"])) > sum(row["step_time_s"] for row in steps(run))


def test_a_rank_of_two_holds_half_of_the_weights(full: RunDir, sharded: RunDir) -> None:
    whole, half = (events(run, "layout")[0]["parameters_held"] for run in (full, sharded))
    assert half == pytest.approx(float(str(whole)) / 2, rel=0.05)


def test_the_rates_are_those_that_litgpts_schedules_used(full: RunDir, pretrained: RunDir) -> None:
    assert steps(full)[0]["learning_rate"] == 0, "its warm-up begins at zero"
    assert steps(full)[1]["learning_rate"] == 5e-3
    # Pretraining warms up by micro-batches: the eighth of 5 x 8, counted from 0.
    assert steps(pretrained)[0]["learning_rate"] == pytest.approx(5e-3 * 7 / 24)


@pytest.mark.parametrize("name", ["full", long("sharded"), "lora", "pretrained"])
def test_the_weights_are_a_checkpoint_directory(name: str, request: pytest.FixtureRequest) -> None:
    run: RunDir = request.getfixturevalue(name)
    check_valid_checkpoint_dir(run.export, ignore_tokenizer_files=name == "pretrained", raise_error=True)
    state = torch.load(run.export / "lit_model.pth", weights_only=True)
    before = torch.load(run.path / "litgpt/start/lit_model.pth", weights_only=True)
    state = state.get("model", state)
    GPT(Config.from_file(run.export / "model_config.yaml")).load_state_dict(state)
    changed = {key for key in before if not torch.equal(before[key], state[key])}
    assert changed == ({key for key in before if "attn.qkv" in key} if name == "lora" else before.keys())


def test_hyperparameters_state_what_was_asked_for(full: RunDir) -> None:
    asked = yaml.safe_load((full.export / "hyperparameters.yaml").read_text())
    assert asked["train"]["global_batch_size"] == 8
    assert asked["train"]["max_seq_length"] == 256
    assert asked["optimizer"]["init_args"]["betas"] == [0.9, 0.95]


def test_a_report_has_it_beside_the_native_engine(native: RunDir, full: RunDir, tmp_path: Path) -> None:
    report([native.path, full.path], tmp_path / "out")
    assert sorted(row["engine"] for row in table(tmp_path / "out/runs.csv")) == ["litgpt", "native"]
    assert len(read([full.path]).runs) == 1, "what LitGPT printed and logged is not another run"


# --- ends ----------------------------------------------------------------------------------------------------


def test_a_signal_to_all_processes_ends_it_at_a_step_as_stopped(
    native: RunDir, instructions: tuple[str, ...], tmp_path: Path
) -> None:
    start = f"job.init_from={load_run(native.config).job.init_from}"
    run = make_run(tmp_path, *LITGPT, *TUNING, *instructions, *SHARDED, start, "job.steps=100000",
                   "job.micro_batch_size=2")  # fmt: skip
    process = get_context("fork").Process(target=train, args=(run,))
    process.start()
    wait_until(lambda: len(steps(run)) > 2, by=process)
    # As Slurm does: the ranks and the processes that load for them.
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGTERM)
    process.join(limit_s(180))
    (end,) = events(run, "stopped")
    assert end["step"] == steps(run)[-1]["step"]
    assert not events(run, "failed")
    assert not run.export.exists()


def test_a_checkpoint_of_another_model_is_refused_before_litgpt_reads_it(native: RunDir, tmp_path: Path) -> None:
    start = load_run(native.config).job.init_from
    run = make_run(tmp_path, *LITGPT, *PRETRAINING, "model.layers=3", f"job.init_from={start}")
    assert train(run) == [1]
    assert "it belongs to another model" in str(events(run, "failed")[0]["error"])


# --- what is asked of LitGPT, and what is not ----------------------------------------------------------------

ALPACA_DATA = ("data=alpaca", "data.path=a.json", "data.held_out_samples=4")
GOOD_FULL = ("job=finetune_full", *ALPACA_DATA, "job.clip_norm=null", "ranks_per_node=1")
GOOD_TEXT = ("data=random", "data.held_out_samples=4", "engine.compile=true", "ranks_per_node=1")
TWO = ("ranks_per_node=2", "parallelism=fsdp_full", "engine.activation_checkpointing=full")


def test_a_tokenizer_without_its_configuration_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    data = write_json(tmp_path / "alpaca.json", ALPACA * 5)
    tokenizer = sentencepiece_tokenizer(tmp_path / "tokenizer")
    overrides = [*GOOD_FULL, f"data.path={data}", f"data.tokenizer={tokenizer}", f"data.cache_dir={tmp_path}/cache"]
    with pytest.raises(DataError, match=r"needs a tokenizer_config\.json next to the tokenizer"):
        prepare_samples([compose(["engine=litgpt", *overrides], multirun=False)[0].run])


@pytest.mark.parametrize(
    ("overrides", "script", "words"),
    [
        ((*GOOD_FULL, *TWO), "litgpt finetune_full", "8 / (2 x 1) / 1 = 4 micro-batches per rank"),
        ((*GOOD_FULL, "job=finetune_lora"), "litgpt finetune_lora", "--lora_r=32"),
        ((*GOOD_FULL, "engine.parameters=bfloat16"), "litgpt finetune_full", "--precision=bf16-true"),
        ((*GOOD_TEXT,), "litgpt pretrain tiny", "--train.max_norm=1.0"),
    ],
    ids=["full", "lora", "bf16-true", "pretrain"],
)
def test_the_plan_shows_what_will_be_called(
    overrides: tuple[str, ...], script: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(["engine=litgpt", *overrides], multirun=False) == 0
    shown = capsys.readouterr().out
    assert script in shown
    assert words in shown
    assert "litgpt 0.5.12 is called as" in shown
    assert "counts the samples of a step over all devices and nodes" in shown
