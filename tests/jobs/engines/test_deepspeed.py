"""The DeepSpeed engine: ZeRO computes what the native engine does, resumes, and refuses the rest.

The runs are DeepSpeed's own on CPUs with gloo; they prove arithmetic, not its speed on GPUs.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from litgpt.config import Config
from litgpt.model import GPT

from analysis.report.report import report
from jobs import metrics as m
from jobs.engines.deepspeed.configuration import configuration
from jobs.layout import accumulation, layout_of
from jobs.parallelism import DP_SHARD
from jobs.rundir import RunDir
from jobs.submit.commands import submit
from tests.support.composing import one
from tests.support.real_run import evaluate, events, losses, make_run, printed, steps, train
from tests.support.required import skip_or_fail
from tests.support.tiny_data import ALPACA, huggingface_tokenizer, tokenizer_config, write_json
from tests.support.training import assert_equal, interrupted, long, small_disk

# Whole rows would hide a loss that is not the mean over labels: two micro-batches a rank, of samples of all lengths,
# whose prompts are tokens without a label.
UNEVEN = ("job.sequence_length=256", "model.max_sequence_length=256", "data.held_out_samples=4",
          "data.too_long=truncate", "data.max_samples=null", "data.mask_prompt=true", "job.micro_batch_size=2",
          "ranks_per_node=2")  # fmt: skip
DEEPSPEED = ("engine=deepspeed", "ranks_per_node=2", "job.micro_batch_size=2")
# No parameter of the small model is whole on every rank then.
SPLIT = ("parallelism=zero3", "engine.deepspeed.stage3_param_persistence_threshold=0")
EVALUATED = ("stages=all", "stages.prepare=null", "stages.report=null", "stages.evaluate.cpus=1", "job.export=true")
OFFLOAD = "engine.deepspeed.offload_optimizer=cpu"


@pytest.fixture(scope="module")
def installed() -> None:
    """DeepSpeed, imported once for all forked ranks."""
    if find_spec("deepspeed") is None:
        skip_or_fail("this Python has no DeepSpeed: pip install --editable '.[deepspeed]'")
    os.environ["DS_ACCELERATOR"] = "cpu"
    import jobs.engines.deepspeed.trainer  # noqa: F401


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides for records of uneven length."""
    where = tmp_path_factory.mktemp("instructions")
    data = write_json(where / "alpaca.json", ALPACA * 5)
    tokenizer = tokenizer_config(huggingface_tokenizer(where / "tokenizer"), eos_token="</s>")
    return (*UNEVEN, "data=alpaca", f"data.path={data}", f"data.tokenizer={tokenizer}")


