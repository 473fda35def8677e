"""On a machine with a GPU: the same training runs there by itself, over nccl, and agrees with the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.rundir import RunDir
from tests.real_run import events, losses, make_run, printed, train

# Asking torch itself would start CUDA in this process, and ranks are forked from it.
pytestmark = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run whose export is the start of all others: CPU and GPU draw different random numbers."""
    run = make_run(tmp_path_factory.mktemp("weights"), "parallelism=single", "ranks_per_node=1", "job.export=true")
    assert train(run) == [0], printed(run)
    return run


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("parallelism", ["single", "ddp", "fsdp_full", "fsdp_grad_op", "fsdp_no_shard", "fsdp_hybrid"])
def test_one_gpu_trains_under_every_parallelism_as_the_cpu_does(
    parallelism: str, precision: str, weights: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("ranks_per_node=1", f"job.init_from={weights.export}", f"parallelism={parallelism}")
    gpu = make_run(tmp_path, "name=gpu", *common, f"job.precision={precision}")
    assert train(gpu) == [0], printed(gpu)
    (started,) = events(gpu, "started")
    assert started["device"] == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cpu = make_run(tmp_path, "name=cpu", *common)
    assert train(cpu) == [0], printed(cpu)
    tolerance = 0.05 if precision == "bfloat16" else 1e-3
    assert losses(gpu) == pytest.approx(losses(cpu), abs=tolerance)
