"""Bytes of a checkpoint that changed on its disk are found before they are trained on."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch has it, and does not list it

from jobs.engines.native.checkpoint import read_into, save_sharded
from jobs.errors import CheckpointError
from jobs.rundir import RunDir
from jobs.runtime.checkpoints.directory import loaded, save_archive, write_sums
from jobs.runtime.checkpoints.sums import SUMS, sum_of
from jobs.work.images.trainer import STATE
from tests.support.real_run import events, make_run, printed, train
from tests.support.training import long


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint of one rank, in a process group of this process alone."""
    directory = tmp_path / "saved/step-00000001"
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    sums = save_sharded({"a": torch.arange(5000.0), "b": torch.ones(40, 30), "step": torch.tensor(1)}, directory)
    write_sums(directory, sums)
    yield directory
    dist.destroy_process_group()


def load(path: Path) -> int:
    """Load the checkpoint as an engine does."""
    state = {"a": torch.zeros(5000), "b": torch.zeros(40, 30), "step": torch.tensor(0)}
    read_into(state, path)
    assert torch.equal(state["a"], torch.arange(5000.0))
    return int(state["step"])


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        loaded(path, load, list)
    return str(caught.value)


def test_the_sums_are_those_of_the_files_and_an_intact_checkpoint_is_loaded(saved: Path) -> None:
    (of_rank,) = json.loads((saved / SUMS).read_text())["crc32"]
    files = {file.name: zlib.crc32(file.read_bytes()) for file in saved.iterdir() if file.name != SUMS}
    assert of_rank == files
    assert loaded(saved, load, list) == 1


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
@pytest.mark.parametrize("place", [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.9999])
def test_one_changed_bit_anywhere_is_found(name: str, place: float, saved: Path) -> None:
    content = bytearray((saved / name).read_bytes())
    content[int(place * len(content))] ^= 1
    (saved / name).write_bytes(content)
    assert f"Checkpoint {saved} cannot be read: {name} changed after it was written." in refusal(saved)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_bytes_that_are_moved_zeroed_added_cut_or_missing_are_found(name: str, saved: Path, tmp_path: Path) -> None:
    intact = (saved / name).read_bytes()
    middle = len(intact) // 2
    damaged: list[bytes | None] = [
        intact[:middle] + bytes(128) + intact[middle + 128 :],
        intact[64:128] + intact[:64] + intact[128:],
        intact + b"\0",
        intact[:-1],
        b"",
        None,
    ]
    for number, content in enumerate(damaged):
        copy = Path(shutil.copytree(saved, tmp_path / str(number) / saved.name))
        if content is None:
            (copy / name).unlink()
        else:
            (copy / name).write_bytes(content)
        assert f"{name} changed after it was written" in refusal(copy)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"crc32": {}}x', '{"crc32": [1]}', '{"crc32": [{"__0_0.distcp": "1"}]}', '{"md5": []}',
        '{"crc32": [{"../../outside": 0}]}', '{"crc32": [{"/dev/zero": 0}]}', '{"crc32": [{"": 0}]}', '{"crc32": 5}',
    ],
)  # fmt: skip
def test_sums_that_are_damaged_make_a_checkpoint_unreadable(text: str, saved: Path) -> None:
    (saved / SUMS).write_text(text)
    (saved.parent / "outside").write_text("")
    assert f"Checkpoint {saved} cannot be read: " in refusal(saved)


def test_a_checkpoint_of_a_release_without_sums_is_loaded_and_the_log_says_so(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loaded(saved, load, list) == 1
    assert capsys.readouterr().out == ""
    (saved / SUMS).unlink()
    assert loaded(saved, load, list) == 1
    assert capsys.readouterr().out == (
        f"{saved} has no {SUMS}: an earlier version wrote it, and it is loaded without a check.\n"
    )


def test_the_sum_of_an_archive_is_that_of_its_file(tmp_path: Path) -> None:
    for number, value in enumerate(({"a": torch.arange(300_000)}, [], "text", {"deep": [{"b": torch.ones(3)}]})):
        path = tmp_path / str(number)
        assert save_archive(value, path) == sum_of(path) == zlib.crc32(path.read_bytes())


def flip(path: Path) -> None:
    """Change 128 bytes in the middle of a file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 128] = bytes(255 - byte for byte in content[middle : middle + 128])
    path.write_bytes(content)


def assert_falls_back(run: RunDir, ranks: int, file: str) -> None:
    """Assert that a run whose newest checkpoint has changed bytes continues from the one before it, and records why."""
    assert train(run) == [0] * ranks, printed(run)
    flip(run.checkpoints / f"step-00000004/{file}")
    assert train(run) == [0] * ranks, printed(run)
    assert events(run, "started")[-1]["from_step"] == 2
    (event,) = events(run, "checkpoint_unreadable")
    assert event["checkpoint"] == "step-00000004"
    assert f"{file} changed after it was written" in str(event["error"])


EVERY_TWO = ("job.steps=4", "job.checkpoint_every_steps=2", "job.keep_checkpoints=2")


@pytest.mark.parametrize("file", ["__1_0.distcp", long(".metadata")])
def test_a_run_continues_from_the_checkpoint_before_one_with_changed_bytes(file: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, "parallelism=fsdp_full", "ranks_per_node=2", *EVERY_TWO)
    assert_falls_back(run, 2, file)


def test_a_run_on_images_does_so_too(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, "job=image_train", "images.network=resnet14", "images.count=16", "images.shards=2",
        "images.mean_kb=3", "images.size=32", "images.workers=0", "images.shuffle=4", "images.classes=5",
        "job.micro_batch_size=4", "job.unmeasured_steps=1", "ranks_per_node=1", *EVERY_TWO, small=False,
    )  # fmt: skip
    assert_falls_back(run, 1, STATE)


@pytest.mark.long
def test_a_run_of_deepspeed_does_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed", reason="this Python has no DeepSpeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    run = make_run(tmp_path, "engine=deepspeed", "parallelism=zero2", "ranks_per_node=2", *EVERY_TWO)
    assert_falls_back(run, 2, "deepspeed/mp_rank_00_model_states.pt")
