"""A rank that cannot compute on the GPU of its cluster ends before training; torch's view of the cards is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jobs.engines.native.pipeline import refuse_message_to_itself
from jobs.errors import ConfigError
from jobs.plan.legality import warnings
from jobs.ranks import Rank
from jobs.run import prepare_for_torch
from jobs.runtime.gpus.gpu import is_far, refuse_own_gpu_only, refuse_unusable_gpu, stay_near
from tests.support.composing import one
from tests.support.real_run import events, make_run, printed, train

V100, H100 = (7, 0), (9, 0)
CUDA_13 = ("sm_75", "sm_80", "sm_90", "sm_100a", "compute_120")


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Replace the answers of torch.cuda and of nvidia-smi."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def have(count: int, capability: tuple[int, int] = H100, *, driver: str = "580.65.06",
             architectures: tuple[str, ...] = CUDA_13, gfx: str = "", hip: str | None = None) -> None:  # fmt: skip
        monkeypatch.setattr(torch.version, "cuda", None if hip else "13.0")
        monkeypatch.setattr(torch.version, "hip", hip)
        answers = {
            "is_available": count > 0,
            "device_count": count,
            "get_device_capability": capability,
            "get_arch_list": list(architectures),
            "get_device_name": "a card",
            "get_device_properties": SimpleNamespace(gcnArchName=gfx),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        monkeypatch.setattr(torch.cuda, "init", lambda: None)
        smi = tmp_path / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\necho {driver}\n")
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return have


def refusal(*overrides: str, local_rank: int = 0) -> str:
    run = one("cluster=xe9680_h100", "launcher=dry", "job.micro_batch_size=1", *overrides).run
    with pytest.raises(ConfigError) as caught:
        refuse_unusable_gpu(run, Rank(local_rank, run.ranks, local_rank, "127.0.0.1", "1"))
    return str(caught.value)


@pytest.mark.parametrize("engine", ["native", "litgpt"])
def test_a_gpu_run_does_not_train_on_the_cpu(engine: str, tmp_path: Path) -> None:
    job = ("engine.compile=true",) if engine == "litgpt" else ()
    run = make_run(tmp_path, "cluster=xe9680_h100", "launcher=slurm", f"engine={engine}", "parallelism=single",
                   "nodes=1", "ranks_per_node=1", *job)  # fmt: skip
    assert train(run) == [1], printed(run)
    (failed,) = events(run, "failed")
    assert failed["cause"] == "refused"
    for word in ("cannot compute on a GPU", f"torch {torch.__version__}", "driver", "CUDA_VISIBLE_DEVICES", "Install"):
        assert word in str(failed["error"])
    assert not run.metrics.exists()


def test_a_driver_older_than_torchs_cuda_is_named_with_the_torch_that_fits(
    cards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(0, driver="535.183.01")

    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nMore.")

    monkeypatch.setattr(torch.cuda, "init", init)
    found = refusal("ranks_per_node=1")
    assert "The NVIDIA driver on your system is too old" in found
    assert "driver 535.183.01" in found
    assert "CUDA 13.0" in found
    assert "Install a torch for CUDA 12 or earlier" in found


def test_hidden_gpus_are_named(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES='' hides all GPUs" in refusal("ranks_per_node=1")


def test_fewer_gpus_than_ranks_are_refused_unless_each_rank_sees_its_own(
    cards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(4)
    found = refusal("ranks_per_node=8", local_rank=5)
    assert "torch sees 4 GPUs for 8 ranks of this node. Set ranks_per_node=4" in found
    cards(1)
    assert "torch sees 1 GPU for 8 ranks" in refusal("ranks_per_node=8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # as Slurm sets it, where it binds ranks to GPUs
    run = one("cluster=xe9680_h100", "launcher=dry", "job.micro_batch_size=1", "ranks_per_node=8").run
    refuse_unusable_gpu(run, Rank(5, 8, 5, "127.0.0.1", "1"))


@pytest.mark.parametrize(
    ("card", "fits"),
    [
        ({"capability": H100}, True),
        ({"capability": (8, 6)}, True),  # by the kernels of 8.0
        ({"capability": (12, 1)}, True),  # the driver compiles the code for 12.0
        ({"capability": V100}, False),
        ({"hip": "6.4", "gfx": "gfx942:sramecc+:xnack-", "architectures": ("gfx90a", "gfx942")}, True),
        ({"hip": "6.4", "gfx": "gfx906", "architectures": ("gfx90a", "gfx942")}, False),
    ],
)
def test_a_torch_without_kernels_for_the_card_is_refused(card: dict[str, Any], fits: bool, cards: Any) -> None:
    cards(8, **card)
    if fits:
        run = one("cluster=xe9680_h100", "launcher=dry", "job.micro_batch_size=1", "ranks_per_node=8").run
        refuse_unusable_gpu(run, Rank(0, 8, 0, "127.0.0.1", "1"))
    else:
        assert "torch has no kernels for a card" in refusal("ranks_per_node=8")


def test_bfloat16_is_refused_by_the_file_of_the_gpu_and_by_the_card_that_is_found(cards: Any) -> None:
    with pytest.raises(ConfigError, match=r"capability 8\.0 or more, and v100_sxm2_32gb"):
        one("cluster=gadi_gpuvolta", "cluster.account=a", "job.precision=bfloat16")
    cards(8, V100, architectures=("sm_70", "sm_80"))
    assert "compute capability 7.0, and job.precision=bfloat16 needs 8.0" in refusal("job.precision=bfloat16")


def test_a_rank_stays_on_the_cores_next_to_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = sorted(os.sched_getaffinity(0))
    where = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x4F, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: where)
    (tmp_path / "0000:4f:00.0").mkdir()
    listed = tmp_path / "0000:4f:00.0" / "local_cpulist"
    try:
        listed.write_text(f"{here[-1]},100000-100003\n")
        stay_near(torch.device("cuda", 0), tmp_path)
        assert os.sched_getaffinity(0) == {here[-1]}
        assert not is_far(torch.device("cuda", 0), tmp_path)
        listed.write_text("100000-100003\n")  # a Slurm that binds to other cores decides
        stay_near(torch.device("cuda", 0), tmp_path)
        assert os.sched_getaffinity(0) == {here[-1]}
        assert is_far(torch.device("cuda", 0), tmp_path)
        assert not is_far(torch.device("cpu"), tmp_path)
        listed.unlink()  # a kernel that lists none
        assert not is_far(torch.device("cuda", 0), tmp_path)
    finally:
        os.sched_setaffinity(0, here)


def test_fabric_is_refused_where_a_rank_sees_only_its_own_gpu(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    run = one("cluster=xe9680_h100", "launcher=dry", "job.micro_batch_size=1", "ranks_per_node=8").run
    with pytest.raises(ConfigError, match=r"sees its own only \(CUDA_VISIBLE_DEVICES=5\). Start ranks without --gpu"):
        refuse_own_gpu_only(run)


def test_an_old_torch_is_refused_in_words() -> None:
    run = one().run
    prepare_for_torch(run, "2.11.0a0+nv26.01")
    with pytest.raises(ConfigError, match=r"engine=native needs torch 2.11 or later, and this node has 2.9.1\+cu128"):
        prepare_for_torch(run, "2.9.1+cu128")


def test_a_schedule_whose_ranks_send_to_themselves_is_refused_on_cpus_before_torch_2_12() -> None:
    run = one("parallelism=pp", "ranks_per_node=2", "parallelism.schedule=ZBVZeroBubble", "model.layers=4").run
    refuse_message_to_itself(run, torch.device("cuda"), "2.11.0+cu130")
    refuse_message_to_itself(run, torch.device("cpu"), "2.12.1")
    with pytest.raises(ConfigError, match=r"needs torch 2\.12 or later, and this node has 2\.11\.0a0"):
        refuse_message_to_itself(run, torch.device("cpu"), "2.11.0a0+nv26.01")


def test_gpu_ranks_with_one_core_and_gathered_pipeline_stages_are_named_in_the_plan() -> None:
    gpus = ("cluster=generic_slurm", "cluster.gpus=true", "cluster.ranks_per_node=8", "ranks_per_node=8")
    assert any("cluster.cpus_per_rank is not set" in text for text in warnings(one(*gpus).run))
    for enough in ("cluster.cpus_per_rank=12", "cluster.exclusive=true", "cluster.gpus=false"):
        assert not any("cpus_per_rank" in text for text in warnings(one(*gpus, enough).run))
    pipeline = ("cluster=xe9680_h100", "model=llama2_70b", "parallelism=pp_fsdp", "parallelism.pipeline=4", "nodes=8",
                "job.precision=bfloat16", "job.micro_batch_size=1", "scaling.global_batch_size=512",
                "gpu.memory_gb=null")  # fmt: skip
    (text,) = [text for text in warnings(one(*pipeline).run) if "with FSDP" in text]
    assert "about 103 GB; only optimizer state stays sharded" in text