@pytest.fixture(scope="module")
def native(instructions: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The native engine's steps on these records."""
    return steps(ended(make_run(tmp_path_factory.mktemp("native"), "parallelism=ddp", *instructions)))


@pytest.fixture(scope="module")
def whole(installed: None, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run at stage 3 that nothing disturbed."""
    more = ("job.checkpoint_every_steps=3", "job.export=true")
    return ended(make_run(tmp_path_factory.mktemp("whole"), *DEEPSPEED, *SPLIT, *more))


def ended(run: RunDir) -> RunDir:
    """A run whose ranks have been brought to their end."""
    assert set(train(run)) == {0}, printed(run)
    assert events(run, "finished")
    return run


# --- the same arithmetic -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "choices",
    [
        long(("parallelism=ddp",)),
        long(("parallelism=single", "ranks_per_node=1")),
        long(("parallelism=zero1",)),
        long(("parallelism=zero2", OFFLOAD, "job.clip_norm=null")),
        long(("parallelism=zero2", "engine.deepspeed.round_robin_gradients=true")),
        (*SPLIT, "engine.activation_checkpointing=full"),
        long((*SPLIT, OFFLOAD, "engine.deepspeed.offload_param=cpu")),
        long((*SPLIT, "engine.activation_checkpointing=selective", "nodes=2", "ranks_per_node=1")),
    ],
    ids=" ".join,
)
def test_losses_and_gradients_equal_the_native_engines(
    choices: tuple[str, ...],
    instructions: tuple[str, ...],
    native: list[dict[str, float]],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if free := [choice for choice in choices if choice.startswith("job.clip_norm")]:
        native = steps(ended(make_run(tmp_path / "native", "parallelism=ddp", *instructions, *free)))
    run = ended(make_run(tmp_path, "engine=deepspeed", *instructions, *choices))
    assert_equal(steps(run), native)
    assert [row["learning_rate"] for row in steps(run)] == [row["learning_rate"] for row in native]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("stage", [long("zero1"), long("zero2"), "zero3"])
def test_bfloat16_is_as_near_to_float32_as_its_digits_allow(
    stage: str, instructions: tuple[str, ...], native: list[dict[str, float]], tmp_path: Path
) -> None:
    run = ended(
        make_run(tmp_path, *DEEPSPEED, *instructions, f"parallelism={stage}", "job.precision=bfloat16", *EVALUATED)
    )
    assert losses(run) == pytest.approx([row["loss"] for row in native], abs=5e-3)
    assert losses(run) != [row["loss"] for row in native]
    assert evaluate(run) == 0, printed(run)
    assert float(str(events(run, "evaluated")[0][m.EVALUATION_LOSS.name])) < losses(run)[0]


@pytest.mark.long
@pytest.mark.slow
def test_a_rank_of_two_holds_half_of_the_weights(whole: RunDir) -> None:
    weights = sum(weight.numel() for weight in state(whole).values())
    (layout,) = events(whole, "layout")
    assert layout["parameters_held"] == weights / 2
    assert {entry["collective"] for entry in layout["collectives"]} >= {"all_gather", "reduce_scatter"}  # type: ignore[attr-defined]


# --- record and checkpoints ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_the_record_is_as_complete_as_any_engines_and_reported_beside_them(whole: RunDir, tmp_path: Path) -> None:
    elsewhere = {
        m.LOSS_SCALE.name,
        m.SKIPPED_UPDATES.name,
        m.MEMORY_RESERVED_PEAK.name,
        m.PROFILED.name,
        m.DATA_WAIT_TIME.name,
        m.EXPERT_IMBALANCE.name,
        m.Z_LOSS.name,
    }
    for row in steps(whole):
        saved = {m.CHECKPOINT_TIME.name} if row["step"] % 3 else set()
        assert row.keys() == {metric.name for metric in m.STEP_METRICS} - elsewhere - saved
    assert [event["step"] for event in events(whole, "checkpoint")] == [3, 6]
    report([whole.path], tmp_path / "out")
    assert ",deepspeed," in (tmp_path / "out/runs.csv").read_text()


@pytest.mark.long
@pytest.mark.slow
def test_the_export_is_where_both_engines_go_on_from(whole: RunDir, tmp_path: Path) -> None:
    GPT(Config.from_file(whole.export / "model_config.yaml")).load_state_dict(state(whole))
    on = (f"job.init_from={whole.export}", "ranks_per_node=2", "job.micro_batch_size=2", "job.steps=2")
    theirs = ended(make_run(tmp_path / "native", "parallelism=ddp", *on))
    narrow = "engine.deepspeed.gather_16bit_weights_on_model_save=true"
    ours = ended(make_run(tmp_path, *DEEPSPEED, *SPLIT, *on, "job.export=true", narrow))
    assert losses(ours) == pytest.approx(losses(theirs), abs=1e-5)
    assert losses(ours)[0] < losses(whole)[0]
    assert state(ours).keys() == state(whole).keys()


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "choices",
    [
        long(SPLIT),
        long(("parallelism=zero2", "job.precision=bfloat16")),
        long(("parallelism=ddp",)),
        long(("parallelism=zero1",)),
        long((*SPLIT, "job.precision=bfloat16", OFFLOAD)),
    ],
    ids=" ".join,
)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(choices: tuple[str, ...], tmp_path: Path) -> None:
    run = interrupted(tmp_path, *DEEPSPEED, *choices)
    undisturbed = RunDir(tmp_path / "undisturbed")
    shutil.copytree(run.path, undisturbed.path)
    before = [event["step"] for event in events(run, "checkpoint")]
    ended(run)
    assert before == [3, 6]
    assert events(run, "started")[-1]["from_step"] == 3
    first = [row for row in (undisturbed.path / "rank0.log").read_text().splitlines() if row.startswith("step 6/6")]
    again = [row for row in printed(run).splitlines() if row.startswith("step 6/6")]
    assert first[0].split()[:4] == again[-1].split()[:4]


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    every = ("job.steps=3", "job.checkpoint_every_steps=1", "job.keep_checkpoints=2")
    run = ended(make_run(tmp_path, "engine=deepspeed", "parallelism=single", "ranks_per_node=1", *every))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.slow
@pytest.mark.long
def test_a_checkpoint_cut_short_is_put_aside_and_the_one_before_it_is_used(whole: RunDir, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "cut")
    shutil.copytree(whole.path, run.path)
    file = next((run.checkpoints / "step-00000006").glob("*/*_rank_1_*optim_states.pt"))
    os.truncate(file, file.stat().st_size // 2)
    ended(run)
    assert events(run, "started")[-1]["from_step"] == 3
    assert losses(run) == pytest.approx(losses(whole), abs=1e-6)
    assert (run.checkpoints / ".step-00000006.unreadable").is_dir()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_full_costs_a_checkpoint_and_not_the_run(whole: RunDir, tmp_path: Path) -> None:
    made = make_run(tmp_path, *DEEPSPEED, *SPLIT, "job.checkpoint_every_steps=3")
    run = RunDir(tmp_path / "test/full")
    size: Any = events(whole, "checkpoint")[0]["checkpoint_size_bytes"]
    with small_disk(run.checkpoints, 1.5 * size):
        shutil.copy(made.config, run.config)
        ended(run)
        assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000003"]
    assert losses(run) == pytest.approx(losses(whole), abs=1e-6)
    (failed,) = events(run, "checkpoint_failed")
    assert "No space left on device" in str(failed["error"])


def state(run: RunDir) -> dict[str, torch.Tensor]:
    """The weights of an export."""
    found: dict[str, torch.Tensor] = torch.load(run.export / "lit_model.pth", weights_only=True)
    return found


# --- the plan ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("model", ["8b", "70b"])
def test_the_published_runs_compose_at_full_size_and_can_be_looked_at(
    model: str, nodes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = [f"experiment=llama31_{model}_deepspeed", f"nodes={nodes}", f"data.path={tmp_path}/pqa.json"]
    run = one(*experiment).run
    assert (layout_of(run).degree(DP_SHARD), accumulation(run)) == (8 * nodes, 1)
    looked = [*experiment, "launcher=dry", f"runs_dir={tmp_path}", "cluster.account=mine"]
    assert submit(looked, multirun=False, wait=False) == 0
    assert f"#SBATCH --nodes={nodes}" in capsys.readouterr().out


def test_the_documents_configurations_are_those_that_deepspeed_gets() -> None:
    """ds_8b.json and ds_70b.json, whose "auto" are what transformers fills in: hidden^2, 0.9 hidden^2, 10 hidden."""
    small, large = (
        configuration(one(f"experiment=llama31_{model}_deepspeed", "data.path=pqa.json").run) for model in ("8b", "70b")
    )
    assert small["zero_optimization"].items() >= {
        "stage": 3, "allgather_partitions": True, "allgather_bucket_size": 2e8, "overlap_comm": True,
        "reduce_scatter": True, "reduce_bucket_size": 2e8, "contiguous_gradients": True,
    }.items()  # fmt: skip
    assert large["zero_optimization"].items() >= {
        "stage": 3, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": 8192**2,
        "stage3_prefetch_bucket_size": int(0.9 * 8192**2), "stage3_param_persistence_threshold": 81920,
        "stage3_gather_16bit_weights_on_model_save": True, "round_robin_gradients": True,
    }.items()  # fmt: skip
    for given in (small, large):
        assert given["bf16"] == {"enabled": True}
        assert given["gradient_clipping"] == 1.0
