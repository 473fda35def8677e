"""Trained runs compared: losses, weights, disks that fill."""

from __future__ import annotations

import mmap
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet

from jobs.data import Batches, open_dataset, prepare
from jobs.rundir import RunDir, load_run
from tests.support.real_run import events, make_run, printed, train
from tests.support.required import skip_or_fail

PAGE_BYTES = mmap.PAGESIZE
# Four layers, so that a pipeline has something to cut.
DEEP = ("model.layers=4", "model.heads=8", "model.kv_heads=4", "model.head_size=8", "model.hidden_size=64")


def long(*values: object) -> ParameterSet:
    """Return one more case of the same, left to `make test-all`."""
    return pytest.param(*values, marks=(pytest.mark.slow, pytest.mark.long))


def assert_equal(rows: list[dict[str, float]], reference: list[dict[str, float]]) -> None:
    assert len(rows) == len(reference)
    for row, expected in zip(rows, reference, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert row["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-4)
        assert row["tokens"] == expected["tokens"]


def interrupted(where: Path, *overrides: str) -> RunDir:
    """A run of six steps that was asked to stop after its checkpoint at step 3."""
    run = make_run(where, "job.checkpoint_every_steps=3", *overrides)
    assert set(train(run)) == {0}, printed(run)
    rewind(run, 3)
    return run


def rewind(run: RunDir, step: int) -> None:
    """Leave a run as a kill after the checkpoint of a step leaves it: no later checkpoint, no end."""
    saved = run.checkpoints / f"step-{step:08d}"
    for later in run.checkpoints.glob("step-*"):
        if later != saved:
            shutil.rmtree(later)
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[: step + 1]))


def mean_loss(model: torch.nn.Module, run: RunDir) -> float:
    """Loss of the first global batch, computed by the given model alone."""
    config = load_run(run.config)
    data = open_dataset(prepare(config.data, sequence_length=32, vocab_size=320, seed=config.job.seed))
    batch = Batches(data, global_batch_size=8, micro_batch_size=8, dp=1, dp_rank=0, seed=config.job.seed).step(1)
    ((inputs, targets, *_),) = batch.micro_batches
    with torch.no_grad():
        logits = model(torch.from_numpy(inputs))
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten()))


@contextmanager
def small_disk(where: Path, size_bytes: float) -> Iterator[None]:
    """Mount a file system of this size inside the context."""
    where.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={int(size_bytes)}", "tmpfs", str(where)]
    if subprocess.run(mount, check=False).returncode:
        skip_or_fail("this machine lets nobody mount a tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", where], check=True)


def fill(disk: Path) -> Path:
    """Fill a small disk to its last page, and the last pages of the logs there; return the file that does."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(PAGE_BYTES))
    for log in (*disk.glob("*.log"), *disk.glob("*.out")):
        with log.open("ab") as file:
            file.write(b"\n" * (-log.stat().st_size % PAGE_BYTES))
    return filler


def checkpoint_size_bytes(run: RunDir) -> int:
    size = events(run, "checkpoint")[0]["checkpoint_size_bytes"]
    assert isinstance(size, int)
    return size
