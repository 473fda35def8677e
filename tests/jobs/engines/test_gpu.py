"""On a machine with a GPU: the same training runs there by itself, over nccl, and agrees with the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs import metrics as m
from jobs.data.batches import StepBatch
from jobs.engines.native import trainer as workload
from jobs.engines.native.trainer import Trainer
from jobs.rundir import RunDir
from jobs.runtime.node.use import NodeUse
from jobs.runtime.process_group import on_host
from jobs.versions import is_missing
from jobs.work.images.make import make_images
from tests.support.paths import ROOT
from tests.support.real_run import events, losses, make_run, printed, rank, steps, train
from tests.support.training import interrupted

# Asking torch itself would start CUDA in this process, which ranks are forked from; imported, the extras ask.
pytestmark = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here")


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    """Skips a test where an extra is not installed."""
    return pytest.mark.skipif(is_missing(package), reason=f"the extra {extra} is not installed")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run whose export is the start of all others: CPU and GPU draw different random numbers."""
    run = make_run(tmp_path_factory.mktemp("weights"), "parallelism=single", "ranks_per_node=1", "job.export=true")
    assert train(run) == [0], printed(run)
    return run


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
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
    tolerance = 1e-3 if precision == "float32" else 0.05
    assert losses(gpu) == pytest.approx(losses(cpu), abs=tolerance)
    for row in steps(gpu):
        assert row["memory_reserved_peak_bytes"] >= row["memory_peak_bytes"] > 0


def strict_rank(directory: Path, number: int, world: int, start: str) -> None:
    """One rank that fails where a step after the second waits for the GPU, but to read its loss and norm."""
    of_step, patch = Trainer.step, pytest.MonkeyPatch()

    def strict(self: Trainer, step: int, batch: StepBatch) -> tuple[float, float | None, float]:
        # DDP sorts its buckets anew before the second step, which reads the order on the host.
        torch.cuda.set_sync_debug_mode("error" if step > 2 else "default")
        try:
            return of_step(self, step, batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def reading(*numbers: torch.Tensor) -> list[float]:
        torch.cuda.set_sync_debug_mode("default")
        return on_host(*numbers)

    patch.setattr(Trainer, "step", strict)
    patch.setattr(workload, "on_host", reading)
    rank(directory, number, world, start)


@pytest.mark.parametrize("batching", ["padded", "packed"])
@pytest.mark.parametrize("parallelism", ["single", "ddp", "fsdp_full"])
def test_a_step_waits_for_the_gpu_only_to_read_its_results(parallelism: str, batching: str, tmp_path: Path) -> None:
    run = make_run(
        tmp_path, "ranks_per_node=1", f"parallelism={parallelism}", "model.head_size=16", "job.precision=bfloat16",
        "data=docstrings", "data.max_samples=48", "data.bpe_vocab_size=300", "job.sequence_length=64",
        "data.too_long=truncate", f"job.batching={batching}", "engine.loss=chunked", "engine.prefetch_batches=2",
    )  # fmt: skip
    assert train(run, of_rank=strict_rank) == [0], printed(run)


@needs("liger_kernel", "liger")
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("parallelism", ["single", "fsdp_full"])
def test_fused_kernels_train_as_torchs_do(
    parallelism: str, precision: str, checkpointing: str, weights: RunDir, tmp_path: Path
) -> None:
    common = (
        "ranks_per_node=1", f"job.init_from={weights.export}", f"parallelism={parallelism}", "gpu=h100_sxm",
        f"job.precision={precision}", f"engine.activation_checkpointing={checkpointing}",
    )  # fmt: skip
    runs = [
        make_run(tmp_path, f"name={kernels}", *common, f"engine.kernels={kernels}") for kernels in ("torch", "liger")
    ]
    for run, kernels in zip(runs, ("torch", "liger"), strict=True):
        assert train(run) == [0], printed(run)
        assert events(run, "started")[0]["kernels"] == kernels
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=0.02 if precision == "bfloat16" else 1e-4)


QLORA = ("job=finetune_lora", "job.lora.quantize_base=nf4")


