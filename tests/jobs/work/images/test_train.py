"""Training on images with real ranks, real shards and real decoding: its record and report, and what is refused."""

from __future__ import annotations

import copy
import io
import math
import os
import re
import secrets
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from analysis.load.run_directory import read_run
from analysis.parsers import log_metrics as a
from analysis.report.report import report
from jobs import metrics as m
from jobs.cli import main
from jobs.engines.native.loss_scale import LossScale
from jobs.errors import DataError
from jobs.rundir import RunDir, SweepDir
from jobs.runtime.learning_rate import learning_rate
from jobs.settings.images import ImageDecoder, ImageNetwork
from jobs.work.images.decoding import Batch, decoded, opened
from jobs.work.images.jpegs import Jpegs
from jobs.work.images.loader import StepImages
from jobs.work.images.make import make_images
from jobs.work.images.network import parameters
from jobs.work.images.resnet import ResNet
from jobs.work.images.trainer import Trainer
from jobs.work.storage.samples import add_sample
from tests.support.cli import printed_words
from tests.support.composing import one
from tests.support.real_run import FORK, events, make_run, printed, rank, steps, train
from tests.support.required import need_dali
from tests.support.waiting import wait_until

SMALL_IMAGES = (
    "job=image_train", "images.network=resnet14", "images.count=32", "images.shards=4", "images.mean_kb=3",
    "images.size=32", "images.workers=1", "images.shuffle=4", "images.classes=5", "job.steps=5",
    "job.micro_batch_size=4", "job.unmeasured_steps=2",
)  # fmt: skip


@pytest.mark.slow
def test_two_ranks_train_on_images_and_the_report_has_their_rate(tmp_path: Path) -> None:
    # Two images for a rank and one for the other: no worker waits for another in the middle.
    make_images(tmp_path / "held out", count=3, shards=2, mean_kb=3, classes=5, seed=2)
    run = make_run(
        tmp_path, *SMALL_IMAGES, "ranks_per_node=2", "images.storage=scratch", "job.checkpoint_every_steps=5",
        f"images.validation_path={tmp_path}/held out", "images.validate_every_steps=2", small=False,
    )  # fmt: skip
    assert train(run) == [0, 0], printed(run)
    validated = events(run, "evaluated")
    assert [(event["step"], event["evaluation_samples"]) for event in validated] == [(2, 3), (4, 3), (5, 3)]
    assert not run.images.exists(), "images that the run made are removed"
    for row in steps(run):
        assert row["samples"] == 8
        assert "tokens" not in row
        assert 0 <= row["data_wait_time_s"] <= row["step_time_s"]
    run.plan.write_text('{"global_batch_size": 8}')
    found = read_run(run.path)
    assert found.reason is None
    assert found.values[a.SAMPLES_PER_S_PER_RANK] == found.values[a.SAMPLES_PER_S] / 2 > 0
    assert m.TOKENS_PER_S not in found.values
    assert 0 < found.values[m.DATA_WAIT_SHARE] < 1
    assert found.values[m.CHECKPOINT_SIZE] > 0
    assert found.values[m.EVALUATION_TOP1] * 3 in {0, 1, 2, 3}
    assert found.values[m.EVALUATION_TOP5] == 1, "there are five classes"
    report([tmp_path / "test"], tmp_path / "report")
    table = (tmp_path / "report/report.md").read_text().partition("## Images")[2].partition("\n## ")[0]
    assert re.search(r"CPU.*: resnet14-ddp-n1x2 +\| scratch +\| pillow +\| 1 +\| 2 ", table)
    assert "Waiting for data (%)" in table
    assert "Top-1 accuracy (%)" in table
    assert "evaluation_top5" in (tmp_path / "report/runs.csv").read_text().partition("\n")[0]


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trainer_of(*overrides: str) -> Trainer:
    """Return the trainer of a run on one rank, without its images."""
    run = one(*SMALL_IMAGES, "ranks_per_node=1", "job.weight_decay=0.5", "job.warmup_steps=0", *overrides).run
    return Trainer(run, torch.device("cpu"), cast(Jpegs, SimpleNamespace(steps=5)), lambda _part: None)


