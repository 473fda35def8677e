"""A run that diverges ends at once as such, on all ranks, with its last finite checkpoint; nothing of it is used."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from analysis.report.report import report
from jobs.engines.native import loss_scale
from jobs.engines.native import trainer as native
from jobs.errors import RunDirError
from jobs.failure_causes import FailureCause, recorded_cause
from jobs.rundir import RunDir, SweepDir, read_records
from jobs.runtime.divergence import DivergedError, are_finite
from jobs.runtime.learning_rate import learning_rate
from jobs.schema import Job
from jobs.stages.evaluate import refuse_unfinished
from jobs.submit.commands import divergence_warning, resume, submit
from jobs.submit.requeue import planned_restart
from jobs.submit.states import states
from jobs.submit.sweeps.submissions import submission_by_hand
from jobs.work.images import trainer as image_trainer
from jobs.work.train import loop
from tests.support.cli import printed_words
from tests.support.real_run import SMALL, events, make_run, printed, steps, train
from tests.support.required import skip_or_fail
from tests.support.training import DEEP, long

EVERY_STEP = ("job.checkpoint_every_steps=1", "job.keep_checkpoints=2", "job.export=true")
SINGLE = ("parallelism=single", "ranks_per_node=1")
# The first update makes weights of a thousand, and the next step overflows.
HOT = ("job.steps=8", "job.learning_rate=1000", "job.min_learning_rate=1000", "job.warmup_steps=0")
FLOAT16 = (*SINGLE, "job.precision=float16")


def diverged(run: RunDir) -> int:
    """Train a run that must diverge; return the step at which all its ranks say that it did."""
    codes = train(run)
    assert set(codes) == {1}, printed(run)
    failures = events(run, "failed")
    assert len(failures) == len(codes)
    (step,) = {event["step"] for event in failures}
    assert isinstance(step, int)
    for event in failures:
        assert recorded_cause(event) is FailureCause.diverged
        assert str(event["error"]).startswith(f"diverged at step {step}: ")
    assert not events(run, "finished")
    assert not run.export.exists()
    return step


def checkpoints(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def spoil(monkeypatch: pytest.MonkeyPatch, at: int, change: Callable[[float, float], tuple[Any, Any]]) -> None:
    """Change the loss and the norm that the native engine returns for a step."""
    honest = native.Trainer.step

    def step(self: native.Trainer, number: int, batch: Any) -> tuple[float, float | None, float]:
        loss, norm, rate = honest(self, number, batch)
        assert norm is not None
        return (*change(loss, norm), rate) if number == at else (loss, norm, rate)

    monkeypatch.setattr(native.Trainer, "step", step)


@pytest.mark.parametrize(
    "layout",
    [
        SINGLE,
        (*SINGLE, "job.clip_norm=null"),
        (*SINGLE, "job.precision=bfloat16"),
        (*SINGLE, "engine.activation_checkpointing=full"),
        (*SINGLE, "job=finetune_lora", "job.epochs=null", "job.lora.rank=4", "job.precision=float32", "data=random"),
        ("parallelism=tp", "ranks_per_node=2"),
        ("parallelism=pp", "ranks_per_node=2", *DEEP),
        long(("parallelism=ddp", "ranks_per_node=2")),
        ("parallelism=fsdp_full", "ranks_per_node=2", "job.checkpoint_in_background=false"),
        long(("parallelism=fsdp_hybrid", "nodes=2", "ranks_per_node=2")),
    ],
    ids=" ".join,
)
def test_a_learning_rate_far_too_high_ends_as_diverged_and_leaves_the_checkpoint_before_it(
    layout: tuple[str, ...], tmp_path: Path
) -> None:
    run = make_run(tmp_path, *layout, *HOT, *EVERY_STEP)
    step = diverged(run)
    assert 1 < step < 8
    assert checkpoints(run)[-1] == f"step-{step - 1:08d}"
    assert [event["step"] for event in events(run, "checkpoint")][-1] == step - 1, "also one still being written"
    assert [row["step"] for row in steps(run)] == list(range(1, step))
    for row in read_records(run.metrics):
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


@pytest.mark.parametrize(
    ("loss", "norm"),
    [(math.nan, 1.0), (math.inf, 1.0), (-math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), (math.nan, math.nan)],
)
def test_a_step_whose_loss_or_norm_is_not_finite_is_the_last_one_and_is_named(
    loss: float, norm: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 4, lambda _loss, _norm: (loss, norm))
    run = make_run(tmp_path, *SINGLE, *EVERY_STEP)
    assert diverged(run) == 4
    assert checkpoints(run) == ["step-00000002", "step-00000003"]
    error = str(events(run, "failed")[0]["error"])
    assert (f"the loss is {loss}" in error) == (not math.isfinite(loss))
    assert (f"the gradient norm is {norm}" in error) == (not math.isfinite(norm))
    assert "job.learning_rate" in error


def test_one_rank_with_a_norm_that_is_not_finite_ends_all_ranks_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 3, lambda loss, norm: (loss, math.inf if os.environ["RANK"] == "1" else norm))
    run = make_run(tmp_path, "parallelism=tp", "ranks_per_node=2", *EVERY_STEP)
    assert diverged(run) == 3
    assert {str(event["error"]).partition(". ")[0] for event in events(run, "failed")} == {
        "diverged at step 3: the gradient norm is inf",
        "diverged at step 3: the gradient norm of another rank is not finite",
    }


def infinite_at(bad: int) -> Callable[[Job, int, int], float]:
    return lambda job, step, steps: math.inf if step == bad else learning_rate(job, step, steps)


@pytest.mark.parametrize("further", [EVERY_STEP, ("job.export=true",), ("job.checkpoint_every_steps=4",)])
def test_weights_that_an_update_made_infinite_are_neither_saved_nor_exported(
    further: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "learning_rate", infinite_at(4))
    run = make_run(tmp_path, *SINGLE, "job.steps=4", *further)
    assert diverged(run) == 4, "loss and norm of the last step are finite"
    assert "a weight is not finite after the update" in str(events(run, "failed")[0]["error"])
    assert not (run.checkpoints / "step-00000004").exists()


def test_a_checkpoint_with_weights_that_are_not_finite_is_not_continued_from(tmp_path: Path) -> None:
    run = make_run(tmp_path, *SINGLE, *EVERY_STEP)
    with pytest.MonkeyPatch.context() as patch:
        # As a release without the check wrote them.
        patch.setattr(loop, "refuse_not_finite", lambda *_: None)
        patch.setattr(native, "learning_rate", infinite_at(6))
        assert train(run) == [0], printed(run)
    assert checkpoints(run) == ["step-00000005", "step-00000006"]
    assert train(run) == [0], printed(run)
    assert events(run, "started")[-1]["from_step"] == 5
    (event,) = events(run, "checkpoint_unreadable")
    assert event["checkpoint"] == "step-00000006"
    assert "contains a weight that is not finite" in str(event["error"])


@pytest.mark.parametrize(
    ("value", "finite"),
    [
        (torch.tensor([1.0, math.nan]), False),
        (torch.tensor([[1.0, 2.0], [-math.inf, 0.0]]), False),
        (torch.full((5,), math.inf, dtype=torch.bfloat16), False),
        (torch.tensor([6e4, 6e4], dtype=torch.float16), True),
        (torch.full((3,), 3e38), True),
        (torch.full((3,), 1e300, dtype=torch.float64), True),
        (torch.tensor([3]), True),
        (torch.empty(0), True),
        (torch.empty(0, 7), True),
    ],
    ids=str,
)
def test_weights_are_finite_if_no_value_is_infinite_or_nan(value: torch.Tensor, finite: bool) -> None:
    assert are_finite([torch.ones(3), value]) == finite


# --- float16 -------------------------------------------------------------------------------------------------


def test_an_overflow_of_the_loss_scale_is_skipped_and_a_scale_that_ran_out_is_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scale, "FIRST_SCALE", 2.0**2)
    honest, infinite = native.clip, itertools.cycle([False, True])
    monkeypatch.setattr(native, "clip", lambda *given: honest(*given) * (math.inf if next(infinite) else 1))
    run = make_run(tmp_path, *FLOAT16, *EVERY_STEP)
    assert diverged(run) == 6
    assert [row["loss_scale"] for row in steps(run)] == [4, 2, 2, 1, 1]
    assert [row["skipped_updates"] for row in steps(run)] == [0, 1, 1, 2, 2]
    assert ["gradient_norm" in row for row in steps(run)] == [True, False, True, False, True]


def test_a_loss_of_nan_ends_a_float16_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 2, lambda _loss, _norm: (math.nan, None))
    assert diverged(make_run(tmp_path, *FLOAT16)) == 2


# --- other engines and kinds of work -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deepspeed() -> None:
    """DeepSpeed, imported once for all forked ranks."""
    if find_spec("deepspeed") is None:
        skip_or_fail("this Python has no DeepSpeed: pip install --editable '.[deepspeed]'")
    os.environ["DS_ACCELERATOR"] = "cpu"
    import jobs.engines.deepspeed.trainer  # noqa: F401


@pytest.mark.parametrize(
    "layout",
    [
        ("parallelism=single", "ranks_per_node=1"),
        long(("parallelism=zero1", "ranks_per_node=2", "job.precision=bfloat16")),
        ("parallelism=zero2", "ranks_per_node=2", "job.precision=bfloat16"),
        long(("parallelism=zero3", "ranks_per_node=2")),
    ],
    ids=" ".join,
)
def test_deepspeed_ends_as_diverged_too(layout: tuple[str, ...], deepspeed: None, tmp_path: Path) -> None:
    run = make_run(tmp_path, "engine=deepspeed", *layout, *HOT, *EVERY_STEP)
    step = diverged(run)
    assert checkpoints(run)[-1] == f"step-{step - 1:08d}"


def test_a_loss_scale_of_deepspeed_that_ran_out_is_divergence() -> None:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    from jobs.engines.deepspeed.trainer import Trainer

    scaler = DynamicLossScaler(1.0, 1000, min_scale=1.0, delayed_shift=1, consecutive_hysteresis=False)
    # DeepSpeed computes in float16 on GPUs only: its scaler is the real one, and the step overflows.
    trainer = Trainer.__new__(Trainer)
    trainer.engine = SimpleNamespace(step=lambda: scaler.update_scale(True))
    with pytest.raises(DivergedError, match="diverged at step 7: the gradients overflow at every loss scale down to 1"):
        trainer.update(7)


SMALL_IMAGES = (
    "job=image_train", "images.network=resnet14", "images.count=16", "images.shards=2", "images.mean_kb=3",
    "images.size=32", "images.workers=0", "images.shuffle=4", "images.classes=5", "job.steps=5",
    "job.micro_batch_size=4", "job.unmeasured_steps=2", "job.checkpoint_every_steps=1",
)  # fmt: skip


@pytest.mark.parametrize("ranks", [1, long(2)])
def test_training_on_images_ends_as_diverged_too(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        image_trainer, "learning_rate", lambda job, step, of: 1e30 if step == 3 else learning_rate(job, step, of)
    )
    run = make_run(tmp_path, *SMALL_IMAGES, f"ranks_per_node={ranks}", small=False)
    step = diverged(run)
    assert step in {3, 4}
    assert checkpoints(run)[-1] == f"step-{step - 1:08d}"


LITGPT = ("engine=litgpt", *SINGLE, "engine.compile=true", "job.clip_norm=1.0", "data.held_out_samples=4",
          "data.max_samples=20", "job.export=true")  # fmt: skip


@pytest.mark.parametrize(
    ("at", "loss", "what"),
    [(2, math.nan, "the loss is nan"), (2, 1.0, "the gradient norm"), long(3, 1.0, "the gradient norm")],
)
def test_litgpts_loop_ends_as_diverged_too(
    at: int, loss: float, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.engines.litgpt.record import Record

    honest = Record.backward

    def backward(self: Record, tensor: torch.Tensor) -> None:
        if self.recorder.last_step + 1 == at:
            tensor.data.mul_(loss)
            tensor.register_hook(lambda gradient: gradient * math.nan)
        honest(self, tensor)

    monkeypatch.setattr(Record, "backward", backward)
    run = make_run(tmp_path, *LITGPT, "job.steps=3")
    with torch._dynamo.config.patch(disable=True):
        assert diverged(run) == at
    assert what in str(events(run, "failed")[0]["error"])


@pytest.mark.long
def test_weights_of_litgpt_that_are_not_finite_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobs.engines.litgpt.record import Record

    honest = Record.on_after_optimizer_step

    def spoiled(self: Record, optimizer: torch.optim.Optimizer, **strategy: object) -> None:
        if self.recorder.last_step == 2:
            optimizer.param_groups[0]["params"][-1].data[0] = math.inf
        honest(self, optimizer, **strategy)

    monkeypatch.setattr(Record, "on_after_optimizer_step", spoiled)
    run = make_run(tmp_path, *LITGPT, "job.steps=3")
    with torch._dynamo.config.patch(disable=True):
        assert diverged(run) == 3
    assert "a weight is not finite" in str(events(run, "failed")[0]["error"])


# --- after it ------------------------------------------------------------------------------------------------


def test_a_diverged_run_is_shown_as_such_and_not_restarted_or_evaluated(tmp_path: Path) -> None:
    run = make_run(tmp_path, *SINGLE, *HOT, *EVERY_STEP, "launcher.requeues=3")
    assert diverged(run) == 2
    sweep = SweepDir(run.path.parent)
    (state,) = states(sweep)
    assert state.state.value == "failed"
    assert "diverged at step 2: the gradient norm is nan" in state.detail
    submission = submission_by_hand(run)
    assert submission is not None
    assert planned_restart(run, submission, sweep) is None
    with pytest.raises(RunDirError, match="diverged at step 2"):
        refuse_unfinished(run)
    warning = divergence_warning([run, make_run(tmp_path, *SINGLE, "name=other")])
    assert warning is not None
    assert warning.startswith(f"Diverged: {run.name} (step 2). A resumed run continues from its last checkpoint")


@pytest.mark.slow
@pytest.mark.long
def test_resuming_a_diverged_run_warns_and_continues_from_its_last_finite_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*SMALL, *SINGLE, *HOT, *EVERY_STEP, f"runs_dir={tmp_path}", "sweep=test", f"data.cache_dir={tmp_path}/c",
             "launcher=local", "launcher.requeues=3", "stages=all", "stages.report=null", "data.held_out_samples=4",
             "stages.evaluate.cpus=1"]  # fmt: skip
    assert submit(given, multirun=False, wait=True) == 1
    assert re.search(r"failed rank 0 on \S+: diverged at step 2: the gradient norm is nan\.", printed_words(capsys))
    sweep = SweepDir(tmp_path / "test")
    run = sweep.run("tiny-single-n1x1")
    assert len(events(run, "started")) == 1
    assert not events(run, "evaluated")
    assert not run.export.exists()
    report([sweep.path], tmp_path / "report")
    page = (tmp_path / "report/report.md").read_text()
    assert "| diverged | failures/: failed, cause diverged" in page.partition("## Runs not used")[2]
    capsys.readouterr()
    assert resume(sweep.path, launcher=None, wait=True) == 1
    assert f"Diverged: {run.name} (step 2). A resumed run continues" in printed_words(capsys)
    assert [event["from_step"] for event in events(run, "started")] == [0, 1]
    assert checkpoints(run) == ["step-00000001"]
