"""Memory of a GPU: the settings of its allocator, and the peaks that are recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from jobs import metrics as m
from jobs.runtime.gpus.allocator import use_expandable_segments
from jobs.runtime.process_group import forget_memory_of_startup, memory_peaks
from tests.support.real_run import make_run, printed, rank, train


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("2.11.0+cu128", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ("2.8.0a0+34c6371d24.nv25.8", {}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ("2.13.0", {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}),
        ("2.13.0", {"PYTORCH_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": ""}),
    ],
)
def test_segments_expand_in_every_torch_unless_the_user_has_set_the_allocator(
    version: str, given: dict[str, str], expected: dict[str, str]
) -> None:
    use_expandable_segments(given, version)
    assert given == expected


def test_ranks_set_the_allocator_before_they_train(tmp_path: Path) -> None:
    def asking(directory: Path, number: int, world: int, start: str) -> None:
        os.environ.pop("PYTORCH_ALLOC_CONF", None)
        try:
            rank(directory, number, world, start)
        finally:
            print(os.environ["PYTORCH_ALLOC_CONF"])

    run = make_run(tmp_path, "parallelism=single", "ranks_per_node=1", "job.steps=2")
    assert train(run, of_rank=asking) == [0], printed(run)
    assert "expandable_segments:True" in printed(run)


def test_peaks_are_allocated_and_reserved_memory_since_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 3)
    forgotten: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 5)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 7)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forgotten.append)
    forget_memory_of_startup(device)
    assert forgotten == [device]
    assert memory_peaks(device) == {m.MEMORY_PEAK: 5, m.MEMORY_RESERVED_PEAK: 7}
    assert memory_peaks(torch.device("cpu")).keys() == {m.MEMORY_PEAK}