@pytest.mark.parametrize("parallelism", ["single", "ddp", "fsdp_full"])
@pytest.mark.parametrize(
    "job",
    [("job=finetune_lora",), pytest.param(QLORA, marks=needs("bitsandbytes", "qlora")), ("job=prompt_tuning",),
     ("job=p_tuning",)],
    ids=" ".join,
)  # fmt: skip
def test_adapters_and_virtual_tokens_train_as_on_the_cpu(
    job: tuple[str, ...], parallelism: str, weights: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("ranks_per_node=1", f"job.init_from={weights.export}", f"parallelism={parallelism}", *job,
              "job.epochs=null", "job.warmup_steps=1")  # fmt: skip
    gpu = make_run(tmp_path, "name=gpu", *common, "job.precision=bfloat16", "job.export=true")
    assert train(gpu) == [0], printed(gpu)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cpu = make_run(tmp_path, "name=cpu", *common, "job.precision=float32")
    assert train(cpu) == [0], printed(cpu)
    assert losses(gpu) == pytest.approx(losses(cpu), abs=0.05)


@needs("deepspeed", "deepspeed")
@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_deepspeed_trains_as_the_native_engine(stage: str, weights: RunDir, tmp_path: Path) -> None:
    common = ("ranks_per_node=1", f"job.init_from={weights.export}", "job.precision=bfloat16")
    native = make_run(tmp_path, "name=native", *common, "parallelism=fsdp_full")
    zero = make_run(tmp_path, "name=zero", *common, "engine=deepspeed", f"parallelism={stage}")
    for run in (native, zero):
        assert train(run) == [0], printed(run)
        assert events(run, "started")[0]["device"] == "cuda"
    assert losses(zero) == pytest.approx(losses(native), abs=0.05)


@pytest.mark.parametrize("batching", ["padded", "packed"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_a_compiled_run_trains_as_an_eager_one(batching: str, checkpointing: str, tmp_path: Path) -> None:
    common = ("ranks_per_node=1", "parallelism=single", "model.head_size=16", "job.precision=bfloat16",
              "data=docstrings", "data.max_samples=48", "data.bpe_vocab_size=300", "job.sequence_length=64",
              "data.too_long=truncate", f"job.batching={batching}",
              f"engine.activation_checkpointing={checkpointing}")  # fmt: skip
    runs = [make_run(tmp_path, f"name=compile_{on}", *common, f"engine.compile={on}") for on in ("false", "true")]
    for run in runs:
        assert train(run) == [0], printed(run)
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=0.02)


@pytest.mark.parametrize("background", ["false", "true"])
@pytest.mark.parametrize("parallelism", ["single", "ddp", "fsdp_full"])
def test_a_run_continues_from_its_checkpoint(parallelism: str, background: str, tmp_path: Path) -> None:
    common = ("ranks_per_node=1", f"parallelism={parallelism}", f"job.checkpoint_in_background={background}")
    whole = make_run(tmp_path / "whole", *common)
    assert train(whole) == [0], printed(whole)
    run = interrupted(tmp_path, *common)
    assert train(run) == [0], printed(run)
    assert events(run, "started")[-1]["from_step"] == 3
    assert losses(run) == pytest.approx(losses(whole), abs=1e-4)


def test_a_profile_has_the_kernels_of_the_gpu(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ranks_per_node=1", "parallelism=fsdp_full", "job.unmeasured_steps=2",
                   "engine.profile.steps=[4,5]")  # fmt: skip
    assert train(run) == [0], printed(run)
    (profile,) = events(run, "profile")
    ranks: Any = profile["ranks"]
    (rank,) = ranks
    assert sum(rank[share.name] for share in m.PROFILE_SHARES) == pytest.approx(1)
    assert any("gemm" in str(kernel).lower() for kernel in rank["kernels"]), rank["kernels"]


def test_litgpts_own_loop_trains_on_the_gpu(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ranks_per_node=1", "engine=litgpt", "parallelism=single", "engine.compile=true",
                   "job.precision=bfloat16")  # fmt: skip
    assert train(run) == [0], printed(run)
    assert events(run, "started")[0]["device"] == "cuda"


def test_doctor_multiplies_on_the_gpu_and_the_use_of_the_node_has_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jobs.doctor.matrix_product"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found = json.loads(done.stdout)
    assert found["gpus"] >= 1
    assert found["error"] is None
    use = NodeUse()
    assert 0 <= use.levels()[m.NODE_GPU_MEMORY_USED.name] <= 1
    assert "node_gpu_s" in use.counters()


def test_images_train_as_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path / "images", count=64, shards=4, mean_kb=20, classes=5, seed=1)
    gpu, cpu = [images_run(tmp_path, name, "pillow") for name in ("gpu", "cpu")]
    assert train(gpu) == [0], printed(gpu)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert train(cpu) == [0], printed(cpu)
    assert_alike(gpu, cpu)


def images_run(where: Path, name: str, decoder: str) -> RunDir:
    """A run on the images of a directory, which it also validates on."""
    return make_run(
        where, "job=image_train", "images.network=resnet14", "images.size=64", "images.classes=5", "job.steps=12",
        "images.workers=2", "images.shuffle=4", "job.learning_rate=0.001", "ranks_per_node=1",
        f"images.path={where}/images", f"images.validation_path={where}/images", f"images.decoder={decoder}",
        f"name={name}", small=False,
    )  # fmt: skip


def assert_alike(one: RunDir, other: RunDir) -> None:
    """Compare losses of two runs on images in the mean, and of their last validation."""
    apart = [abs(a - b) for a, b in zip(losses(one), losses(other), strict=True)]
    assert sum(apart) / len(apart) < 0.05
    by_one, by_other = (float(str(events(run, "evaluated")[-1]["evaluation_loss"])) for run in (one, other))
    assert by_one == pytest.approx(by_other, abs=0.05)


@needs("nvidia.dali", "dali")
def test_dali_decodes_on_the_gpu_and_trains_as_pillow_does(tmp_path: Path) -> None:
    make_images(tmp_path / "images", count=64, shards=4, mean_kb=20, classes=5, seed=1)
    runs = [images_run(tmp_path, decoder, decoder) for decoder in ("dali", "pillow")]
    for run in runs:
        assert train(run) == [0], printed(run)
    assert "on the GPU." in str(events(runs[0], "started")[0]["data"])
    assert_alike(*runs)


def test_batches_copied_from_page_locked_memory_are_the_same(weights: RunDir, tmp_path: Path) -> None:
    common = ("ranks_per_node=1", f"job.init_from={weights.export}", "parallelism=single")
    runs = [make_run(tmp_path, f"name=ahead{n}", *common, f"engine.prefetch_batches={n}") for n in (0, 3)]
    for run in runs:
        assert train(run) == [0], printed(run)
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-6)