def image_batch(*sizes: int) -> list[Batch]:
    """Return micro-batches of random images of five classes."""
    return [Batch(torch.randint(256, (n, 32, 32, 3), dtype=torch.uint8), torch.randint(5, (n,))) for n in sizes]


def plain_update(
    trainer: Trainer, model: ResNet, optimizer: torch.optim.SGD, batch: list[Batch]
) -> tuple[float, float]:
    """Update a model by plain PyTorch with the gradient of the mean over the batch; return loss and norm."""
    optimizer.zero_grad()
    # Normalization is over a micro-batch, so they pass one after another.
    logits = torch.cat([model(trainer.normalised(pixels)) for pixels, *_ in batch])
    smoothing = trainer.images.label_smoothing
    loss = nn.functional.cross_entropy(logits, torch.cat([each[1] for each in batch]), label_smoothing=smoothing)
    loss.backward()
    limit = math.inf if trainer.run.job.clip_norm is None else trainer.run.job.clip_norm
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return loss.item(), norm.item()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("clip_norm", ["null", "1e6", "0.05"])
def test_a_step_computes_what_plain_pytorch_does(clip_norm: str, scale: float) -> None:
    trainer = trainer_of(f"job.clip_norm={clip_norm}")
    if scale != 1:  # as of float16, in whose arithmetic nothing could be compared closely
        trainer.loss_scale = LossScale()
        trainer.loss_scale.state[0] = scale
    model = copy.deepcopy(trainer.network)
    weights = list(model.parameters())
    groups = [{"params": [each for each in weights if each.ndim > 1], "weight_decay": 0.5},
              {"params": [each for each in weights if each.ndim == 1], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=trainer.images.momentum)
    for number in (1, 2, 3):
        batch = image_batch(4, 4)
        loss, norm, rate = trainer.step(number, StepImages(samples=8, micro_batches=batch))
        assert rate == learning_rate(trainer.run.job, number, 5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        expected_loss, expected_norm = plain_update(trainer, model, optimizer, batch)
        assert loss == pytest.approx(expected_loss, rel=1e-4)
        assert norm == pytest.approx(expected_norm, rel=1e-3)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trainer.network.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.usefixtures("alone")
def test_validation_uses_the_running_means_and_leaves_them_and_training_goes_on() -> None:
    trainer, batch = trainer_of(), image_batch(3, 1)
    trainer.step(1, StepImages(samples=8, micro_batches=image_batch(4, 4)))
    before = copy.deepcopy(trainer.network)
    values = trainer.loss_and_accuracy(batch)
    model = copy.deepcopy(before).eval()
    with torch.no_grad():
        logits = torch.cat([model(trainer.normalised(pixels)) for pixels, *_ in batch])
    expected = nn.functional.cross_entropy(logits, torch.cat([each[1] for each in batch]))
    assert values[m.EVALUATION_LOSS] == pytest.approx(expected.item(), rel=1e-4), "the mean over images"
    torch.testing.assert_close(trainer.network.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert trainer.network.training


@pytest.mark.long
@pytest.mark.parametrize("further", [["job.precision=bfloat16", "images.workers=0"],
                                     ["job.precision=float16", "images.channels_last=false"]])  # fmt: skip
def test_16_bits_accumulation_and_restarts_train_as_well(tmp_path: Path, further: list[str]) -> None:
    """The loss of one image a class, seen again and again, falls; a second start continues with the checkpoint."""
    make_images(tmp_path / "images", count=8, shards=2, mean_kb=3, classes=5, seed=1, kind="recordio")
    run = make_run(
        tmp_path, *SMALL_IMAGES, f"images.path={tmp_path}/images", "ranks_per_node=2", "job.steps=30",
        "scaling.global_batch_size=16", "job.checkpoint_every_steps=20", "job.clip_norm=1.0", "job.learning_rate=0.05",
        *further, small=False,
    )  # fmt: skip
    assert train(run) == [0, 0], printed(run)
    rows = steps(run)
    assert [row["samples"] for row in rows] == [16] * 30
    assert sum(row["loss"] for row in rows[-5:]) < 0.9 * sum(row["loss"] for row in rows[:5])
    config = run.config.read_text()
    run.config.write_text(config.replace("steps: 30\n", "steps: 34\n"))
    assert train(run) == [0, 0], printed(run)
    assert [event["from_step"] for event in events(run, "started")] == [0, 30]
    assert [int(row["step"]) for row in steps(run)] == list(range(1, 35))


@pytest.mark.long
@pytest.mark.parametrize("decoder", list(ImageDecoder))
def test_a_killed_run_continues_with_the_images_that_an_uninterrupted_one_sees(
    decoder: ImageDecoder, tmp_path: Path
) -> None:
    """Losses and validation are equal; with other workers the order cannot be, and the record says so."""
    if decoder is ImageDecoder.dali:
        need_dali()
    make_images(tmp_path / "images", count=50, shards=4, mean_kb=3, classes=5, seed=1)
    given = (*SMALL_IMAGES, f"images.path={tmp_path}/images", f"images.validation_path={tmp_path}/images",
             "ranks_per_node=2", "job.steps=60", "job.micro_batch_size=2", "scaling.global_batch_size=12",
             "job.checkpoint_every_steps=7", f"images.decoder={decoder.name}")  # fmt: skip
    whole, killed = (make_run(tmp_path, *given, f"name={name}", small=False) for name in ("whole", "killed"))
    assert train(whole) == [0, 0], printed(whole)
    kill_after(killed, 20)
    assert train(killed) == [0, 0], printed(killed)
    started = events(killed, "started")
    assert [event["from_step"] for event in started[:1]] == [0]
    assert int(str(started[1]["from_step"])) >= 14
    # A kill between a checkpoint and the row of its step loses that row, and nothing else.
    undisturbed, found = ({row["step"]: row["loss"] for row in steps(run)} for run in (whole, killed))
    assert undisturbed | found == undisturbed
    assert undisturbed.keys() - found.keys() <= {started[1]["from_step"]}
    results = [[events(run, "evaluated")[-1][key] for key in ("evaluation_loss", "evaluation_top1")]
               for run in (whole, killed)]  # fmt: skip
    assert results[0] == results[1]
    config = killed.config.read_text()
    killed.config.write_text(config.replace("steps: 60\n", "steps: 62\n").replace("workers: 1\n", "workers: 2\n"))
    assert train(killed) == [0, 0], printed(killed)
    kept, other = (str(event["data"]) for event in events(killed, "started")[1:])
    assert "other images" not in kept
    assert "After this restart other images than without it: ranks, shards, images.workers" in other


@pytest.mark.long
def test_a_damaged_image_ends_the_run_with_its_name(tmp_path: Path) -> None:
    make_images(tmp_path / "images", count=8, shards=2, mean_kb=3, classes=5, seed=1)
    with tarfile.open(tmp_path / "images/000001.tar", "w") as shard:
        add_sample(shard, "damaged", {"jpg": b"\xff\xd8\xff no image", "cls": b"1"})
    run = make_run(tmp_path, *SMALL_IMAGES, "ranks_per_node=1", f"images.path={tmp_path}/images", small=False)
    assert train(run) == [1]
    (event,) = events(run, "failed")
    assert event["cause"] == "refused"
    assert re.search(
        r"000001\.tar: damaged is not a complete JPEG \(.*\)\. Remove it from its shard", str(event["error"])
    )


def test_an_image_cut_short_is_no_complete_jpeg() -> None:
    content = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(content, "JPEG")
    assert decoded(opened(content.getvalue(), "a"), "a").size == (64, 64)
    with pytest.raises(DataError, match=r"^a is not a complete JPEG \(.+\)\. Remove it from its shard"):
        decoded(opened(content.getvalue()[:-200], "a"), "a")


@pytest.mark.parametrize("network", list(ImageNetwork))
def test_the_plan_counts_the_weights_of_the_network(network: ImageNetwork) -> None:
    with torch.device("meta"):
        counted = sum(weight.numel() for weight in ResNet(network, 1000).parameters())
    assert counted == parameters(network, 1000)


def test_resnet_50_is_version_1_5() -> None:
    # https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.resnet50.html: 25,557,032 parameters.
    assert parameters(ImageNetwork.resnet50, 1000) == 25_557_032
    with torch.device("meta"):
        strided = [module for module in ResNet(ImageNetwork.resnet50, 10).stages.modules()
                   if isinstance(module, torch.nn.Conv2d) and module.stride == (2, 2)]  # fmt: skip
    assert [module.kernel_size for module in strided] == [(3, 3), (1, 1)] * 3, "3x3 of the block, 1x1 of its shortcut"


def test_images_are_examined_at_submission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    submit = ["submit", "job=image_train", "launcher=local", f"runs_dir={tmp_path}", "sweep=s"]
    assert main([*submit, f"images.path={tmp_path}/images"]) == 2
    assert f"images.path={tmp_path}/images has no .tar or .rec files." in printed_words(capsys)
    assert main([*submit, f"images.validation_path={tmp_path}/none"]) == 2
    assert f"images.validation_path={tmp_path}/none is not a directory here. Set images.val" in printed_words(capsys)
    assert main([*submit, "images.count=1000000"]) == 2
    words = "images.path is not set, and a run makes at most 10 GB of images, not 115. Make them once by"
    assert words in printed_words(capsys)
    assert not (tmp_path / "s").exists(), "nothing was prepared"


def test_the_plan_predicts_the_published_system_and_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "experiment=resnet50_powerscale", "images.path=/mnt/imagenet"]) == 0
    text = printed_words(capsys)
    assert "resnet50-ddp-n2x8 2 16 16 x 1 x 1 256 x 1 = 4096 25,557,032" in text
    assert "read from /mnt/imagenet; predictions suppose that storage is fast enough, and leave out validation" in text


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.usefixtures("empty_queue")
def test_image_training_runs_on_slurm_nodes_and_is_reported(tmp_path: Path) -> None:
    assert main([
        "submit", "-m", "--wait", *SMALL_IMAGES, "cluster=generic_slurm", "nodes=1,2", "repeat=1,2",
        "images.path=null", f"runs_dir={tmp_path}", "sweep=s",
    ]) == 0  # fmt: skip
    found = [read_run(run.path) for run in SweepDir(tmp_path / "s").runs()]
    assert {(run.state, run.setting("nodes")) for run in found} == {("finished", 1), ("finished", 2)}
    report([tmp_path / "s"], tmp_path / "report")
    table = (tmp_path / "report/report.md").read_text().partition("## Images")[2].partition("\n## ")[0]
    assert table.count("Emulated nodes on CPU: resnet14-ddp-n2x1-") == 2
    assert table.count("resnet14-ddp-n1x1-") == 2


@pytest.mark.long
def test_a_request_to_stop_ends_at_a_step_with_a_checkpoint_and_resume_continues(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, *SMALL_IMAGES, "ranks_per_node=1", "job.steps=100000", "job.checkpoint_every_steps=50000",
        small=False,
    )  # fmt: skip
    stop_after(run, 5)
    (stopped,) = events(run, "stopped")
    assert int(str(stopped["step"])) >= 5
    assert run.images.exists(), "the next start reads the same images"
    run.config.write_text(
        run.config.read_text().replace("steps: 100000\n", f"steps: {int(str(stopped['step'])) + 3}\n")
    )
    assert train(run) == [0], printed(run)
    assert events(run, "started")[1]["from_step"] == stopped["step"]


def kill_after(run: RunDir, count: int) -> None:
    """Kill a run of two ranks once it has made some steps."""
    start = secrets.token_hex(8)
    ranks = [FORK.Process(target=rank, args=(run.path, number, 2, start)) for number in range(2)]
    for process in ranks:
        process.start()
    wait_until(lambda: run.metrics.exists() and len(steps(run)) >= count)
    for process in ranks:
        process.kill()
    for process in ranks:
        process.join()


def stop_after(run: RunDir, count: int) -> None:
    """Ask a run of one rank to stop once it has made some steps, and wait for its end."""
    process = FORK.Process(target=rank, args=(run.path, 0, 1, secrets.token_hex(8)))
    process.start()
    wait_until(lambda: run.metrics.exists() and len(steps(run)) >= count)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join()
