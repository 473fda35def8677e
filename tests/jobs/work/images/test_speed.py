"""Predicted memory and speed of training on images."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from jobs.cli import main
from jobs.schema import Precision, Run
from jobs.submit.preparation.prepare import plan_of
from jobs.work.images.resnet import ResNet
from jobs.work.images.speed import ImageSpeed, image_memory, image_speed
from tests.benchmarks.image_speed import predicted_rate, rows
from tests.support.cli import printed_words
from tests.support.composing import one

IMAGES = ("job=image_train", "cluster=xe9680_h100", "nodes=1", "job.micro_batch_size=256", "images.path=/nowhere",
          "job.precision=bfloat16", "job.steps=5000")  # fmt: skip


def run_of(*overrides: str) -> Run:
    return one(*IMAGES, *overrides).run


def predicted(*overrides: str) -> ImageSpeed:
    found = image_speed(run_of(*overrides))
    assert found is not None
    return found


def test_published_rates_are_within_the_interval_and_those_with_torch_within_10_percent_in_the_median() -> None:
    errors = []
    for row in rows():
        measured, found = float(row["images_per_s"]), predicted_rate(row)
        assert found.low <= measured <= found.high, row
        if row["framework"] == "PyTorch":
            errors.append(abs(found.point / measured - 1))
    assert len(errors) == 12
    assert statistics.median(errors) < 0.1


@pytest.mark.parametrize(("network", "size"), [("resnet50", 224), ("resnet14", 65)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_predicted_activations_are_what_torch_keeps_for_backward(network: str, size: int, precision: str) -> None:
    run = run_of(f"images.network={network}", f"images.size={size}", f"job.precision={precision}",
                 "job.micro_batch_size=2", "scaling.global_batch_size=16")  # fmt: skip
    assert run.images is not None
    model = ResNet(run.images.network, run.images.classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    own = {each.untyped_storage().data_ptr() for each in model.state_dict().values()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    images = torch.rand(2, 3, size, size).to(memory_format=torch.channels_last)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=run.job.precision is not Precision.float32):
            logits = model(images)
        logits.float().logsumexp(1).sum().backward()
    found = sum(each.untyped_storage().nbytes() for place, each in kept.items() if place not in own)
    assert image_memory(run).terms["activations"].point == pytest.approx(found, rel=0.02)


def test_workers_that_decode_too_slowly_limit_the_rate_and_the_plan_says_how_many_would_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few, on_gpu = predicted("images.workers=4"), predicted("images.decoder=dali")
    assert (few.limited_by, on_gpu.limited_by) == ("decoding", "GPU")
    assert few.images_per_s.point == pytest.approx(8 * 4 * 229)
    assert main(["plan", *IMAGES, "images.workers=4"]) == 0
    printed = printed_words(capsys)
    assert "images.workers=4 on 4 cores of each rank decode about 7,328. Set images.workers=22" in printed
    # As many as it says are enough.
    assert predicted("images.workers=22", "cluster.cpus_per_rank=22").limited_by == "GPU"


def test_a_second_node_doubles_the_rate_but_for_the_sums_of_gradients() -> None:
    # The batch of a rank stays.
    one_node, two_nodes = (predicted(f"nodes={n}", "images.decoder=dali", f"scaling.global_batch_size={2048 * n}")
                           for n in (1, 2))  # fmt: skip
    assert 1.9 < two_nodes.images_per_s.point / one_node.images_per_s.point < 2


def test_small_batches_wait_for_the_host() -> None:
    small, large = (predicted(f"job.micro_batch_size={n}", f"scaling.global_batch_size={8 * n}", "images.decoder=dali")
                    for n in (1, 256))  # fmt: skip
    assert large.images_per_s.point > 20 * small.images_per_s.point


def test_the_plan_keeps_the_prediction_and_a_cpu_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *IMAGES]) == 0
    printed = capsys.readouterr().out
    for heading in ("images/s", "step (s)", "hours", "limit", "uncalibrated"):
        assert heading in printed
    kept = plan_of(run_of())["images"]
    assert kept["basis"].startswith("uncalibrated: ")
    assert kept["step_time_s"]["low"] < kept["step_time_s"]["point"]
    assert kept["terms_bytes"]["activations"]["point"] == pytest.approx(256 * 40e6, rel=0.1)
    assert image_speed(one("job=image_train").run) is None


def test_memory_that_may_not_be_enough_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *IMAGES, "gpu=a100_sxm_40gb", "job.micro_batch_size=896"]) == 0
    assert "memory is tight, predicted" in printed_words(capsys)