@pytest.mark.parametrize("kernels", ["torch", "liger_or_torch"])
def test_packed_rows_train_as_padded_ones_by_the_kernel_for_samples(kernels: str, tmp_path: Path) -> None:
    # Heads of 16 in bfloat16, which that kernel takes.
    common = ("ranks_per_node=1", "parallelism=single", "model.head_size=16", "job.precision=bfloat16",
              "model.max_sequence_length=256", "job.sequence_length=256", "job.micro_batch_size=4", "job.steps=4",
              "data=docstrings", "data.max_samples=32", "data.bpe_vocab_size=320",
              f"engine.kernels={kernels}")  # fmt: skip
    runs = [make_run(tmp_path, f"name={name}", *common, f"job.batching={name}") for name in ("padded", "packed")]
    for run in runs:
        assert train(run) == [0], printed(run)
    padded, packed = (steps(run) for run in runs)
    assert [row["tokens"] for row in packed] == [row["tokens"] for row in padded]
    # On a CPU they differ by 1e-4; where a sample attends to those before it, by 0.01 and 5 percent.
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=5e-3)
    norms, expected = ([row["gradient_norm"] for row in rows] for rows in (packed, padded))
    assert norms == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("batching", ["padded", "packed"])
def test_attention_sinks_train_as_on_the_cpu(batching: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ("ranks_per_node=1", "parallelism=single", "model.head_size=16", "model.attention_sinks=true",
              "model.sliding_window=24", "model.full_attention_every=2", "model.max_sequence_length=256",
              "job.sequence_length=256", "job.micro_batch_size=4", "job.steps=4", "data=docstrings",
              "data.max_samples=32", "data.bpe_vocab_size=320", f"job.batching={batching}")  # fmt: skip
    start = make_run(tmp_path, "name=start", *common, "job.export=true")
    runs = [
        make_run(tmp_path, f"name={name}", *common, f"job.init_from={start.export}", f"job.precision={precision}")
        for name, precision in (("gpu", "bfloat16"), ("cpu", "float32"))
    ]
    assert train(start) == train(runs[0]) == [0], printed(runs[0])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert train(runs[1]) == [0], printed(runs[1])
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), abs=0.02)
    norms, expected = ([row["gradient_norm"] for row in steps(run)] for run in runs)
    assert norms == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("loop", ["fused", "foreach", "single"])
def test_the_optimizers_loop_does_not_change_the_losses(loop: str, weights: RunDir, tmp_path: Path) -> None:
    common = ("ranks_per_node=1", f"job.init_from={weights.export}", "parallelism=fsdp_full")
    runs = [make_run(tmp_path, f"name={n}", *common, *more) for n, more in
            (("default", ()), (loop, (f"engine.optimizer_loop={loop}",)))]  # fmt: skip
    for run in runs:
        assert train(run) == [0], printed(run)
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-4)


@needs("torchao", "float8")
@pytest.mark.parametrize("recipe", ["null", "rowwise"])
@pytest.mark.parametrize("parallelism", ["single", "fsdp_full"])
def test_float8_trains_close_to_bfloat16_but_not_equal(
    parallelism: str, recipe: str, weights: RunDir, tmp_path: Path
) -> None:
    common = ("ranks_per_node=1", f"job.init_from={weights.export}", f"parallelism={parallelism}", "gpu=h100_sxm",
              "job.precision=bfloat16", "engine.compile=true")  # fmt: skip
    runs = [make_run(tmp_path, f"name=float8_{on}", *common, f"engine.float8={on}", f"engine.float8_recipe={scales}")
            for on, scales in (("false", "null"), ("true", recipe))]  # fmt: skip
    for run in runs:
        assert train(run) == [0], printed(run)
    differences = [abs(a - b) for a, b in zip(*map(losses, runs), strict=True)]
    assert 0 < max(differences) < 0.1
